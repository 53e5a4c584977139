"""Lending secrets to the code that performs an effect: what is lent is hidden from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.secrets.redactor import Redactor
    from holdfast.secrets.sources import Secrets


class Lender:
    """What an effect gets as ``ctx.secrets``: ``ctx.secrets["NAME"]`` is the value as it is now."""

    __slots__ = ("_redactor", "_secrets")

    def __init__(self, secrets: Secrets, redactor: Redactor) -> None:
        self._secrets = secrets
        self._redactor = redactor

    def __repr__(self) -> str:
        return repr(self._secrets)

    def __getitem__(self, name: str) -> str:
        """The value of a secret. It is hidden in all that is written from now on."""
        value = self._secrets.fetch(name)
        self._redactor.register(name, value, short=self._secrets.is_short(name))
        return value

    def __contains__(self, name: object) -> bool:
        """Whether a secret of this name was given. Where a function is asked for each, only `[]` tells."""
        return name in self._secrets.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._secrets.names)

    def __len__(self) -> int:
        return len(self._secrets.names)

    def hide_at_hand(self) -> None:
        """Hide what the environment holds now, before anybody has used it: tools may read it in other ways.

        A value that can't be used is left alone: whoever asks for it is told.
        """
        for name, value in self._secrets.at_hand().items():
            try:
                self._redactor.register(name, value, short=self._secrets.is_short(name))
            except UsageError:
                continue
