"""What a request gets, planned without touching a socket. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.testing import dialects
from holdfast.testing.provider.faults import BadFrame, CutStream, Disconnect, ErrorFrame, HttpError, Stall

if TYPE_CHECKING:
    from holdfast.errors import ModelError
    from holdfast.testing.dialects import Asked, DialectName, Streamed
    from holdfast.testing.provider.faults import ProviderFault

_STATUSES: Final = {
    "authentication": 401,
    "billing": 402,
    "permission": 403,
    "not_found": 404,
    "rate_limited": 429,
    "server_error": 500,
    "timeout": 504,
    "overloaded": 529,
}
_CODES: Final = {"context_overflow": "context_length_exceeded", "content_filter": "content_policy_violation"}


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is sent for a while; None is for ever."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes out: a status, then bytes and pauses. With `close` the connection ends after them."""

    status: int
    steps: tuple[bytes | Pause, ...]
    close: bool = False

    @property
    def at_once(self) -> bool:
        """Nothing has to be waited for."""
        return not any(type(step) is Pause for step in self.steps)


def plan(asked: Asked, answer: Streamed, fault: ProviderFault | None, pace: float = 0.0) -> Plan:
    """What a request gets that has this answer, if all goes well, and meets this fault."""
    if isinstance(fault, HttpError):
        return refused(asked.dialect, fault)
    if isinstance(fault, Disconnect):
        return Plan(200, (), close=True)
    kind = "text/event-stream" if asked.form == "sse" else "application/json"
    head = f"content-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    writes = _faulty(asked, answer, fault)
    broken = isinstance(fault, CutStream) and not fault.clean
    steps: list[bytes | Pause] = []
    for number, write in enumerate(writes):
        if isinstance(write, Pause):
            steps.append(write)
            continue
        if number and pace and not isinstance(writes[number - 1], Pause):
            steps.append(Pause(pace))
        steps.append(_chunk(write))
    if not broken:
        _add(steps, b"0\r\n\r\n")
    if isinstance(fault, Stall) and fault.after is None:
        return Plan(200, (steps[0], *_headed(head, steps[1:])))
    return Plan(200, _headed(head, steps), close=broken)


def _faulty(asked: Asked, answer: Streamed, fault: ProviderFault | None) -> list[bytes | Pause]:
    """The chunks, with what is wrong about them."""
    pieces, ending = list(answer.pieces), answer.ending
    every: list[bytes] = [*pieces[:-1], pieces[-1] + ending] if pieces else [ending]
    match fault:
        case CutStream():
            return [*pieces[: fault.after]]
        case Stall():
            after = fault.after or 0
            return [*every[:after], Pause(fault.seconds), *every[after:]]
        case BadFrame():
            return [*every[: fault.after], dialects.bad_frame(asked), *every[fault.after :]]
        case ErrorFrame() if asked.form == "whole":
            return [dialects.error_body(asked.dialect, fault.status, fault.message)]
        case ErrorFrame():
            return [*pieces[: fault.after], dialects.error_frame(asked, fault.status, fault.message)]
        case _:
            return [*every]


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _add(steps: list[bytes | Pause], data: bytes) -> None:
    """At the end of the last write, so that the end of a body is no packet of its own."""
    last = steps[-1] if steps else None
    if isinstance(last, bytes):
        steps[-1] = last + data
    else:
        steps.append(data)


def _headed(head: bytes, steps: list[bytes | Pause]) -> tuple[bytes | Pause, ...]:
    first = steps[0] if steps else None
    return (head + first, *steps[1:]) if isinstance(first, bytes) else (head, *steps)


def refused(dialect: DialectName, fault: HttpError) -> Plan:
    """An answer with an error status."""
    after = fault.retry_after
    seconds = None if isinstance(after, str) else after
    body = dialects.error_body(dialect, fault.status, fault.message, code=fault.code, retry=seconds)
    retry = "" if after is None else f"retry-after: {after if isinstance(after, str) else format(after, 'g')}\r\n"
    head = f"content-type: application/json\r\n{retry}content-length: {len(body)}\r\n\r\n"
    return Plan(fault.status, (head.encode() + body,))


def as_refusal(error: ModelError) -> HttpError:
    """How a provider tells what the script raises."""
    status = error.status or _STATUSES.get(error.kind) or (500 if error.retryable else 400)
    return HttpError(status, error.retry_after, error.message, _CODES.get(error.kind, ""))
