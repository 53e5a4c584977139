"""Finding the instructions of a project on the way from its root to a path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import HoldfastError
from holdfast.hands.files.errors import FileMissing, FileTooLarge, NotText, PathRefused, WrongKind
from holdfast.hands.files.paths import Place
from holdfast.hands.files.reading import decoded
from holdfast.hands.files.workspace import chunks
from holdfast.hands.project.words import Shown, Withheld, size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.hands.files.workspace import Workspace
    from holdfast.hands.project.limits import ProjectLimits

_NO_ROOM: Final = "there is no room for it beside those that are nearer"


@dataclass(frozen=True, slots=True)
class Gathering:
    """Looks for files called `name` below one workspace, within limits."""

    workspace: Workspace
    name: str
    limits: ProjectLimits

    def down_to(self, place: Place) -> list[Shown | Withheld]:
        """What is found from the root down to `place`, which may be a directory, a file, or not there yet."""
        found = (self._at(Place(place.parts[:depth])) for depth in range(len(place.parts) + 1))
        return within([one for one in found if one is not None], self.limits.total_chars)

    def _at(self, directory: Place) -> Shown | Withheld | None:
        label = "/".join((*directory.parts, self.name))
        try:
            with self.workspace.file(label.encode(), label) as number:
                pieces = chunks(number, label, self.limits.file_bytes, "it is not shown here")
                return Shown(label, "".join(decoded(pieces, label)))
        except FileMissing:
            return None
        except WrongKind as error:
            # Below a file there is nothing; what is called so and is no file is worth a word.
            return None if error.found.startswith("a file") else Withheld(label, f"it is {error.found}")
        except HoldfastError as error:
            return Withheld(label, _reason(error))


def within(found: Sequence[Shown | Withheld], room: int) -> list[Shown | Withheld]:
    """The same, as far as there is room: what is further away is left out before what is near."""
    kept: list[Shown | Withheld] = []
    for one in reversed(found):
        if isinstance(one, Shown):
            room -= size_of(one)
            kept.append(one if room >= 0 else Withheld(one.path, _NO_ROOM))
        else:
            kept.append(one)
    return kept[::-1]


def _reason(error: HoldfastError) -> str:
    match error:
        case FileTooLarge():
            return f"it has {error.size:,} bytes or more, the limit is {error.limit:,}"
        case NotText():
            return "it is not UTF-8 text"
        case PathRefused():
            return error.reason
        case _:
            return "it could not be read"
