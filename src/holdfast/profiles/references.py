"""Secrets by reference: ``env:NAME`` or ``keyring:service/name``. Pure."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from holdfast.errors import InvalidId
from holdfast.names import check_id
from holdfast.profiles.errors import ReferenceInvalid

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
"""What an environment variable may be called."""
_RANDOM: Final = re.compile(r"(?=[A-Za-z]*\d)(?=\w*[a-z])(?=\w*[A-Z])[A-Za-z0-9]{24,}|\b[0-9a-f]{32,}\b", re.ASCII)
"""Words that nobody makes up."""
_SEPARATORS: Final = re.compile(r"[/\\:=,;@\s]+")


class Reference(NamedTuple):
    """Where a secret is."""

    place: Literal["env", "keyring"]
    service: str
    """Of the keyring; empty for a variable."""
    name: str

    def __str__(self) -> str:
        return f"{self.place}:{self.service}{'/' if self.service else ''}{self.name}"


def parse(text: str) -> Reference:
    """The reference that a text is; `ReferenceInvalid` when it is none."""
    place, colon, rest = text.partition(":")
    if not colon or place not in {"env", "keyring"}:
        raise ReferenceInvalid("it begins with one of these words")
    if looks_like_key(rest):
        raise ReferenceInvalid("what follows looks like a key itself, not like the name of one")
    if place == "env":
        if not VARIABLE.fullmatch(rest):
            raise ReferenceInvalid("what follows env: is the name of a variable, of letters, digits and _")
        return Reference("env", "", rest)
    service, _, name = rest.rpartition("/")
    try:
        return Reference("keyring", check_id("keyring service", service), check_id("keyring name", name))
    except InvalidId:
        raise ReferenceInvalid("what follows keyring: is a service and a name, with a slash between them") from None


def looks_like_key(text: str, *, place: bool = False) -> bool:
    """Whether a text has the shape of a key. The name of a folder (`place`) may be any random word."""
    from holdfast.models.recorded.redaction import Secrets  # noqa: PLC0415  most commands need none of it

    # A shape is only looked for where a word begins; here that is also behind a separator.
    shaped = any(Secrets().text(piece) != piece for piece in {text, *_SEPARATORS.split(text)})
    return shaped or (not place and _RANDOM.search(text) is not None)
