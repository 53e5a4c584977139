"""Whether a request is the recorded one, and where it is not. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.models.recorded.redaction import REDACTED, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_EXCERPT: Final = 80


def request_differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Where two written requests differ. What is asked is compared, not where: another address is as good."""
    found: list[str] = []
    for what, one, other in (
        ("the path", _last(recorded), _last(asked)),
        ("the query", recorded.get("query", {}), asked["query"]),
    ):
        found += [f"{what}: {difference}" for difference in differences(one, other)]
    for name in ("body", "body_text", "body_base64"):
        if name in recorded or name in asked:
            found += differences(recorded.get(name), asked.get(name))
    return found


def differences(recorded: Any, asked: Any, place: str = "") -> Iterator[str]:  # noqa: ANN401  any JSON values
    """Where two JSON values differ, in words."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        was, now = cast("dict[str, Any]", recorded), cast("dict[str, Any]", asked)
        for name in [*was, *(name for name in now if name not in was)]:
            inner = f"{place}.{name}" if place else name
            if name not in now:
                yield f"{inner} is missing, it was {_excerpt(was[name])}"
            elif name not in was:
                yield f"{inner} is new: {_excerpt(now[name])}"
            else:
                yield from differences(was[name], now[name], inner)
    elif isinstance(recorded, list) and isinstance(asked, list):
        before, after = cast("list[Any]", recorded), cast("list[Any]", asked)
        for index, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{place}[{index}]")
        if len(before) != len(after):
            yield f"{place or 'the body'} has {len(after)} items, it had {len(before)}"
    elif (pair := _inner(recorded, asked)) is not None:
        yield from differences(*pair, place)
    elif not _same(recorded, asked):
        yield f"{place or 'the body'} is {_excerpt(asked)}, it was {_excerpt(recorded)}"


def _inner(recorded: Any, asked: Any) -> tuple[Any, Any] | None:  # noqa: ANN401
    """What two texts say that are both JSON, such as arguments of calls: where they have spaces is of no interest."""
    if not isinstance(recorded, str) or not isinstance(asked, str) or recorded == asked:
        return None
    one, other = parsed(recorded), parsed(asked)
    return None if one is None or other is None else (one, other)


def _same(recorded: Any, asked: Any) -> bool:  # noqa: ANN401
    """Whether two plain values are the same. What was taken out of the recorded one may be anything now."""
    if isinstance(recorded, str) and isinstance(asked, str) and REDACTED in recorded:
        return _fits(recorded.split(REDACTED), asked)
    return recorded == asked and isinstance(recorded, bool) == isinstance(asked, bool)


def _fits(pieces: list[str], text: str) -> bool:
    """Whether a text consists of these pieces, in this order, with anything between them."""
    first, *middle, last = pieces
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _last(request: Mapping[str, Any]) -> str:
    return str(request.get("path", "")).rstrip("/").rpartition("/")[2]


def _excerpt(value: Any) -> str:  # noqa: ANN401
    text = json.dumps(value)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}..."
