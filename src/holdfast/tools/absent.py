"""Values that a model may leave out, because null is meant. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast


@dataclass(frozen=True, slots=True)
class Absent:
    """Where a value that may be null may also be left out, which the function's own types do not know."""

    names: tuple[str, ...]
    """Properties that are null where they are missing."""
    properties: dict[str, Absent]
    items: Absent | None = None
    values: Absent | None = None

    def filled(self, value: object) -> object:
        """`value` with null where something was left out."""
        if isinstance(value, list):
            items = cast("list[object]", value)
            return [self.items.filled(item) for item in items] if self.items else items
        if not isinstance(value, dict):
            return value
        found = cast("dict[str, object]", value)
        inside = {name: self._inner(name).filled(item) for name, item in found.items()}
        return {**dict.fromkeys(self.names), **inside}

    def _inner(self, name: str) -> Absent:
        return self.properties.get(name) or self.values or NOTHING


NOTHING: Final = Absent((), {})
