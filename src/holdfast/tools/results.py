"""How a call failed, in words that the model can act on, as the journal keeps them. Pure."""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

from holdfast.effects.failures import printable
from holdfast.records import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.messages import ToolCall
    from holdfast.tools.definition import Complaint

MAX_TEXT: Final = 2_000
"""Longest text about a failed call, in characters."""
MAX_NAMES: Final = 50
"""How many tools are listed to a model that asked for one that is not there."""

MAX_MEMBERS: Final = 20
"""How many errors of a group are told."""
MAX_NAME: Final = 100
"""Longest name of a kind of error, in characters."""

_SHOWN: Final = 200


def raised(error: BaseException, clean: Callable[[str], str] = str) -> ErrorInfo:
    """What the tool raised: its kind and its message on one line, without the traceback.

    A group of errors is told as its members; what holds them together means nothing to a model.
    """
    found = leaves(error)
    first = next(found)
    rest = list(islice(found, MAX_MEMBERS - 1))
    if not rest:
        return ErrorInfo(_kind(first), _message(first, clean))
    more = sum(1 for _ in found)
    said = [said_by(leaf, clean) for leaf in (first, *rest)]
    told = shorten("; ".join(said), MAX_TEXT - 100)
    return ErrorInfo(_kind(error), f"{told}; and {more:,} more" if more else told)


def said_by(error: BaseException, clean: Callable[[str], str] = str) -> str:
    """An error on one line, whatever it does when it is asked."""
    return f"{_kind(error)}: {_message(error, clean)}".removesuffix(": ")


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, however deep; or the error itself."""
    left = [error]
    while left:
        here = left.pop()
        if isinstance(here, BaseExceptionGroup):
            left.extend(reversed(cast("BaseExceptionGroup[BaseException]", here).exceptions))
        else:
            yield here


def complained(complaint: Complaint) -> ErrorInfo:
    """The arguments do not fit."""
    return ErrorInfo("InvalidArguments", shorten(complaint.text, MAX_TEXT))


def malformed(call: ToolCall) -> ErrorInfo:
    """The arguments are no JSON object at all."""
    came = f": {shorten(call.malformed, _SHOWN)!r}" if call.malformed else ""
    said = f"The arguments of {shorten(call.name, 64)} are not a JSON object{came}. Call it again with one."
    return ErrorInfo("InvalidArguments", said)


def unknown_tool(name: str, known: Iterable[str]) -> ErrorInfo:
    """No tool has this name: the model is told which there are, and which one it may have meant."""
    names = list(known)
    if not names:
        return ErrorInfo("ToolUnknown", f"There is no tool {shorten(name, 64)!r}: there are no tools.")
    close = difflib.get_close_matches(name[:64], names, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    listed = shorten(", ".join(names[:MAX_NAMES]), MAX_TEXT - _SHOWN) + more
    return ErrorInfo("ToolUnknown", f"There is no tool {shorten(name, 64)!r}.{meant} The tools are: {listed}.")


def timed_out(name: str, seconds: float, *, left: bool = False) -> ErrorInfo:
    """A tool that may be repeated took longer than it may and was stopped; or it could not be, and was `left`."""
    late = f"{name} did not finish within {seconds:g} s"
    ended = "could not be stopped: it goes on by itself, nobody waits for it, and it starts no more processes"
    said = f"{late} and {ended if left else 'was stopped'}. It is safe to call it again."
    return ErrorInfo("ToolTimeout", said)


def shorten(text: str, limit: int) -> str:
    """`text`, or its beginning with the count of what is missing, within `limit` characters."""
    if len(text) <= limit:
        return text
    end = f"... ({len(text):,} characters)"
    return text[: max(limit - len(end), 0)] + end


def _kind(error: BaseException) -> str:
    # Not `__name__` as the class gives it: a metaclass may answer anything.
    name = cast("str", type.__dict__["__name__"].__get__(type(error)))
    return printable(name[:MAX_NAME])


def _message(error: BaseException, clean: Callable[[str], str]) -> str:
    try:
        text = clean(str(error))  # before it is cut: half a secret is one, too
        # A subclass of `str` may do anything in its methods, so it is made a plain one.
        text = str.__getitem__(text, slice(0, 4 * MAX_TEXT)) if type(text) is not str else text[: 4 * MAX_TEXT]
    except BaseException:  # noqa: BLE001  an error that can't even be shown must not hide that it happened
        return ""
    if not text and isinstance(error, MemoryError):
        return "it ran out of memory"
    # No traceback; a huge message is not split into words before it is cut.
    return printable(shorten(" ".join(text.split()), MAX_TEXT - 100))
