"""The records of a journal: a closed, tagged union of frozen structs.

The store keeps a record as the JSON bytes of its struct. Fields with their default are left out, so a new optional
field never changes older records. Reading ignores unknown fields and refuses unknown kinds. No record names a Python
class.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec

from holdfast.errors import RecordUnreadable

FORMAT: Final = 1
"""The version of the record format; the first record of each journal carries it."""
JournalKind = Literal["session", "process"]
Status = Literal["idle", "running", "waiting", "completed", "failed", "cancelled", "limit"]
EndStatus = Literal["completed", "failed", "cancelled", "limit"]
EffectKind = Literal[
    "model_call",
    "direct",
    "tool_call",
    "process",
    "exec_code",
    "checkpoint",
    "sync_environment",
    "sleep",
    "await_event",
    "sample",
    "step",
]
Wake = Literal["all", "any", "race"]
CauseKind = Literal["input", "model", "call", "effect", "process", "trigger", "signal"]
Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""A time, a size or a sequence. Reading refuses larger numbers, so they must not be written."""
TASK_RUN: Final = "task"
"""The run of a task journal (a tool call in the background). No turn has this name."""
TRIGGER_RUN: Final = "trigger"
"""The run of a trigger journal."""
PROCESS_RUN: Final = "process"
"""The first run of a process journal; a number follows in later runs."""
ABSENT: Final = msgspec.Raw()
"""No value: left out of the bytes (a JSON null is ``Raw(b"null")``). Compare with this very object."""
EFFECT_KINDS: Final[tuple[str, ...]] = get_args(EffectKind)
JOURNAL_KINDS: Final[tuple[str, ...]] = get_args(JournalKind)
STATUSES: Final[tuple[str, ...]] = get_args(Status)


class Blob(msgspec.Struct, frozen=True, gc=False):
    """A reference to bytes that are stored once, under their digest."""

    digest: str
    size: Number


class Cause(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The cause of an effect or of an input.

    `id` is, by kind: `input`, its number; `model`, the key of a model call (`ordinal` counts the calls of its reply
    from 1); `call`, the key of a tool call; `effect`, a key; `process`, the id of a process; `trigger`, the key of an
    occurrence; `signal`, its name.
    """

    kind: CauseKind
    id: str
    ordinal: Number = 0


class EffectRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The request of an effect, which a replay compares.

    `body` is the canonical command. A large one is left out; then only its digest is compared.
    """

    kind: EffectKind
    target: str
    content: str
    body: msgspec.Raw = ABSENT
    blob: Blob | None = None
    """A large command that must be recorded, such as the question to a model."""
    cause: Cause | None = None
    """Not compared on replay."""
    iteration: Number = 0
    """The step of its turn, or attempt of its process, from 1. Not compared on replay.

    A tool call leaves it out: it belongs to the step of its model call.
    """


class ErrorInfo(msgspec.Struct, frozen=True, gc=False):
    """An error as data: the name of its type and its message."""

    kind: str
    message: str


class _Record(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="t"):
    at: Number
    """Wall time in milliseconds."""


class Opened(_Record, frozen=True, gc=False, tag="opened"):
    """The first record of every journal.

    `format` has no default, because a default would be left out of the bytes. A fork continues after record
    `parent_seq` of the journal `parent`; nothing is copied. `role` is the kind of a process, `session` the session that
    it works for.
    """

    kind: JournalKind
    format: Number
    agent: str | None = None
    parent: str | None = None
    parent_seq: Number = 0
    role: str | None = None
    session: str | None = None
    metadata: msgspec.Raw = ABSENT
    """Metadata of a session from its host: a JSON object."""


class Admitted(_Record, frozen=True, gc=False, tag="admitted"):
    """An accepted input entered the journal; `run` is its turn."""

    input: Number
    key: str
    body: msgspec.Raw = ABSENT
    blob: Blob | None = None
    run: str | None = None
    refs: tuple[Blob, ...] = ()
    """Attachments of the input."""


class Started(_Record, frozen=True, gc=False, tag="started"):
    """A run (a turn, a process) starts; `code` is the version of its code, `by` the operating system process."""

    run: str
    code: str | None = None
    by: str | None = None
    deadline: Number | None = None
    """Latest end, in wall milliseconds."""
    mode: str | None = None
    """The mode of a turn (tools or programs). The turn keeps it, even if its agent changes."""


class Resumed(_Record, frozen=True, gc=False, tag="resumed"):
    """The process `by` continues a run that was interrupted or parked."""

    run: str
    by: str


class Parked(_Record, frozen=True, gc=False, tag="parked"):
    """The run waits for `waits`; nothing stays in memory meanwhile."""

    run: str
    waits: tuple[str, ...] = ()


class Ended(_Record, frozen=True, gc=False, tag="ended"):
    """The last record of a run. `unstarted`: the run ended before it started, such as a queued turn that was cancelled.

    Another run may be under way, so an unstarted end does not change the status of the journal.
    """

    run: str
    status: EndStatus
    value: msgspec.Raw = ABSENT
    blob: Blob | None = None
    error: ErrorInfo | None = None
    unstarted: bool = False
    trace: str = ""
    """The traceback of the error, redacted and cut; empty in older journals and for errors without one."""


class Intended(_Record, frozen=True, gc=False, tag="intended"):
    """An effect that must not be repeated is about to be performed."""

    key: str
    ask: EffectRequest


class InputTaint(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The taint of an input, or of the answer of a sub-agent: the untrusted record and the private record, or ""."""

    untrusted: str = ""
    private: str = ""


class Done(_Record, frozen=True, gc=False, tag="done"):
    """The effect succeeded. `ask` is here when no intent was recorded before."""

    key: str
    ask: EffectRequest | None = None
    value: msgspec.Raw = ABSENT
    blob: Blob | None = None
    ms: Number = 0
    """Duration in milliseconds."""
    refs: tuple[Blob, ...] = ()
    """Attachments of the value."""
    kept: tuple[Blob, ...] = ()
    """Parts that were too long for the value and can be read separately."""
    taint: InputTaint | None = None
    """The taint of the answer of a sub-agent. None: the definition of the tool decides."""


class Failed(_Record, frozen=True, gc=False, tag="failed"):
    """The effect ended in an error, which every replay raises again."""

    key: str
    error: ErrorInfo
    ask: EffectRequest | None = None
    ms: Number = 0
    detail: msgspec.Raw = ABSENT
    """Details, such as the tries of a model call."""
    taint: InputTaint | None = None
    """The taint of the error of a sub-agent. None: the definition of the tool decides."""
    trace: str = ""
    """The traceback of the error, redacted and cut. For people: no model reads it."""


class Unknown(_Record, frozen=True, gc=False, tag="unknown"):
    """The effect began, must not be repeated, and may have taken effect."""

    key: str
    ask: EffectRequest | None = None
    why: str = ""
    """The reason in words for the model; empty if its process ended."""


class Cancelled(_Record, frozen=True, gc=False, tag="cancelled"):
    """The effect was stopped: it lost a race, or its caller was cancelled, for example by a timeout.

    If it was intended, it may have taken effect before. On replay the effect waits for the same cancellation to come
    again. After an outcome of the same key, it means that the code was cancelled before it saw the outcome.
    """

    key: str
    ask: EffectRequest | None = None
    detail: msgspec.Raw = ABSENT
    """Details, such as the tries of a model call."""
    why: str = ""
    """The reason in words for the model."""


class Progressed(_Record, frozen=True, gc=False, tag="progressed"):
    """Progress of a run in the background."""

    run: str
    note: str | None = None
    fraction: float | None = None


class Handed(_Record, frozen=True, gc=False, tag="handed"):
    """A handoff: another agent has the session from here on. It is the last record of its commit."""

    run: str
    key: str
    """The call that handed over; its outcome is in the same commit."""
    agent: str
    by: str
    """The agent before."""
    reason: str = ""
    untrusted: bool = False
    """The session had read untrusted content; the new agent may not know the tools that returned it."""
    private: bool = False
    """The session had read private content."""
    mode: str | None = None
    """The mode of the new agent in this turn."""
    untrusted_by: str = ""
    """The record that brought the untrusted content."""
    private_by: str = ""


class Grouped(_Record, frozen=True, gc=False, tag="grouped"):
    """A group of concurrent effects. They settled in the order of their outcomes in the journal."""

    key: str
    wake: Wake
    members: tuple[str, ...]


Outcome: TypeAlias = Done | Failed | Unknown | Cancelled
_RunRecord: TypeAlias = Opened | Admitted | Started | Resumed | Parked | Ended
Record: TypeAlias = _RunRecord | Intended | Outcome | Grouped | Progressed | Handed
RECORD_TYPES: Final[frozenset[type]] = frozenset(get_args(Record))
_LIFECYCLE: Final = frozenset((Opened, Started, Resumed, Parked, Ended, Handed))
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Record)
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding; too deep nesting is one of them."""
encode = _encoder.encode
"""The bytes of a record, as stored."""
HANDED_PREFIX: Final = b'{"t":"handed",'
"""Prefix of the bytes of handoff records only."""
decode_unversioned = _decoder.decode
"""`decode` without the check of the format, for records after the first of a journal."""


def decode(body: bytes) -> Record:
    """The record in `body`; `RecordUnreadable` if its kind or its format is unknown."""
    try:
        record = _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise RecordUnreadable(str(error)) from error
    if type(record) is Opened and record.format > FORMAT:
        raise RecordUnreadable(f"format {record.format}, this release knows {FORMAT}")
    return record


def blobs_of(record: Record) -> tuple[Blob, ...]:
    """The blobs that `record` refers to."""
    blob = getattr(record, "blob", None)
    refs: tuple[Blob, ...] = getattr(record, "refs", ()) + getattr(record, "kept", ())
    ask: EffectRequest | None = getattr(record, "ask", None)
    if ask is not None and ask.blob is not None:
        refs = (ask.blob, *refs)
    return refs if blob is None else (blob, *refs)


def metadata_in(body: bytes | None) -> dict[str, Any]:
    """The metadata of a session in the bytes of its first record; empty if they can't be read."""
    if not isinstance(body, bytes) or b'"metadata":{' not in body:  # in a damaged store it may be anything
        return {}
    try:
        opened = _decoder.decode(body)
        return metadata_of(opened) if type(opened) is Opened else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def metadata_of(opened: Opened) -> dict[str, Any]:
    """The metadata of a session in its first record."""
    return msgspec.json.decode(opened.metadata, type=dict[str, Any]) if opened.metadata else {}


def is_process_run(run: str) -> bool:
    """True for the run of a process."""
    return run.partition(".")[0] == PROCESS_RUN


def touches_lists(record: Record) -> bool:
    """True if the record changes the line of its journal in the lists."""
    return type(record) in _LIFECYCLE and not getattr(record, "unstarted", False)


def next_status(status: Status, record: Record) -> Status:
    """The status of a journal after this record; the lists are a fold of it.

    A waiting journal runs again with its next record, except for new inputs and the end of queued runs.
    """
    match record:
        case Ended():
            return status if record.unstarted else record.status
        case Parked():
            return "waiting"
        case Started() | Resumed():
            return "running"
        case Opened() | Admitted():
            return status
        case _:
            return "running" if status == "waiting" else status
