"""Keys of providers: finding one for each call, and keeping it out of errors."""

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
"""Ways to present a key."""
_REDACTED: Final = "[key]"
_SHORTEST_SECRET: Final = 8
"""Shorter keys are words such as ``EMPTY`` for local servers, and would be found everywhere."""


class Credentials:
    """Looks up the key of one endpoint for each call. Holds it in a function, so that no repr shows it."""

    __slots__ = ("_auth", "_endpoint", "_source", "is_dynamic")

    def __init__(self, endpoint: Endpoint, given: object = None, token: object = None) -> None:
        if endpoint.auth not in AUTH_SCHEMES:
            raise InvalidArgument("auth", endpoint.auth, f"one of {', '.join(AUTH_SCHEMES)}")
        if token is not None and given is not None:
            raise InvalidArgument("token_provider", token, "left out with api_key")
        if token is not None and not callable(token):
            raise InvalidArgument("token_provider", type(token), "a function that gives a token")
        self._endpoint = endpoint
        self._auth = "bearer" if token is not None else endpoint.auth
        self._source = _source(endpoint, given) if token is None else partial(_call_token_provider, token)
        self.is_dynamic = callable(given) or token is not None
        """True if a function of the host returns the key, which may take time."""

    async def key(self, limit: float) -> str:
        """Return the current key, within `limit` seconds; empty if the endpoint needs none."""
        provider = self._endpoint.provider
        if self.is_dynamic:
            key = await call_host_function(self._source, f"the key for {provider}", limit, kind="authentication")
        else:
            key = self._source()
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
        own = {"authorization": f"Bearer {key}"} if self._auth in {"bearer", "none"} else {self._auth: key}
        return own if key else {}


async def call_host_function(function: Callable[[], object], gives: str, limit: float, *, kind: str) -> object:
    """Call a function of the host, sync or async, within `limit` seconds; returns its value."""
    import asyncio  # the command line lists endpoints without an event loop

    timeout = asyncio.timeout(limit)
    try:
        async with timeout:
            given = function()
            return await given if inspect.isawaitable(given) else given
    except Exception as error:  # a function of the host
        failed = f"took longer than {limit:g} s" if timeout.expired() else f"failed with {type(error).__name__}"
    # Raised outside of the handler, because the function's own exception may hold secrets.
    raise ModelError(f"the function that gives {gives} {failed}", kind=kind)


async def _call_token_provider(token: Callable[[], object]) -> object:
    """Call a token provider. A sync one may block on the network, so it runs in a thread."""
    from asyncio import to_thread  # the command line lists endpoints without an event loop

    given = token() if inspect.iscoroutinefunction(token) else await to_thread(token)
    return await given if inspect.isawaitable(given) else given


def _source(endpoint: Endpoint, given: object) -> Callable[[], object]:
    if given is None:
        return lambda: next((key for name in endpoint.keys if (key := os.environ.get(name, "").strip())), None)
    if isinstance(given, str):
        return lambda: given
    if callable(given):
        return given
    raise InvalidArgument("api_key", type(given), "a string, or a function that gives one")


def redact_body(body: bytes, *secrets: str) -> bytes:
    """Remove secrets from a body. Call it before the body is shortened: half a key is not found."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            body = body.replace(secret.encode(), _REDACTED.encode())
    return body


def redact_error(error: ModelError, *secrets: str) -> None:
    """Remove secrets from an error, where a provider or a library repeats them."""
    for secret in secrets:
        set_message(error, redact_text(error.message, secret))
        if error.request_id is not None:
            error.request_id = redact_text(error.request_id, secret)


def redact_text(text: str, key: str) -> str:
    """Remove a key from a text, also a part of it at the end of a shortened text."""
    if len(key) < _SHORTEST_SECRET:
        return text
    text = text.replace(key, _REDACTED)
    end = text.removesuffix("...")
    for size in range(len(key) - 1, 3, -1):
        if end.endswith(key[:size]):
            return f"{end[:-size]}{_REDACTED}..."
    return text


def set_message(error: ModelError, message: str) -> None:
    """Replace the message of an error."""
    error.message = message
    error.args = (message,)
