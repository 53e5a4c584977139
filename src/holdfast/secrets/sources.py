"""Sources of a runtime's secrets: references, or functions of the host. No value is kept."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from holdfast.errors import HoldfastError, InvalidArgument, SecretUnavailable, SecretUnknown, UsageError
from holdfast.secrets.redactor import Redactor, check_secret_name

if TYPE_CHECKING:
    from holdfast.profiles import SecretReference


SecretSource: TypeAlias = str | Callable[[], str]
"""Source of one secret: ``env:NAME``, ``keyring:service/name``, or a function that returns it."""
SecretsInput: TypeAlias = "Mapping[str, SecretSource] | Callable[[str], str | None] | Secrets | None"
"""Accepted by `hf.open`: a source for each name, one function for all names, or `Secrets`."""
_ACCEPTED: Final = "references or functions by name, a function that takes a name, or hf.Secrets"


class Secrets:
    """The secrets that the tools of a runtime may use, by name.

    A value is looked up at each use, so a rotated secret takes effect at once. A function that takes a name returns
    None for an unknown name. `short` are names whose values may have fewer than six characters; such a value is
    redacted only as a whole word.
    """

    __slots__ = ("_lookup", "_short", "_sources")

    def __init__(
        self, given: Mapping[str, SecretSource] | Callable[[str], str | None], *, short: Iterable[str] = ()
    ) -> None:
        self._sources: dict[str, SecretReference | Callable[[], str]] = {}
        self._lookup: Callable[[str], str | None] | None = None
        if isinstance(given, Mapping):
            sources = cast("Mapping[str, SecretSource]", given)
            self._sources = {check_secret_name(name): _parse_source(source) for name, source in sources.items()}
        elif callable(given):
            self._lookup = given
        else:  # the value may be a secret, so the error names only its type
            raise InvalidArgument("secrets", type(given), _ACCEPTED)
        if isinstance(short, str):
            raise InvalidArgument("short", short, "a list of names")
        try:
            self._short = frozenset(check_secret_name(name) for name in short)
        except TypeError:
            raise InvalidArgument("short", short, "a list of names") from None

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._sources) if self._lookup is None else 'by a function'})"

    @property
    def names(self) -> tuple[str, ...]:
        """The known names; empty if a function looks them up."""
        return tuple(self._sources)

    def is_short(self, name: str) -> bool:
        """True if the value of `name` may be short."""
        return name in self._short

    def fetch(self, name: str) -> str:
        """The current value; `SecretUnknown` for an unknown name, `SecretMissing` for an empty source."""
        check_secret_name(name)
        if self._lookup is not None:
            found = _call_source(name, self._lookup, name)
            if found is None:
                raise SecretUnknown(name, self.names)
            return _check_value(name, found)
        source = self._sources.get(name)
        if source is None:
            raise SecretUnknown(name, self.names)
        if callable(source):
            return _check_value(name, _call_source(name, source))
        from holdfast.profiles import read_secret  # rarely needed

        return read_secret(source, name, os.environ)

    def at_hand(self) -> dict[str, str]:
        """The secrets in the environment now."""
        found = {
            name: os.environ.get(source.name, "")
            for name, source in self._sources.items()
            if not callable(source) and source.place == "env"
        }
        return {name: value for name, value in found.items() if value.strip()}


def make_secrets(given: SecretsInput) -> Secrets:
    """Make `Secrets` from any accepted input."""
    return given if isinstance(given, Secrets) else Secrets({} if given is None else given)


def _parse_source(given: object) -> SecretReference | Callable[[], str]:
    if callable(given):
        return cast("Callable[[], str]", given)
    if not isinstance(given, str):
        raise InvalidArgument("the source of a secret", type(given), "env:NAME, keyring:service/name or a function")
    from holdfast.profiles import parse_reference  # rarely needed

    return parse_reference(given)


def _call_source(name: str, function: Callable[..., object], *args: str) -> object:
    failed = ""
    found: object = None
    try:
        found = function(*args)
    except LookupError as error:
        if not args:
            failed = type(error).__name__
    except HoldfastError:
        raise
    except Exception as error:  # a function of the host
        failed = type(error).__name__
    if failed:  # outside of the handler: the function's own exception may hold secrets
        raise SecretUnavailable(name, f"its function failed with {failed}")
    return found


def _check_value(name: str, found: object) -> str:
    if inspect.iscoroutine(found):
        found.close()
        raise SecretUnavailable(name, "its function is async, and secrets are asked for by plain code")
    if type(found) is not str:
        raise SecretUnavailable(name, f"its function gave a {type(found).__name__}, not a text")
    return found


class SecretAccess:
    """``ctx.secrets`` of an effect: ``ctx.secrets["NAME"]`` is the current value."""

    __slots__ = ("_redactor", "_secrets")

    def __init__(self, secrets: Secrets, redactor: Redactor) -> None:
        self._secrets = secrets
        self._redactor = redactor

    def __repr__(self) -> str:
        return repr(self._secrets)

    def __getitem__(self, name: str) -> str:
        """The value of a secret. From now on it is redacted everywhere."""
        value = self._secrets.fetch(name)
        self._redactor.register(name, value, short=self._secrets.is_short(name))
        return value

    def __contains__(self, name: object) -> bool:
        """True if the name is known. If a function looks secrets up, only `[]` can tell."""
        return name in self._secrets.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._secrets.names)

    def __len__(self) -> int:
        return len(self._secrets.names)

    def hide_environment(self) -> None:
        """Redact secrets of the environment before their first use: tools may read them in other ways.

        Skips an invalid value, whose first use raises the error.
        """
        for name, value in self._secrets.at_hand().items():
            try:
                self._redactor.register(name, value, short=self._secrets.is_short(name))
            except UsageError:
                continue
