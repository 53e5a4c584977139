"""Tool results for the model, by the recorded outcome of the call; the texts of messages; and unused replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import msgspec

from holdfast import messages, names, records
from holdfast.processes.state import background_answer
from holdfast.turns.programs import TOLD

decode: Final[Callable[[bytes | msgspec.Raw], Any]] = msgspec.json.Decoder().decode
SAID_AS_IT_IS: Final = frozenset(("ToolRetry", "InvalidArguments", "ToolUnknown", "ToolTimeout", *TOLD))
"""Errors with messages written for the model; others are shown with the name of their type."""
UNKNOWN: Final = (
    "It is not known whether this call took effect: it was interrupted before it could report. "
    "It was not repeated. Find out what happened before you call it again."
)
_UNKNOWN_AFTER: Final = (
    "It is not known whether this call took effect. It was not repeated. "
    "Find out what happened before you call it again."
)
CANCELLED: Final = "This call was stopped before it finished. It is safe to call it again."
FORKED: Final = (
    "The conversation was forked before this call had a result. Whether it was carried out is not known here. "
    "Find out what happened before you call it again."
)
_SKIPPED: Final[dict[records.EndStatus, str]] = {
    "cancelled": "This call was not begun: the turn was cancelled before.",
    "limit": "This call was not begun: the turn reached a limit before.",
    "failed": "This call was not begun: the turn failed before.",
    "completed": "This call was not begun: the turn ended before.",
}


def result_of(call: messages.ToolCall, outcome: records.Outcome) -> messages.ToolResult:
    """The result of a call with an outcome, whose large value must have been fetched."""
    match outcome:
        case records.Done():
            files = tuple(blob.digest for blob in outcome.refs) if outcome.refs else ()
            return messages.ToolResult(call.id, call.name, decode(outcome.value), files=files)
        case records.Failed(error=error):
            said = error.message if error.kind in SAID_AS_IT_IS else f"{error.kind}: {error.message}".removesuffix(": ")
            return messages.ToolResult(call.id, call.name, said, "error")
        case records.Unknown(why=why):
            return unknown_result(call, why)
        case records.Cancelled(why=why):
            return messages.ToolResult(call.id, call.name, f"{CANCELLED} {why}".rstrip(), "cancelled")


def unknown_result(call: messages.ToolCall, why: str = "") -> messages.ToolResult:
    """The result of a call with an unknown outcome; `why` it was stopped, if known."""
    return messages.ToolResult(call.id, call.name, f"{why} {_UNKNOWN_AFTER}" if why else UNKNOWN, "unknown")


def stop_reason(status: records.EndStatus, message: str) -> str:
    """The reason, for the model, why the end of the turn stopped a call."""
    if status == "cancelled":
        return f"The turn was cancelled: {message}." if message else "The turn was cancelled."
    return f"The turn ended: {message}." if message else ""


def call_stop_reason(reason: str) -> str:
    """The reason, for the model, why this call alone was stopped."""
    said = f": {reason.rstrip('.')}" if reason else ""
    return f"The application or a person cancelled this call{said}. Go on without it."


def forked_result(call: messages.ToolCall) -> messages.ToolResult:
    """The result of a call that was open at a fork; the original may still perform it."""
    return messages.ToolResult(call.id, call.name, FORKED, "unknown")


def skipped_result(call: messages.ToolCall, status: records.EndStatus, message: str = "") -> messages.ToolResult:
    """The result of a call that never began because the turn ended."""
    reason = f" Reason: {message}" if status == "cancelled" and message else ""
    return messages.ToolResult(call.id, call.name, f"{_SKIPPED[status]}{reason}", "skipped")


def speaker(message: messages.Message) -> str:
    """The author of a message: user, holdfast, assistant or tools."""
    if isinstance(message, messages.UserMessage):
        return message.origin
    return "tools" if isinstance(message, messages.ToolMessage) else "assistant"


def message_text(message: messages.Message) -> str:
    """The text of a message, with calls, arguments and results."""
    if isinstance(message, messages.ToolMessage):
        said = (f"{result.name} {result.state}: {_plain(result.content)}" for result in message.results)
        return "\n".join(said)
    return "\n".join(words for part in message.parts if (words := _part(part)))


def mentions(message: messages.Message, words: str) -> bool:
    """True if a message contains these words, ignoring case."""
    return words.casefold() in message_text(message).casefold()


def _part(part: Any) -> str:  # any part of a message
    if isinstance(part, messages.ToolCall):
        arguments = part.malformed if part.arguments is None else _plain(part.arguments)
        return f"-> {part.name} {arguments}"
    if isinstance(part, messages.Attachment):
        return f"[{part.name or part.media_type}, {part.size:,} bytes]"
    return "" if isinstance(part, messages.Reasoning) else getattr(part, "text", "")


def _plain(content: Any) -> str:  # any JSON value
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


MARK: Final = "/%paid"
"""Key suffix of the record of usage for replies that hooks refused and attempts without a reply."""


def paid_for(reply: messages.ModelReply, failed: records.Failed | records.Cancelled) -> records.Done:
    """The record of the usage of a failed or cancelled call. The record of the call has the attempts."""
    bare = msgspec.structs.replace(reply, parts=(), finish="cancelled", attempts=())
    return records.Done(at=failed.at, key=failed.key + MARK, ask=failed.ask, value=msgspec.Raw(messages.encode(bare)))


def paid_tries(tries: Sequence[messages.Attempt]) -> messages.ModelReply | None:
    """Usage of attempts without a reply, as an empty reply; None if they used nothing."""
    used = messages.total_usage(tries)
    return messages.ModelReply((), "cancelled", used, tries[-1].model, attempts=tuple(tries)) if used.total else None


def is_paid(key: str) -> bool:
    """True if `key` is the key of a record of unused replies."""
    return key.endswith(MARK)


def is_background(result: messages.ToolResult) -> bool:
    """True if the call became a task. A tool that imitates this answer is counted too, against its own budget."""
    content = result.content
    if result.state != "ok" or type(content) is not dict:
        return False
    said = cast("dict[str, Any]", content)
    task = said.get("task")
    return type(task) is str and names.is_task_id(task) and said.keys() == background_answer(task, "", None).keys()
