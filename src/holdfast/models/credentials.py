"""Keys of providers: where one comes from at each call, and how it is kept out of whatever is said about the call."""

from __future__ import annotations

import inspect
import os
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.errors import InvalidArgument, ModelError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.models.dialect import Endpoint


ApiKey: TypeAlias = "str | Callable[[], str | Awaitable[str]]"
TokenProvider: TypeAlias = "Callable[[], str | Awaitable[str]]"
Headers: TypeAlias = "Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]"
AUTH_SCHEMES: Final = ("bearer", "x-api-key", "x-goog-api-key", "api-key", "none")
"""The ways to present a key."""
_NO_KEY: Final = "[key]"
_SHORTEST_SECRET: Final = 8
"""What is shorter is a word such as ``EMPTY`` that local servers take for a key, and would be found everywhere."""


class Credentials:
    """The key of one endpoint, asked for anew at each call. Only a function is kept, so that no repr shows it."""

    __slots__ = ("_auth", "_endpoint", "_source", "asked")

    def __init__(self, endpoint: Endpoint, given: object = None, token: object = None) -> None:
        if endpoint.auth not in AUTH_SCHEMES:
            raise InvalidArgument("auth", endpoint.auth, f"one of {', '.join(AUTH_SCHEMES)}")
        if token is not None and given is not None:
            raise InvalidArgument("token_provider", token, "left out where api_key is given")
        if token is not None and not callable(token):
            raise InvalidArgument("token_provider", type(token), "a function that gives a token")
        self._endpoint = endpoint
        self._auth = "bearer" if token is not None else endpoint.auth
        self._source = _source(endpoint, given) if token is None else partial(_in_thread, token)
        self.asked = callable(given) or token is not None
        """Whether somebody's function gives it, which may take its time."""

    async def key(self) -> str:
        """The key as it is now; empty where the endpoint needs none."""
        failed = ""
        key: object = None
        try:
            key = self._source()
            if inspect.isawaitable(key):
                key = await key
        except Exception as error:  # noqa: BLE001  somebody else's function
            failed = type(error).__name__
        if failed:  # raised out here, because what that function raised may tell more than anybody should read
            message = f"the function that gives the key for {self._endpoint.provider} failed with {failed}"
            raise ModelError(message, kind="authentication")
        return self._checked(key)

    def unasked(self) -> str:
        """The same, where no function of somebody has to be asked."""
        return self._checked(self._source())

    def _checked(self, key: object) -> str:
        provider = self._endpoint.provider
        if key is None:
            if not self._endpoint.keys or self._endpoint.auth == "none":
                return ""
            names = " or ".join(self._endpoint.keys)
            raise ModelError(f"no key for {provider}: set {names}, or pass api_key", kind="authentication")
        text = key.strip() if isinstance(key, str) else ""
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            message = f"the key for {provider} is not one word of plain characters"
            raise ModelError(message, kind="authentication")
        return text

    def header(self, key: str) -> dict[str, str]:
        """The header that presents `key`."""
        if not key:
            return {}
        if self._auth in {"bearer", "none"}:
            return {"authorization": f"Bearer {key}"}
        return {self._auth: key}


async def _in_thread(token: Callable[[], object]) -> object:
    """What a token provider gives. One that is not async asks a server and blocks meanwhile: it runs in a thread."""
    from asyncio import to_thread  # noqa: PLC0415  the command line looks endpoints up without an event loop

    given = token() if inspect.iscoroutinefunction(token) else await to_thread(token)
    return await given if inspect.isawaitable(given) else given


def _in_environment(names: tuple[str, ...]) -> str | None:
    for name in names:
        if found := os.environ.get(name, "").strip():
            return found
    return None


def _source(endpoint: Endpoint, given: object) -> Callable[[], object]:
    if given is None:
        return partial(_in_environment, endpoint.keys)
    if isinstance(given, str):
        return lambda: given
    if callable(given):
        return given
    raise InvalidArgument("api_key", type(given), "a string, or a function that gives one")


def redact_body(body: bytes, *secrets: str) -> bytes:
    """What a provider sent, without the key. Before anybody shortens it: half a key could not be found any more."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            body = body.replace(secret.encode(), _NO_KEY.encode())
    return body


def redact_error(error: ModelError, *secrets: str) -> None:
    """Take out the key, and values of headers that are as good as one, where a provider or a library repeats them."""
    for secret in secrets:
        set_message(error, redact_text(error.message, secret))
        if error.request_id is not None:
            error.request_id = redact_text(error.request_id, secret)


def redact_text(text: str, key: str) -> str:
    """A text without the key; one that was cut may end in the middle of it."""
    if len(key) < _SHORTEST_SECRET:
        return text
    text = text.replace(key, _NO_KEY)
    end = text.removesuffix("...")
    for size in range(len(key) - 1, 3, -1):
        if end.endswith(key[:size]):
            return f"{end[:-size]}{_NO_KEY}..."
    return text


def set_message(error: ModelError, message: str) -> None:
    """Give an error other words."""
    error.message = message
    error.args = (message,)
