"""Secrets: not known, not usable, found where they must not be. No message repeats a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors.tree import UsageError, WorldError

if TYPE_CHECKING:
    from collections.abc import Sequence


class SecretUnknown(UsageError):
    """No secret of this name was given to the runtime."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        choice = f"there are {', '.join(known[:50])}" if known else "there are none"
        super().__init__(f"there is no secret {name!r} here: {choice}; name it in hf.open(secrets=...)")
        self.name = name
        self.known = tuple(known)


class SecretNameInvalid(UsageError):
    """What a secret is called can't stand in its place in every text."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the name of a secret is 1 to 64 letters, digits and . _ - and begins with a letter or _: {reason}"
        )
        self.reason = reason


class SecretTooShort(UsageError):
    """A value that can't be told from ordinary text, so nobody could keep it out of the records."""

    def __init__(self, name: str, least: int) -> None:
        super().__init__(
            f"the secret {name} has fewer than {least} characters and can't be told from ordinary text; use a longer "
            f"one, or say hf.Secrets(..., short=[{name!r}]): then it is only hidden where it stands alone, as a word"
        )
        self.name = name
        self.least = least


class SecretTooCommon(UsageError):
    """A value that is a word of which Holdfast's own records are made."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the value of the secret {name} is a word that records themselves are made of, and can't be told from "
            "them; use another value"
        )
        self.name = name


class SecretTooLong(UsageError):
    """A value that would make every text slow to look through."""

    def __init__(self, name: str, size: int, limit: int) -> None:
        super().__init__(
            f"the secret {name} has {size:,} characters, the limit is {limit:,}; keep it in a file, and its path or "
            "the key that opens it as the secret"
        )
        self.name = name
        self.size = size
        self.limit = limit


class SecretUnavailable(WorldError):
    """The function of the host that gives a secret gave none."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the secret {name} can't be had: {reason}; look at the function that was given for it")
        self.name = name
        self.reason = reason


class SecretExposed(UsageError):
    """A name or a key that holds a secret. Names are kept as they are, so it is refused."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"the {what} holds the secret {name}; it would be stored as it is: use another {what}")
        self.what = what
        self.name = name


class HiddenError(WorldError):
    """Stands for an error that told a secret: its kind, and what it said without that. Its traceback is left out."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message
