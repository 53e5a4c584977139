"""One schema for a choice of several, where that keeps their meaning. Pure."""

from __future__ import annotations

from typing import Any, Final

ANYTHING: Final = "Any JSON value."
"""What is said of a place where any value fits."""

_SCALARS: Final[frozenset[str]] = frozenset(("string", "integer", "number", "boolean"))
_NUMBERS: Final = ["integer", "number"]


class NoForm(Exception):
    """A place in a schema that not every provider takes."""

    def __init__(self, place: tuple[str, ...], reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


def joined(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema that stands for all: whatever fits it, fits one of them, and nothing that matters is lost."""
    distinct = _distinct(schemas)
    if len(distinct) == 1:
        return distinct[0]
    if any("type" not in schema for schema in distinct):
        return {"description": ANYTHING}
    kinds = {str(schema["type"]) for schema in distinct}
    if sorted(kinds) == _NUMBERS:
        # Every whole number is a number; the bounds of both can't be kept.
        wide = [schema for schema in distinct if schema["type"] == "number"]
        return {"type": "number"} if _open(wide) else _refused(kinds)
    if len(kinds) == 1 and kinds <= _SCALARS:
        return _of_one_kind(kinds.pop(), distinct)
    listed = _one_or_many(distinct)
    return listed if listed is not None else _refused(kinds)


def _of_one_kind(kind: str, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """The widest of several scalars of one type."""
    if _open(schemas):
        return {"type": kind}
    if all("enum" in schema for schema in schemas):
        return {"type": kind, "enum": _distinct([choice for schema in schemas for choice in schema["enum"]])}
    # Several ways to write one type: the type is said, and the ways in words.
    ways = [_way(schema) for schema in schemas]
    return {"type": kind, "description": f"One of: {'; '.join(ways)}."}


def _way(schema: dict[str, Any]) -> str:
    rest = {key: value for key, value in schema.items() if key not in {"type", "description"}}
    said = [f"{key} {value}" for key, value in rest.items()]
    described = str(schema.get("description", "")).rstrip(".")
    return ", ".join([*([described] if described else []), *said])


def _one_or_many(schemas: list[dict[str, Any]]) -> dict[str, Any] | None:
    """`T | list[T]` is a list: one is a list of one."""
    lists = [schema for schema in schemas if schema["type"] == "array"]
    others = [schema for schema in schemas if schema["type"] != "array"]
    if len(lists) == 1 and others and lists[0]["items"] == joined(others):
        return lists[0]
    return None


def _open(schemas: list[dict[str, Any]]) -> bool:
    """Whether one of them takes every value of its type."""
    return any(schema.keys() <= {"type"} for schema in schemas)


def _distinct(values: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(type(value) is type(other) and value == other for other in found):
            found.append(value)
    return found


def _refused(kinds: set[str]) -> dict[str, Any]:
    named = " or ".join(sorted(kinds))
    several = f"one of several {named}s" if len(kinds) == 1 else named
    reason = f"it is {several}, and not every provider takes a choice of types"
    raise NoForm((), f"{reason}; use one type, one model with optional fields, or a tool for each")
