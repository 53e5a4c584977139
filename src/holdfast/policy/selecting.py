"""Which tools a rule is about, and how specific it is about one of them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors.policy import PolicyInvalid
from holdfast.errors.tree import excerpt
from holdfast.policy.globs import fits, is_literal, letters

if TYPE_CHECKING:
    from holdfast.policy.subject import Subject

EXACT: Final = 1_000
"""How specific a rule is that names the tool itself: more than any pattern can be."""
_LONGEST: Final = 200
_WORD: Final = re.compile(r"[A-Za-z0-9_*?-]+")
_FORMS: Final = (
    "a tool, a pattern such as 'read*', a family such as 'files', 'files.read*', 'mcp.SERVER' or 'mcp.SERVER.TOOL'"
)


@dataclass(frozen=True, slots=True)
class Selector:
    """What was written in place of a tool.

    Without `family`, `name` is the name of a tool or a pattern of names; a word without wildcards may also be a family.
    """

    text: str
    family: str | None
    name: str

    @property
    def everything(self) -> bool:
        """Whether it is about all tools alike."""
        return not self.text.strip("*")

    def specificity(self, subject: Subject) -> int | None:
        """How closely it means this tool: `EXACT`, or the letters it gives away; None where it does not mean it."""
        if self.family is None:
            return self._of_word(subject)
        if subject.family is None or not fits(subject.family, self.family) or not fits(subject.tool, self.name):
            return None
        return EXACT if is_literal(self.name) else letters(self.family) + letters(self.name)

    def _of_word(self, subject: Subject) -> int | None:
        if fits(subject.tool, self.name):
            return EXACT if is_literal(self.name) else letters(self.name)
        return letters(self.name) if self.name == subject.family else None

    def permits(self, subject: Subject) -> bool:
        """Whether a permission for what is written here may reach this tool.

        An MCP server chooses the names of its tools. It must not get the permission of another tool by taking its name.
        """
        named = self.family is not None and self.family.startswith("mcp.")
        return named or self.everything or not subject.of_server


def read_selector(text: object, key: str = "tool") -> Selector:
    """The tools that `text` means, or `PolicyInvalid`."""
    if type(text) is not str or not 0 < len(text) <= _LONGEST:
        raise PolicyInvalid(f"{excerpt(text)} names no tools; write {_FORMS}", key=key)
    words = text.split(".")
    if not all(_WORD.fullmatch(word) for word in words):
        raise PolicyInvalid(f"{excerpt(text)} names no tools; write {_FORMS}", key=key)
    match words:
        case ["mcp"]:
            return Selector(text, "mcp.*", "*")
        case ["mcp", server]:
            return Selector(text, f"mcp.{server}", "*")
        case ["mcp", server, name]:
            return Selector(text, f"mcp.{server}", name)
        case [name]:
            return Selector(text, None, name)
        case [family, name]:
            return Selector(text, family, name)
        case _:
            raise PolicyInvalid(f"{excerpt(text)} has too many dots; write {_FORMS}", key=key)
