"""The digests of tools whose signatures earlier releases took: approvals that wait in stores name them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, Field
from tests.every import every
from tests.unit.tools.test_tool_schemas import TAKEN, Address, Customer, Span, of

from holdfast.effects.canonical import digest
from holdfast.tools import AnyTool, tool
from holdfast.tools.definition import subject_of

GOLDEN = dict(
    line.split("\t") for line in Path(__file__).with_name("tool_digests.txt").read_text(encoding="utf-8").splitlines()
)
"""Written by the release before unions and recursive types. A line of it is never changed."""


class Single(NamedTuple):
    value: int


class Pet(BaseModel):
    name: str
    owner: str | None


def search(query: str, limit: Annotated[int, Field(ge=1, le=50)] = 10, kind: Literal["a", "b"] | None = None) -> str:
    """Search the shelves.

    Longest text first.

    Args:
        query: Words, in any order;
            a second line of it.
        limit (int): How many at most.

    Returns:
        The titles.
    """
    return f"{query}{limit}{kind}"


def register(customer: Customer, homes: dict[str, Address], spans: list[Span] | None = None) -> None:
    """Register a customer."""


def one_or_many(pets: Pet | list[Pet], single: Single, both: str | list[str] = "x") -> None: ...


TOOLS: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("function search", search, {"query": "emma"}),
    (
        "function register",
        register,
        {"customer": {"name": "n", "home": {"street": "s", "zip": "12345"}}, "homes": {}},
    ),
    ("function one_or_many", one_or_many, {"pets": {"name": "n", "owner": None}, "single": [1]}),
]
CALLS: dict[str, tuple[AnyTool, dict[str, Any]]] = {
    **{name: (of(hint), {"what": values[0]}) for name, hint, values in TAKEN},
    **{name: (tool(function), sent) for name, function, sent in TOOLS},
}


def digest_of(name: str) -> str:
    """What an approval says about a call: the digest of its tool, and its arguments with the defaults."""
    made, sent = CALLS[name]
    return digest("golden", [made.digest, subject_of(made, sent).args])


@every("name", GOLDEN)
def test_a_call_of_a_tool_keeps_the_digest_that_it_had(name: str) -> None:
    assert digest_of(name) == GOLDEN[name]
