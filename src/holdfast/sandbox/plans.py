"""A program with all that it begins with, checked before anything is started. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidArgument
from holdfast.sandbox.course import program_digest
from holdfast.sandbox.limits import told
from holdfast.sandbox.steps import Failed, LimitHit
from holdfast.sandbox.values import NotPlain, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sandbox.limits import ProgramLimits
    from holdfast.sandbox.stubs import Stub


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run."""

    source: str
    digest: str
    stubs: dict[str, Stub]
    """By what programs call them."""
    variables: dict[str, Any]
    limits: ProgramLimits
    seed: str
    """Of the random numbers."""


def planned(source: object, stubs: Sequence[Stub], variables: dict[str, Any], limits: ProgramLimits, seed: str) -> Plan:
    """The plan for a program; `InvalidArgument` for what no program can begin with."""
    if not isinstance(source, str):
        raise InvalidArgument("source", source, "the text of a program")
    by_name = {stub.name: stub for stub in stubs}
    if len(by_name) != len(stubs):
        raise InvalidArgument("tools", [stub.name for stub in stubs], "functions with different names")
    known = {name: value for name, value in variables.items() if name not in by_name}
    for name in known:
        if not name.isidentifier():
            raise InvalidArgument("globals", name, "names of variables")
    try:
        values, _ = plain(known, limits.variables)
    except NotPlain as reason:
        raise InvalidArgument("globals", sorted(known), f"plain values within the limit ({reason})") from None
    digest = program_digest(source.encode(errors="replace").decode(), values, seed)
    return Plan(source=source, digest=digest, stubs=by_name, variables=values, limits=limits, seed=f"{digest}:{seed}")


def refusal(plan: Plan) -> Failed | LimitHit | None:
    """How a program ends that is not even begun."""
    try:
        size = len(plan.source.encode())
    except UnicodeEncodeError:
        return Failed("The program is not valid Unicode: it has half of a surrogate pair in it.", "check", "", None)
    if size > plan.limits.source:
        return LimitHit("source", told("source", plan.limits), "")
    return None
