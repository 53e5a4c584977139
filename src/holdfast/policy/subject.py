"""What a policy is asked about, and what it answers. Data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from holdfast.records import InputTaint

if TYPE_CHECKING:
    from collections.abc import Mapping

Verdict: TypeAlias = Literal["allow", "ask", "deny"]
STRICTNESS: Final[dict[Verdict, int]] = {"allow": 0, "ask": 1, "deny": 2}
"""How strict each verdict is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One tool call as a policy sees it: the call as it will run, and what its tool says about itself."""

    tool: str
    args: Mapping[str, Any]
    """Plain JSON, with the defaults of what the model left out."""
    family: str | None = None
    """``files``, ``shell``, ...; ``mcp.SERVER`` for a tool of an MCP server."""
    read_only: bool = False
    untrusted: bool = False
    """Whether what it returns was written by strangers."""
    private: bool = False
    """Whether it reads what is not public."""
    external: bool | None = None
    """Whether something leaves through it; None where nobody said: then it does, unless it only reads."""
    paths: tuple[str, ...] = ()
    """The parameters that are paths."""
    command: str | None = None
    """The parameter that is a command."""
    url: str | None = None
    """The parameter that is a URL."""
    digest: str = ""
    """Of the definition of the tool."""
    base: str | None = None
    """The folder that relative paths begin at; None: that of this process."""

    @property
    def reaches_out(self) -> bool:
        """Whether something may leave through this call."""
        return not self.read_only if self.external is None else self.external

    @property
    def of_server(self) -> bool:
        """Whether an MCP server offers the tool, and so chose its name."""
        return self.family is not None and self.family.split(".")[0] == "mcp"


@dataclass(frozen=True, slots=True)
class Call:
    """What a predicate sees of a call. The arguments are a copy: changing them changes nothing."""

    tool: str
    args: dict[str, Any]
    family: str | None = None


@dataclass(frozen=True, slots=True)
class Taint:
    """What a turn has taken in so far, and the first records with which it did."""

    untrusted_input: bool = False
    private_data: bool = False
    untrusted_by: str = field(default="", compare=False)
    private_by: str = field(default="", compare=False)

    @classmethod
    def of(cls, given: InputTaint) -> Taint:
        """The taint that an input or an answer brings."""
        return cls(bool(given.untrusted), bool(given.private), given.untrusted, given.private)

    @property
    def as_input(self) -> InputTaint:
        """The same for an input or an answer that tells of it."""
        return InputTaint(
            (self.untrusted_by or "an earlier record") if self.untrusted_input else "",
            (self.private_by or "an earlier record") if self.private_data else "",
        )

    def joined(self, other: Taint) -> Taint:
        """What was taken in by both. The records of the first are kept."""
        if not (other.untrusted_input or other.private_data):
            return self
        return Taint(
            self.untrusted_input or other.untrusted_input,
            self.private_data or other.private_data,
            self.untrusted_by if self.untrusted_input else other.untrusted_by,
            self.private_by if self.private_data else other.private_by,
        )

    def after(self, subject: Subject, by: str = "") -> Taint:
        """The taint of the turn once the result of this call, the record `by`, is in it. It never goes away."""
        return self.joined(Taint(subject.untrusted, subject.private, by, by))


CLEAN: Final = Taint()


class Decision(msgspec.Struct, frozen=True):
    """What a policy says about one call, and why."""

    verdict: Verdict
    rule: str
    """The rule that decided, with its number; or what stands in its place: ``default``, ``taint``."""
    why: str
    expires_ms: int | None = None
    """How long the question stays open, where it is one; None: without end."""
    tainted: bool = False
    """Whether a person must be asked because of what the turn has taken in, whatever rules say about the call. No
    permission that was given once and for all answers such a question."""
