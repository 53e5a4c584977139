"""Two commands side by side: where do they differ first?"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.effects.canonical import canonical, shown_key

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PATHS: Final = 8
MAX_VALUE: Final = 2 * 1024
_SHOWN: Final = 200
_ABSENT: Final = msgspec.UNSET


class Difference(msgspec.Struct, frozen=True):
    """One place where the recorded and the asked value differ. Long values are shown by length and digest."""

    path: str
    recorded: str
    asked: str


class Divergence(msgspec.Struct, frozen=True):
    """How a replay differs from its record: the first places, and how many there are."""

    total: int
    first: tuple[Difference, ...]

    def describe(self) -> str:
        """One bounded line for a person."""
        shown = "; ".join(f"{d.path}: recorded {_cut(d.recorded)}, asked {_cut(d.asked)}" for d in self.first)
        more = self.total - len(self.first)
        return f"{shown} (and {more} more)" if more else shown


def diverge(recorded: Any, asked: Any) -> Divergence:  # noqa: ANN401  any JSON value
    """Compare two JSON values; all differing paths are counted, the first eight are kept."""
    kept: list[Difference] = []
    total = 0
    for path, left, right in _differences(recorded, asked, ""):
        total += 1
        if len(kept) < MAX_PATHS:
            kept.append(Difference(path or "$", _show(left), _show(right)))
    return Divergence(total, tuple(kept))


def _differences(recorded: Any, asked: Any, path: str) -> Iterator[tuple[str, Any, Any]]:  # noqa: ANN401
    if isinstance(recorded, dict) and isinstance(asked, dict):
        left, right = cast("dict[str, Any]", recorded), cast("dict[str, Any]", asked)
        for key in sorted(left.keys() | right.keys()):
            name = shown_key(key)
            here = f"{path}.{name}" if path else name
            yield from _differences(left.get(key, _ABSENT), right.get(key, _ABSENT), here)
    elif isinstance(recorded, list | tuple) and isinstance(asked, list | tuple):
        old, new = cast("list[Any]", recorded), cast("list[Any]", asked)
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else _ABSENT
            after = new[index] if index < len(new) else _ABSENT
            yield from _differences(before, after, f"{path}[{index}]")
    elif not _same(recorded, asked):
        yield path, recorded, asked


def _same(recorded: Any, asked: Any) -> bool:  # noqa: ANN401
    # 1 == True == 1.0 and 0.0 == -0.0 in Python, but they are different JSON texts
    return type(recorded) is type(asked) and repr(recorded) == repr(asked)


def _show(value: Any) -> str:  # noqa: ANN401
    if value is _ABSENT:
        return "(absent)"
    body = canonical(value)
    if len(body) <= MAX_VALUE:
        return body.decode()
    return f"({len(body):,} bytes, sha256 {hashlib.sha256(body).hexdigest()[:16]})"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
