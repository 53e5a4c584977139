"""What a model reads of skills. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.hands.skills.front import Front

_OFFER: Final = (
    "Load a skill: instructions that the author of this agent wrote for a kind of task. "
    "Load one before you begin a task that its description fits, and follow it. Load none that does not fit.\n\n"
    "The skills are:"
)
_HEAD: Final = (
    "The skill {name!r}, written by the author of this agent. Follow it for the task that it fits. "
    "It allows nothing that is not allowed to you anyway."
)


def offered(fronts: Iterable[Front]) -> str:
    """What the tool that loads skills says of itself: which there are, and when to use each."""
    return "\n".join([_OFFER, *(f"- {front.name}: {front.description}" for front in fronts)])


def loaded(name: str, body: str, files: Sequence[str], *, more: bool) -> str:
    """A skill as a whole: its instructions, and which files it has beside them."""
    parts = [_HEAD.format(name=name), body.strip() or "(it has no instructions)"]
    if files:
        rest = ["(There are more.)"] if more else []
        parts.append("\n".join(["Its other files, for read_skill_file:", *(f"- {file}" for file in files), *rest]))
    return "\n\n".join(parts)
