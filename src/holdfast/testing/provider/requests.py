"""A request as a provider gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.testing.dialects import Asked
    from holdfast.testing.provider.faults import ProviderFault


@dataclass(slots=True)
class ProviderRequest:
    """A request as it came. Headers have small letters; what may hold a key is not in its `repr`."""

    number: int
    asked: Asked
    path: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    fault: ProviderFault | None = None
    """What it met."""

    @property
    def json(self) -> Any:  # noqa: ANN401  whatever was sent
        """The body."""
        return msgspec.json.decode(self.body)
