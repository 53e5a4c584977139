"""Keeping secrets out of the log of Holdfast itself, and of whatever else a host puts the filter on."""

from __future__ import annotations

import logging
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Generator

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
