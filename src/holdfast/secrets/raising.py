"""Errors on their way to the caller, without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors.secrets import HiddenError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.secrets.redactor import Redactor

_MAX_CHAIN: Final = 100
_MAX_SHOWN: Final = 4_096


def safe_cause(error: Exception, redactor: Redactor) -> Exception:
    """The error itself if neither it nor what led to it tells a secret; otherwise a `HiddenError` in its place.

    For ``raise ... from``: a traceback shows all causes.
    """
    if not redactor.active or all(redactor.found(said) is None for one in _chain(error) for said in _said(one)):
        return error
    message = redactor.text(_words(error))[:_MAX_SHOWN]
    return HiddenError(type(error).__name__, message)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it, also in groups."""
    seen: set[int] = set()
    left: list[BaseException] = [error]
    while left and len(seen) < _MAX_CHAIN:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [found for found in (one.__cause__, one.__context__) if found is not None]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions  # pyright: ignore[reportUnknownMemberType]


def _said(error: BaseException) -> Iterator[str]:
    yield _words(error)
    try:
        yield repr(error.args)
    except Exception:  # noqa: BLE001  an argument that can't be shown is not shown by others either
        return
    yield from getattr(error, "__notes__", ())


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:  # noqa: BLE001
        return f"(its message can't be read: {type(trouble).__name__})"
