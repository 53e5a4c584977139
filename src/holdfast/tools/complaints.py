"""What is wrong with arguments, in words that a model can act on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.tools.results import MAX_TEXT, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

MAX_PROBLEMS: Final = 8
"""How many problems with its arguments a model is told at once."""
ROOM: Final = MAX_TEXT - 400
"""For the problems, in characters; the rest is for the words around them."""

_SHOWN: Final = 80
_EXPECTED: Final = 400


def problems(details: Sequence[ErrorDetails], arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    """Each problem on a line: where it is, what is wrong, what came and what was expected."""
    lines = list(dict.fromkeys(_problem(detail, arguments, schema) for detail in details))
    told = lines[:MAX_PROBLEMS]
    room = ROOM // len(told)
    more = [f"- and {len(lines) - MAX_PROBLEMS:,} more"] if len(lines) > MAX_PROBLEMS else []
    return "\n".join([*(shorten(line, room) for line in told), *more])


def _problem(detail: ErrorDetails, arguments: dict[str, Any], schema: dict[str, Any]) -> str:
    place = detail["loc"]
    path, steps = _path(place, arguments)
    where = shorten(path, _SHOWN)
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = _part(schema, steps[:-1]).get("properties", {})
        there = f"there are: {', '.join(known)}" if known else "it takes none" if len(steps) < 2 else "leave it out"
        return f"- {where}: there is no such argument; {there}"
    expected = _expected(_part(schema, steps)) if steps else ""
    if kind == "missing":
        return f"- {where}: it is missing{f' (expected {expected})' if expected else ''}"
    given = shorten(_as_json(detail["input"]), _SHOWN)
    known = f"got {given}; expected {expected}" if expected else f"got {given}"
    return f"- {where}: {shorten(detail['msg'], _EXPECTED)} ({known})"


def _path(place: tuple[int | str, ...], arguments: object) -> tuple[str, list[int | str]]:
    """Where in the arguments, without the names that pydantic gives to the members of a union."""
    path, value = "", arguments
    steps: list[int | str] = []
    for n, step in enumerate(place):
        if isinstance(value, dict) and isinstance(step, str):
            inside = cast("dict[str, Any]", value)
            if step not in inside and n + 1 < len(place):
                continue
            value, path = inside.get(step), f"{path}.{step}" if path else step
            steps.append(step)
        elif isinstance(value, list) and isinstance(step, int):
            items = cast("list[Any]", value)
            value, path = items[step] if step < len(items) else None, f"{path}[{step}]"
            steps.append(step)
    return path or "arguments", steps


def _part(schema: dict[str, Any], steps: Sequence[int | str]) -> dict[str, Any]:
    """What the schema says about one place; nothing where it does not know it."""
    here: Any = schema
    for step in steps:
        if not isinstance(here, dict):
            return {}
        found = cast("dict[str, Any]", here)
        if isinstance(step, int):
            here = found.get("items")
        else:
            here = found.get("properties", {}).get(step, found.get("additionalProperties"))
    return cast("dict[str, Any]", here) if isinstance(here, dict) else {}


def _expected(wanted: dict[str, Any]) -> str:
    bare = {key: value for key, value in wanted.items() if key != "description"}
    return shorten(_as_json(bare), _EXPECTED) if bare else ""


def _as_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        return shorten(repr(value), _EXPECTED)
