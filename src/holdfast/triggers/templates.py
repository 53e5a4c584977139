"""Texts with places for what an occurrence is about: ``{date}``, ``{path}``, ``{payload.order.id}``. Pure.

A text that is nothing but one place becomes the value itself; anywhere else the value is written as text, and lists and
objects as JSON. There is nothing else in a template: no formats, no attributes, no code.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.errors.triggers import TemplateInvalid, TemplateUnfilled
from holdfast.triggers.schedules import to_datetime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

PAYLOAD: Final = "payload"
WORDS: Final = frozenset(("trigger", "occurrence", "revision", "date", "time", "datetime", "timestamp", PAYLOAD))
FILE_WORDS: Final = frozenset(("path", "file"))
"""Only where files are watched."""
_OUTSIDE: Final = frozenset((PAYLOAD, "occurrence", *FILE_WORDS))
LONGEST: Final = 256 * 1024
"""What a text may become, in characters."""
_PLACE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PATH: Final = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", re.ASCII)


def check(template: object, words: frozenset[str] = WORDS) -> None:
    """Raise `TemplateInvalid` for the first place, however deep, that nothing can be put into."""
    if isinstance(template, str):
        _check_text(template, words)
    elif isinstance(template, dict):
        for inner in cast("dict[str, object]", template).values():
            check(inner, words)
    elif isinstance(template, list | tuple):
        for inner in cast("list[object]", template):
            check(inner, words)


def _check_text(template: str, words: frozenset[str]) -> None:
    for found in _PLACE.finditer(template):
        whole, place = found.group(0), found.group(1)
        if whole in {"{{", "}}"}:
            continue
        if place is None or not _PATH.fullmatch(place):
            raise TemplateInvalid(template, f"{whole!r} is no place")
        word, dot, _ = place.partition(".")
        if word not in words:
            raise TemplateInvalid(template, f"there is no {{{word}}}; there are {', '.join(sorted(words))}")
        if dot and word != PAYLOAD:
            raise TemplateInvalid(template, f"{{{word}}} has no parts")


def tells_of_outside(template: object) -> bool:
    """Whether a place of the template holds what somebody outside wrote."""
    if isinstance(template, str):
        places = (found.group(1) for found in _PLACE.finditer(template))
        return any(place is not None and place.partition(".")[0] in _OUTSIDE for place in places)
    if isinstance(template, dict):
        return any(map(tells_of_outside, cast("dict[str, object]", template).values()))
    return isinstance(template, list | tuple) and any(map(tells_of_outside, cast("list[object]", template)))


def fill(template: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401  any JSON value
    """The template with its places filled; `TemplateUnfilled` where something is lacking or becomes too long."""
    if isinstance(template, str):
        return _fill_text(template, values)
    if isinstance(template, dict):
        return {key: fill(inner, values) for key, inner in cast("dict[str, Any]", template).items()}
    if isinstance(template, list | tuple):
        return [fill(inner, values) for inner in cast("list[Any]", template)]
    return template


def _fill_text(template: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    alone = _PLACE.fullmatch(template)
    if alone is not None and alone.group(1) is not None:
        return _value(alone.group(1), values)
    filled = _PLACE.sub(lambda found: _shown(found, values), template)
    if len(filled) > LONGEST:
        raise TemplateUnfilled(PAYLOAD, f"the text becomes {len(filled):,} characters long, the limit is {LONGEST:,}")
    return filled


def _shown(found: re.Match[str], values: Mapping[str, Any]) -> str:
    if found.group(1) is None:
        return found.group(0)[0]
    value = _value(found.group(1), values)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _value(place: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401
    value: Any = values
    for part in place.split("."):
        if isinstance(value, list) and part.isdigit() and int(part) < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[int(part)]
        elif isinstance(value, dict) and part in value:
            value = cast("dict[str, Any]", value)[part]
        else:
            raise TemplateUnfilled(place, f"there is no {part!r}")
    return value


def values_of(  # noqa: PLR0913  they are what there is to say
    *, trigger: str, revision: int, occurrence: str, at: int, where: tzinfo, payload: object
) -> dict[str, Any]:
    """What the places of an occurrence hold. Dates and times are those of the trigger's time zone."""
    moment = to_datetime(at, where)
    found: dict[str, Any] = {
        "trigger": trigger,
        "revision": revision,
        "occurrence": occurrence,
        "date": moment.date().isoformat(),
        "time": moment.strftime("%H:%M"),
        "datetime": moment.isoformat(timespec="seconds"),
        "timestamp": at // 1000,
        PAYLOAD: payload,
    }
    if isinstance(payload, dict):
        given = cast("dict[str, Any]", payload)
        found |= {"path": given.get("path"), "file": given.get("name")}
    return found
