"""What can be wrong with profiles. No message repeats a value that might be a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import UsageError, WorldError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class ProfileUnknown(UsageError):
    """There is no profile of this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        choice = f"there are {', '.join(known[:20])}" if known else "there are none"
        super().__init__(f"there is no profile {name!r}: {choice}; 'holdfast profiles set {name} ...' makes it")
        self.name = name
        self.known = tuple(known)


class ProfileInvalid(UsageError):
    """A profile says what can't be meant."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the profile {name!r} is not valid: {reason}")
        self.name = name
        self.reason = reason


class SecretRefused(UsageError):
    """A profile was to hold a secret. It only holds where a secret is found."""

    def __init__(self, name: str, field: str) -> None:
        super().__init__(
            f"{field} of the profile {name!r} looks like a key itself; profiles hold no secrets: put it into an "
            "environment variable or the system keyring, and write env:NAME or keyring:service/name under secrets"
        )
        self.name = name
        self.field = field


class ReferenceInvalid(UsageError):
    """Something that does not say where a secret is. It may be the secret, so it is not shown."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a reference to a secret is env:NAME or keyring:service/name: {reason}")
        self.reason = reason


class SecretMissing(UsageError):
    """Nothing is where a reference leads."""

    def __init__(self, reference: str, wanted_as: str) -> None:
        super().__init__(f"{wanted_as} is to be taken from {reference}, but nothing is there; set it")
        self.reference = reference
        self.wanted_as = wanted_as


class KeyringUnavailable(WorldError):
    """The system keyring can't be asked."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"{reference} can't be read: {reason}")
        self.reference = reference
        self.reason = reason


class ProfilesUnsafe(UsageError):
    """Others could have written a profile. It names code that is run, so it is not obeyed."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"{path} is not trusted: {reason}; {remedy}")
        self.path = path
        self.reason = reason


class ProfilesHomeless(UsageError):
    """There is no place for profiles."""

    def __init__(self) -> None:
        super().__init__("there is no home folder to keep profiles in; name a folder with HOLDFAST_PROFILES")


class ProfilesBusy(WorldError):
    """Another process holds the profiles."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"another process is changing the profiles in {path}; try again")
        self.path = path
