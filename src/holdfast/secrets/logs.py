"""Redaction of logs and of exceptions."""

from __future__ import annotations

import logging
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import EffectFailed, HiddenError, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from holdfast.secrets.redactor import Redactor


_AREAS: Final = """agents compaction driver effects engine exports hooks live memory on policy processes retention
    runtime secrets shell tasks telemetry tools triggers"""
LOGGERS: Final = ("asyncio", "holdfast", *(f"holdfast.{area}" for area in _AREAS.split()))
"""Each logger needs the filter: it does not apply to children. asyncio logs lost exceptions."""
_STANDARD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__)
_UNREADABLE_LINE: Final = "(a line of the log could not be looked through for secrets, and is left out)"


class RedactingFilter(logging.Filter):
    """Redacts log records: message, arguments, exception and extra fields. Never drops a record and never raises.

    A record without secrets stays as it is. Hosts may add it to their own loggers and handlers:
    ``handler.addFilter(hf.RedactingFilter(runtime.redactor))``.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record; it always passes."""
        try:
            self._redact_message(record)
            self._redact_exception(record)
            fields: dict[str, Any] = record.__dict__
            for name in fields.keys() - _STANDARD_FIELDS:
                fields[name] = self._redactor.value(fields[name])
        except Exception:  # logging must never raise
            record.msg = _UNREADABLE_LINE
            record.args = record.exc_info = record.exc_text = record.stack_info = None
        return True

    def _redact_message(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # misfit arguments: the handler will report and show them
            record.msg = self._redactor.text(str(record.msg))
            if record.args:
                given = record.args.values() if isinstance(record.args, dict) else record.args
                record.args = tuple(self._redactor.text(str(argument)) for argument in given)
            return
        clean = self._redactor.text(message)
        if clean is not message:
            record.msg, record.args = clean, None

    def _redact_exception(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            trace = record.exc_text or "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            clean = self._redactor.text(trace)
            if clean is not trace:
                # Drop the exception itself: other handlers would format it again.
                record.exc_info, record.exc_text = None, clean
        elif record.exc_text:
            record.exc_text = self._redactor.text(record.exc_text)
        if record.stack_info:
            record.stack_info = self._redactor.text(record.stack_info)


@contextmanager
def redact_logs(redactor: Redactor) -> Generator[RedactingFilter]:
    """Redact the logs of Holdfast while the block runs."""
    hiding = RedactingFilter(redactor)
    below = (name for name in list(logging.Logger.manager.loggerDict) if name.startswith("holdfast."))
    loggers = [logging.getLogger(name) for name in dict.fromkeys((*LOGGERS, *below))]
    for logger in loggers:
        logger.addFilter(hiding)
    try:
        yield hiding
    finally:
        for logger in loggers:
            logger.removeFilter(hiding)


_MAX_CHAIN: Final = 100
_MAX_SHOWN: Final = 4_096


def safe_cause(error: Exception, redactor: Redactor) -> Exception:
    """The error, or a redacted `HiddenError` if it or one of its causes holds a secret.

    For ``raise ... from``: a traceback shows all causes.
    """
    if not redactor.active or all(redactor.find(text) is None for one in _chain(error) for text in _texts(one)):
        return error
    return HiddenError(type(error).__name__, redactor.text(_message(error))[:_MAX_SHOWN])


MAX_TRACE: Final = 8_000
"""Longest traceback that is kept, in characters."""
MAX_FRAMES: Final = 40
"""Most frames of one error in a kept traceback: the first and the last ones."""
_PACKAGE: Final = str(Path(__file__).parents[1]) + "/"
_MACHINERY: Final = (
    *(_PACKAGE, "<frozen "),
    *(str(Path(logging.__file__).parents[1] / name) + "/" for name in ("asyncio", "concurrent")),
)
"""Folders whose frames lead to the code of the user."""


def safe_trace(error: BaseException, redactor: Redactor) -> str:
    """The traceback of an error from the first frame of the user's code on, redacted and cut.

    Empty for an error that Holdfast raises on purpose. Below an `EffectFailed`, the error of the effect is left out: it
    is kept with the effect.
    """
    try:
        found = traceback.TracebackException.from_exception(error, lookup_lines=False, compact=True)
        if not _trim(found, error) and isinstance(error, HoldfastError):
            return ""
        whole = "".join(found.format()).rstrip("\n").encode("utf-8", "backslashreplace").decode()
        text = redactor.text(whole)
    except Exception as trouble:  # the methods of an error are code of the user
        return f"(its traceback can't be read: {type(trouble).__name__})"
    if len(text) <= MAX_TRACE:
        return text
    half = MAX_TRACE // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half:,} characters)\n{text[-half:]}"


def _trim(found: traceback.TracebackException, error: BaseException, depth: int = 0) -> bool:
    """Drop the frames before those of the user's code; True if the error passed such code."""
    frames = list(found.stack)
    first = next((at for at, frame in enumerate(frames) if not frame.filename.startswith(_MACHINERY)), None)
    frames = frames[first or 0 :]
    if len(frames) > MAX_FRAMES:
        frames = [*frames[: MAX_FRAMES // 2], *frames[-MAX_FRAMES // 2 :]]
    found.stack = traceback.StackSummary.from_list(frames)
    if isinstance(error, EffectFailed) or depth >= _MAX_CAUSES:
        found.__cause__ = found.__context__ = None
    for below, cause in ((found.__cause__, error.__cause__), (found.__context__, error.__context__)):
        if below is not None and cause is not None:
            _trim(below, cause, depth + 1)
    for below, member in zip(found.exceptions or (), getattr(error, "exceptions", ()), strict=False):
        _trim(below, member, depth + 1)
    return first is not None


_MAX_CAUSES: Final = 10


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and all its causes, also those in groups."""
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


def _texts(error: BaseException) -> Iterator[str]:
    yield _message(error)
    try:
        yield repr(error.args)
    except Exception:  # an argument without a repr can't leak
        return
    yield from getattr(error, "__notes__", ())


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as trouble:
        return f"(its message can't be read: {type(trouble).__name__})"
