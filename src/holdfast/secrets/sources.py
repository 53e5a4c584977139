"""Where the secrets of a runtime come from: references or functions of the host. No value is kept here."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from holdfast.errors import HoldfastError, InvalidArgument, UsageError
from holdfast.errors.caller import SecretUnknown
from holdfast.errors.world import SecretUnavailable
from holdfast.secrets.redactor import check_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.profiles.profile import Reference
    from holdfast.secrets.redactor import Redactor


Source: TypeAlias = str | Callable[[], str]
"""Where one secret is: ``env:NAME``, ``keyring:service/name``, or a function that gives it."""
SecretsGiven: TypeAlias = "Mapping[str, Source] | Callable[[str], str | None] | Secrets | None"
"""What a host may give: a source for each name, one function for all names, or `Secrets`."""
_GIVEN: Final = "references or functions by name, a function that takes a name, or hf.Secrets"


class Secrets:
    """The secrets that the tools of a runtime may use, by name, and where each is found.

    A value is looked up each time it is used, so that a secret that was changed outside is used as it now is. A
    function that takes a name answers None for a name that it does not know. `short` are names whose values may have
    fewer than six characters; such a value is only hidden where it stands as a word of its own.
    """

    __slots__ = ("_ask", "_short", "_sources")

    def __init__(self, given: Mapping[str, Source] | Callable[[str], str | None], *, short: Iterable[str] = ()) -> None:
        self._sources: dict[str, Reference | Callable[[], str]] = {}
        self._ask: Callable[[str], str | None] | None = None
        if isinstance(given, Mapping):
            sources = cast("Mapping[str, Source]", given)
            self._sources = {check_secret_name(name): _source(source) for name, source in sources.items()}
        elif callable(given):
            self._ask = given
        else:  # what was given may be a secret, so only its type is told
            raise InvalidArgument("secrets", _Unshown(given), _GIVEN)
        self._short = _names(short)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._sources) if self._ask is None else 'by a function'})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are known; none where a function is asked for each."""
        return tuple(self._sources)

    def is_short(self, name: str) -> bool:
        """Whether the value of `name` may be short."""
        return name in self._short

    def fetch(self, name: str) -> str:
        """The value as it is now; `SecretUnknown` for a name that nobody gave, `SecretMissing` where nothing is."""
        check_secret_name(name)
        if self._ask is not None:
            found = _given_by(name, self._ask, name)
            if found is None:
                raise SecretUnknown(name, self.names)
            return _text(name, found)
        source = self._sources.get(name)
        if source is None:
            raise SecretUnknown(name, self.names)
        return _text(name, _given_by(name, source)) if callable(source) else _referred(name, source)

    def at_hand(self) -> dict[str, str]:
        """The values of the environment that are set now: those can be had without asking anybody."""
        found = {
            name: os.environ.get(source.name, "")
            for name, source in self._sources.items()
            if not callable(source) and source.place == "env"
        }
        return {name: value for name, value in found.items() if value.strip()}


def secrets_of(given: SecretsGiven) -> Secrets:
    """`Secrets` in whatever form a host has given them; without any, no name is known."""
    return given if isinstance(given, Secrets) else Secrets({} if given is None else given)


def _source(given: object) -> Reference | Callable[[], str]:
    if callable(given):
        return cast("Callable[[], str]", given)
    if not isinstance(given, str):
        raise InvalidArgument("the source of a secret", _Unshown(given), "env:NAME, keyring:service/name or a function")
    from holdfast.profiles.profile import parse  # noqa: PLC0415  few processes have secrets of their own

    return parse(given)


def _referred(name: str, reference: Reference) -> str:
    from holdfast.profiles.folder import secret  # noqa: PLC0415

    return secret(reference, name, os.environ)


def _given_by(name: str, function: Callable[..., object], *args: str) -> object:
    failed = ""
    found: object = None
    try:
        found = function(*args)
    except LookupError as error:
        if not args:
            failed = type(error).__name__
    except HoldfastError:
        raise
    except Exception as error:  # noqa: BLE001  somebody else's function
        failed = type(error).__name__
    if failed:  # raised out here, because what that function raised may tell more than anybody should read
        raise SecretUnavailable(name, f"its function failed with {failed}")
    return found


def _text(name: str, found: object) -> str:
    if inspect.iscoroutine(found):
        found.close()
        raise SecretUnavailable(name, "its function is async, and secrets are asked for by plain code")
    if type(found) is not str:
        raise SecretUnavailable(name, f"its function gave a {type(found).__name__}, not a text")
    return found


def _names(given: Iterable[str]) -> frozenset[str]:
    if isinstance(given, str):
        raise InvalidArgument("short", given, "a list of names")
    try:
        return frozenset(check_secret_name(name) for name in given)
    except TypeError:
        raise InvalidArgument("short", given, "a list of names") from None


class _Unshown:
    """Stands for something in an error that must not show it."""

    def __init__(self, value: object) -> None:
        self._type = type(value).__name__

    def __repr__(self) -> str:
        return f"of the type {self._type}"


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
