"""A process as its journal tells it. Pure.

    running <--> waiting          for a time, a signal, a child, the turn of an agent
       |
       '--> completed, failed, cancelled
       '--> abandoned: whoever ran it is gone, nobody else may, and a person has given it up

An attempt that failed and is followed by another one is not an end: both are told in one commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from holdfast.errors import RecordUnreadable
from holdfast.policy.subject import InputTaint  # noqa: TC001  msgspec reads the annotations
from holdfast.processes.ids import CALL, TRANSFER, attempt_of, id_of
from holdfast.records import Admitted, Done, Ended, Opened, Parked, Resumed, Started

if TYPE_CHECKING:
    from holdfast.records import Ask, Blob, ErrorInfo, Record, Status

ProcessStatus = Literal["running", "waiting", "completed", "failed", "cancelled", "abandoned"]
Recovery = Literal["rerunnable", "owner", "external"]
OnParentEnd = Literal["cancel", "abandon"]

TERMINAL: Final = frozenset(("completed", "failed", "cancelled", "abandoned"))
ABANDONED: Final = "abandoned"
"""The kind of the error with which a process ends that was given up."""
LISTED: Final[dict[ProcessStatus, Status]] = {
    "running": "running",
    "waiting": "waiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "abandoned": "failed",
}
"""How the lists of the store call a status."""


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process was started as: enough to run it, and all that must be the same for the same id."""

    name: str
    arguments: dict[str, Any]
    recovery: Recovery = "rerunnable"
    on_parent_end: OnParentEnd = "cancel"
    parent: str | None = None
    """The journal of the process that started it."""
    key: str | None = None
    """The effect with which that one did."""
    depth: int = 0
    """How many processes stand above it."""
    taint: InputTaint | None = None
    """What its arguments bring with them, where somebody outside wrote them."""


_decode: Final = msgspec.json.Decoder(Registration).decode


def decode_registration(body: bytes) -> Registration:
    """The registration in the input that a process begins with."""
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(f"the registration of a process: {error}") from error


@dataclass(slots=True)
class ProcessState:
    """What is known of a process."""

    journal: str
    name: str | None = None
    session: str | None = None
    registration: Registration | None = None
    status: ProcessStatus = "running"
    attempt: int = 1
    created: int = 0
    updated: int = 0
    started: int | None = None
    ended: int | None = None
    by: str | None = None
    """Who ran it last."""
    starts: int = 0
    """How often somebody began, or went on."""
    code: str | None = None
    """The version of the code that began it."""
    waits: tuple[str, ...] = ()
    value: bytes = b""
    blob: Blob | None = None
    error: ErrorInfo | None = None
    failures: list[ErrorInfo] = field(default_factory=list["ErrorInfo"])
    """How earlier attempts ended."""
    children: dict[str, None] = field(default_factory=dict[str, None])
    """The processes that it started, by id."""
    turns: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """The turns of agents that it asked for, in sessions of its own."""
    records: list[Record] = field(default_factory=list["Record"], repr=False)
    head: int = 0

    @property
    def id(self) -> str:
        """The id under which it was started."""
        return id_of(self.journal)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in TERMINAL

    def add(self, record: Record) -> None:
        """Take the next record into account."""
        self.records.append(record)
        self.head += 1
        self.updated = record.at
        match record:
            case Opened():
                self.created, self.session, self.name = record.at, record.session, record.agent
            case Admitted() if record.key == CALL and self.registration is None:
                self.registration = decode_registration(bytes(record.body))
            case Admitted() if record.key.startswith(TRANSFER):
                self.session = msgspec.json.decode(bytes(record.body), type=dict[str, str])["session"]
            case Started() | Resumed():
                self._begin(record)
            case Parked():
                self._enter(record.run)
                self.status, self.waits = "waiting", record.waits
            case Done() if record.ask is not None and record.ask.kind == "process":
                self._asked(record.ask, record)
            case Ended():
                self.ended, self.error, self.waits = record.at, record.error, ()
                self.value, self.blob = bytes(record.value), record.blob
                self.status = status_of(record)
            case _:
                pass

    def _asked(self, ask: Ask, record: Done) -> None:
        """What it has started elsewhere."""
        if ask.target == "start":
            self.children[msgspec.json.decode(bytes(record.value), type=dict[str, str])["id"]] = None
        elif ask.target == "agent":
            told = msgspec.json.decode(bytes(record.value))
            if told["session"].startswith(f"{self.id}."):
                self.turns.append((told["session"], told["input"]))

    def _begin(self, record: Started | Resumed) -> None:
        self._enter(record.run)
        self.status, self.by, self.starts, self.waits = "running", record.by, self.starts + 1, ()
        if isinstance(record, Started):
            self.code = record.code
            self.started = self.started or record.at

    def _enter(self, run: str) -> None:
        """The run that is told of: after a failure, that of the next attempt."""
        attempt = attempt_of(run)
        if attempt is not None and attempt > self.attempt:
            self.attempt = attempt
            if self.error is not None:
                self.failures.append(self.error)
            self.ended, self.error = None, None


def status_of(ended: Ended) -> ProcessStatus:
    """How a process ended."""
    if ended.error is not None and ended.error.kind == ABANDONED:
        return "abandoned"
    match ended.status:
        case "completed":
            return "completed"
        case "cancelled":
            return "cancelled"
        case _:
            return "failed"
