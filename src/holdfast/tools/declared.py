"""What a function's author says about it as a tool, checked where it is said."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from holdfast.errors import ToolInvalid, UsageError
from holdfast.names import check_id
from holdfast.tools.retries import ToolRetryPolicy, retry_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OnInterrupt: TypeAlias = Literal["unknown", "ask"]
"""Who is told when nobody can say whether an interrupted call took effect: the model, or a person."""
Span: TypeAlias = "float | timedelta | None"
"""Seconds, or a timedelta; None where nothing is said."""

OUTPUT_LIMIT: Final = 50_000
"""Longest text of one result that a model gets, in characters, where a tool says nothing else.

About 12,000 tokens: a long file or a full page of search results, and still twenty of them in one conversation.
"""
LEAST_OUTPUT: Final = 1_000
"""Smallest limit that can be set: a marker and something around it must fit."""
MOST_OUTPUT: Final = 10_000_000
MOST_PARALLEL: Final = 10_000

_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
_FLAGS: Final = ("read_only", "idempotent", "untrusted", "polling", "destructive", "background")
_OPEN: Final = frozenset(("destructive", "background"))  # nobody need say


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the decorator was given, unchecked."""

    name: str | None
    read_only: bool
    idempotent: bool
    destructive: bool | None
    timeout: Span
    inline_budget: Span
    max_parallel: int | None
    output_limit: int | None
    retry: ToolRetryPolicy | int | None
    background: bool | None
    on_interrupt: OnInterrupt
    reconcile: Callable[..., Any] | None
    untrusted: bool
    polling: bool
    reach: object
    version: str | None
    description: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the calls of a tool are carried out. See `tool` for what each of them means."""

    timeout: float | None = None
    inline_budget: float | None = None
    max_parallel: int | None = None
    output_limit: int = OUTPUT_LIMIT
    retry: ToolRetryPolicy | None = None
    background: bool | None = None
    on_interrupt: OnInterrupt = "unknown"
    untrusted: bool = False
    polling: bool = False


def checked_terms(said: Said, label: str) -> Terms:
    """What was said, if it can be meant; otherwise `ToolInvalid`, which names what can't."""
    for what in _FLAGS:
        value = getattr(said, what)
        if type(value) is not bool and not (what in _OPEN and value is None):
            raise ToolInvalid(label, None, f"{what} is True or False, not {value!r:.60}")
    if said.read_only and said.destructive:
        raise ToolInvalid(label, None, "it can't be read_only and destructive at once")
    if said.description is not None and not isinstance(said.description, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise ToolInvalid(label, None, f"description must be text, not a {type(said.description).__name__}")
    _check_interrupt(said, label)
    limit = OUTPUT_LIMIT if said.output_limit is None else said.output_limit
    parallel = said.max_parallel
    return Terms(
        timeout=_seconds("timeout", said.timeout, label),
        inline_budget=_budget(said, label),
        max_parallel=None if parallel is None else _count("max_parallel", parallel, label, 1, MOST_PARALLEL),
        output_limit=_count("output_limit", limit, label, LEAST_OUTPUT, MOST_OUTPUT),
        retry=_retry(said, label),
        background=said.background,
        on_interrupt=said.on_interrupt,
        untrusted=said.untrusted,
        polling=said.polling,
    )


def checked_name(name: str, label: str) -> str:
    """A name that every provider takes."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        reason = "a name is 1 to 64 letters, digits, '_' or '-', and begins with a letter"
        raise ToolInvalid(label, None, f"it can't be called {str(name)[:80]!r}: {reason}; give another with name=")
    return name


def checked_version(version: str | None, label: str) -> str | None:
    """The version, if it is a text that can be one."""
    if version is None:
        return None
    try:
        return check_id("version", version)
    except UsageError as error:
        raise ToolInvalid(label, None, str(error)) from None


def check_reconcile(reconcile: object, parameters: Iterable[str], label: str) -> None:
    """It is called with the context as `ctx` and with the arguments of the call, by their names."""
    if reconcile is None:
        return
    if not callable(reconcile):
        raise ToolInvalid(label, None, f"reconcile must be a function, not a {type(reconcile).__name__}")
    try:
        signature = inspect.signature(reconcile)
    except (TypeError, ValueError):
        return  # a function that does not show what it takes
    try:
        signature.bind(ctx=None, **dict.fromkeys(parameters))
    except TypeError as error:
        wanted = ", ".join(["ctx", *parameters])
        raise ToolInvalid(label, None, f"reconcile is called with ({wanted}) by name: {error}") from None


def _check_interrupt(said: Said, label: str) -> None:
    if said.on_interrupt not in ("unknown", "ask"):
        raise ToolInvalid(label, None, f"on_interrupt is 'unknown' or 'ask', not {said.on_interrupt!r:.60}")
    if said.on_interrupt == "ask" and said.read_only:
        raise ToolInvalid(label, None, "on_interrupt='ask' means nothing for a read_only tool: it is called again")


def _budget(said: Said, label: str) -> float | None:
    if said.inline_budget is not None and said.background is not None:
        always = "at once" if said.background else "never"
        raise ToolInvalid(label, None, f"background={said.background} goes there {always}; leave inline_budget out")
    return _seconds("inline_budget", said.inline_budget, label)


def _retry(said: Said, label: str) -> ToolRetryPolicy | None:
    if said.retry is not None and not (said.read_only or said.idempotent):
        raise ToolInvalid(label, None, "retry is for tools that are read_only or idempotent; others are never repeated")
    try:
        return retry_policy(said.retry)
    except UsageError as error:
        raise ToolInvalid(label, None, str(error)) from None


def _count(what: str, value: object, label: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ToolInvalid(label, None, f"{what} is a whole number from {least:,} to {most:,}, not {value!r:.60}")
    return value


def _seconds(what: str, given: object, label: str) -> float | None:
    if given is None:
        return None
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ToolInvalid(label, None, f"{what} is seconds or a timedelta, not a {type(given).__name__}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise ToolInvalid(label, None, f"{what} must be more than 0 seconds, not {seconds}; leave it out for none")
    return float(seconds)
