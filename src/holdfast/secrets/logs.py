"""Keeping secrets out of the log of Holdfast itself, and of whatever else a host puts the filter on."""

from __future__ import annotations

import logging
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors.world import HiddenError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from holdfast.secrets.redactor import Redactor


LOGGERS: Final = (
    *("asyncio", "holdfast", "holdfast.agents", "holdfast.compaction", "holdfast.driver", "holdfast.effects"),
    *("holdfast.engine", "holdfast.hooks", "holdfast.memory", "holdfast.on", "holdfast.policy", "holdfast.runtime"),
    *(
        "holdfast.processes",
        "holdfast.retention",
        "holdfast.secrets",
        "holdfast.shell",
        "holdfast.tasks",
        "holdfast.tools",
    ),
    "holdfast.triggers",
)
"""A filter of a logger does not see what is logged below it, so each one needs it. asyncio tells of lost errors."""
_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__)
_BROKEN: Final = "(a line of the log could not be looked through for secrets, and is left out)"


class RedactingFilter(logging.Filter):
    """Replaces secrets in whatever is logged: the message, what was put in it, the error, extra fields.

    It never drops a line and never raises. A line without secrets is left as it is. A host may put it on loggers and
    handlers of its own: ``handler.addFilter(hf.RedactingFilter(runtime.redactor))``.
    """

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Hide what is to be hidden; the line itself always passes."""
        try:
            self._hide_message(record)
            self._hide_error(record)
            self._hide_fields(record)
        except Exception:  # noqa: BLE001  what somebody logs must not break whoever logs it
            record.msg, record.args, record.exc_info, record.exc_text, record.stack_info = (
                _BROKEN,
                None,
                None,
                None,
                None,
            )
        return True

    def _hide_message(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  arguments that do not fit: the handler tells, and shows both
            record.msg = self._redactor.text(str(record.msg))
            if record.args:
                given = record.args.values() if isinstance(record.args, dict) else record.args
                record.args = tuple(self._redactor.text(str(argument)) for argument in given)
            return
        clean = self._redactor.text(message)
        if clean is not message:
            record.msg, record.args = clean, None

    def _hide_error(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            told = record.exc_text or "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            clean = self._redactor.text(told)
            if clean is not told:
                # Without the error itself: other handlers would tell it in their own words.
                record.exc_info, record.exc_text = None, clean
        elif record.exc_text:
            record.exc_text = self._redactor.text(record.exc_text)
        if record.stack_info:
            record.stack_info = self._redactor.text(record.stack_info)

    def _hide_fields(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = record.__dict__
        for name in fields.keys() - _OWN:
            fields[name] = self._redactor.value(fields[name])


@contextmanager
def hidden_in_logs(redactor: Redactor) -> Generator[RedactingFilter]:
    """Keep secrets out of the log of Holdfast as long as the block runs."""
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
