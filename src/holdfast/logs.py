"""The log of a service: events with fields, written as key=value or as JSON.

Holdfast logs to children of the logger ``holdfast`` and configures no handler by itself. `configure` is for programs
that have no logging of their own. Any handler shows the fields as text; a handler of yours finds them in the attributes
`event` and `fields` of a record.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from holdfast.errors import InvalidArgument

LEVELS: Final = ("debug", "info", "warning", "error", "critical")


class _EventText:
    """The text of an event, made only if a handler writes it."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: Mapping[str, Any]) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={_value_text(value)}" for name, value in self.fields.items())])


def log_event(logger: logging.Logger, level: int, event: str, /, *, raised: object = None, **fields: object) -> None:
    """Log an event with its fields; those that are None are left out. `raised` adds the traceback of an error."""
    if logger.isEnabledFor(level):
        known = {name: value for name, value in fields.items() if value is not None}
        extra, error = {"event": event, "fields": known}, raised if isinstance(raised, BaseException) else None
        text: object = _EventText(event, known)
        if error is not None and not (trace := "".join(traceback.format_exception(error))).isascii():
            shown = trace.encode("utf-8", "backslashreplace").decode()
            if shown != trace:  # a handler could not write a lone surrogate
                text, error = f"{text}\n{shown.rstrip()}", None
        logger.log(level, "%s", text, exc_info=error, extra=extra, stacklevel=2)


def configure(level: str = "info", *, json: bool = False, stream: TextIO | None = None) -> logging.Handler:
    """Write the log of Holdfast to `stream` (standard error) as text or, with `json`, as one JSON object to a line.

    For programs without logging of their own. Calling it again replaces the handler of the call before. Secrets of open
    runtimes are redacted before any handler sees a record.
    """
    if not isinstance(level, str) or level.lower() not in LEVELS:  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("level", level, f"one of {', '.join(LEVELS)}")
    logger = logging.getLogger("holdfast")
    for earlier in [handler for handler in logger.handlers if isinstance(handler.formatter, _Lines)]:
        logger.removeHandler(earlier)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLines() if json else _Lines())
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # else a handler of the root would write each line again
    return handler


class _Lines(logging.Formatter):
    """Time, level, logger, and the event with its fields; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        text = _escaped(record.getMessage())
        line = f"{_time(record)} {record.levelname.lower()} {record.name} {text}"
        trace = _trace(self, record)
        return f"{line}\n{_escaped(trace, lines=True)}" if trace else line


class _JsonLines(_Lines):
    """One JSON object to a line: `at`, `level`, `logger`, `event`, the fields, and `trace` after an error."""

    def format(self, record: logging.LogRecord) -> str:
        import json  # a program that logs no JSON does not load it

        fields = getattr(record, "fields", None)
        line: dict[str, Any] = dict(fields) if isinstance(fields, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
        event = getattr(record, "event", None)
        head = {"at": _time(record), "level": record.levelname.lower(), "logger": record.name}
        head["event"] = event if isinstance(event, str) else record.getMessage()
        if trace := _trace(self, record):
            line["trace"] = trace
        return json.dumps({**head, **{name: line[name] for name in line if name not in head}}, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_text:
        return record.exc_text
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] is not None else ""


def _value_text(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and not any(mark in text for mark in ' "='):
        return text
    import json

    return json.dumps(text, ensure_ascii=not text.isprintable())


def _escaped(text: str, *, lines: bool = False) -> str:
    """The text without characters that could control a terminal; line breaks stay only with `lines`."""
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    shown = [one if one.isprintable() or one in kept else one.encode("unicode_escape").decode() for one in text]
    return "".join(shown)
