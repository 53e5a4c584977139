"""What a journal holds: one closed, tagged union of frozen facts.

A record is stored as the JSON bytes of its struct. Fields with their default value are left out, so adding an optional
field never changes what older records look like; unknown fields are ignored on reading; an unknown kind is refused.
Nothing here refers to a Python class by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec

from holdfast.errors import InvalidValue, RecordUnreadable

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
"""A time, a size or a place. Larger ones are refused when a record is read, so they must not be written."""
TASK_RUN: Final = "task"
"""The run of a journal that is a task: a tool call that goes on in the background. No turn is called like it."""
TRIGGER_RUN: Final = "trigger"
"""The run of a journal that is a trigger."""
PROCESS_RUN: Final = "process"
"""The first run of a journal that is a durable function; later ones have a number behind it."""
ABSENT: Final = msgspec.Raw()
"""No value: left out of the bytes (a JSON null would be ``Raw(b"null")``). Another empty Raw would not be."""
EFFECT_KINDS: Final[tuple[str, ...]] = get_args(EffectKind)
JOURNAL_KINDS: Final[tuple[str, ...]] = get_args(JournalKind)
STATUSES: Final[tuple[str, ...]] = get_args(Status)


class Blob(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are stored once, under their digest."""

    digest: str
    size: Number


class Cause(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What led to an effect, or to an input.

    `input`: its number. `model`: the key of a model call, and which call of its reply this is, from 1. `call`: the key
    of a tool call. `effect`: a key. `process`: the id of a process. `trigger`: the occurrence by its key. `signal`: its
    name.
    """

    kind: CauseKind
    id: str
    ordinal: Number = 0


class EffectRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What was asked of the world: enough to compare with what is asked on replay.

    `body` is the canonical command. It is left out when it is large; then only the digest can be compared.
    """

    kind: EffectKind
    target: str
    content: str
    body: msgspec.Raw = ABSENT
    blob: Blob | None = None
    """The command, where it is large and must be told nevertheless: the question to a model, say."""
    cause: Cause | None = None
    """What led to it; not compared on replay."""
    iteration: Number = 0
    """In which step of its turn, or attempt of its process, it was asked for; from 1. Not compared on replay.

    A tool call leaves it out: its step is that of the model call that led to it.
    """


class ErrorInfo(msgspec.Struct, frozen=True, gc=False):
    """An error as data: the name of its type and its message. Never a traceback, never an object to revive."""

    kind: str
    message: str


class _Record(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="t"):
    at: Number
    """Wall time in milliseconds."""


class Opened(_Record, frozen=True, gc=False, tag="opened"):
    """The first record of every journal. `format` has no default: a default would be left out of the bytes.

    A fork begins after record `parent_seq` of the journal `parent`; nothing is copied. `role` says what a process is,
    `session` for which session it works.
    """

    kind: JournalKind
    format: Number
    agent: str | None = None
    parent: str | None = None
    parent_seq: Number = 0
    role: str | None = None
    session: str | None = None
    metadata: msgspec.Raw = ABSENT
    """What the host says about a session: a JSON object."""


class Admitted(_Record, frozen=True, gc=False, tag="admitted"):
    """An accepted input entered the journal; `run` is the turn that it entered."""

    input: Number
    key: str
    body: msgspec.Raw = ABSENT
    blob: Blob | None = None
    run: str | None = None
    refs: tuple[Blob, ...] = ()
    """Attachments of the input."""


class Started(_Record, frozen=True, gc=False, tag="started"):
    """A run (a turn, a durable function) begins; `code` names the version of its code, `by` the process."""

    run: str
    code: str | None = None
    by: str | None = None
    deadline: Number | None = None
    """When it must have ended, in wall milliseconds."""
    mode: str | None = None
    """How the model of a turn works, with tools or with programs: it goes on so, whatever its agent is by then."""


class Resumed(_Record, frozen=True, gc=False, tag="resumed"):
    """The process `by` goes on with a run that was interrupted or parked."""

    run: str
    by: str


class Parked(_Record, frozen=True, gc=False, tag="parked"):
    """The run waits for something outside; nothing is kept in memory meanwhile."""

    run: str
    waits: tuple[str, ...] = ()


class Ended(_Record, frozen=True, gc=False, tag="ended"):
    """The one terminal record of a run.

    `unstarted`: the run ended before it began (a queued turn that was cancelled, say). Another one may be under way, so
    such an end says nothing about the journal as a whole.
    """

    run: str
    status: EndStatus
    value: msgspec.Raw = ABSENT
    blob: Blob | None = None
    error: ErrorInfo | None = None
    unstarted: bool = False


class Intended(_Record, frozen=True, gc=False, tag="intended"):
    """An effect that is not safe to repeat is about to be performed."""

    key: str
    ask: EffectRequest


class InputTaint(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What an input, or the answer of a sub-agent, brings: the record that is untrusted, and the one that is private.

    Empty for neither.
    """

    untrusted: str = ""
    private: str = ""


class Done(_Record, frozen=True, gc=False, tag="done"):
    """The effect succeeded. `ask` is here when no intent was recorded before."""

    key: str
    ask: EffectRequest | None = None
    value: msgspec.Raw = ABSENT
    blob: Blob | None = None
    ms: Number = 0
    """How long it took."""
    refs: tuple[Blob, ...] = ()
    """Attachments that the value speaks of."""
    kept: tuple[Blob, ...] = ()
    """What was too long for the value and can be read apart."""
    taint: InputTaint | None = None
    """What the value brings with it, where a sub-agent gave it. None: what the definition of its tool says."""


class Failed(_Record, frozen=True, gc=False, tag="failed"):
    """The effect ended in an error, which every replay raises again."""

    key: str
    error: ErrorInfo
    ask: EffectRequest | None = None
    ms: Number = 0
    detail: msgspec.Raw = ABSENT
    """What else is known about it: the tries of a model call, say."""
    taint: InputTaint | None = None
    """What the message brings with it, where it tells of a sub-agent. None: what the definition of its tool says."""


class Unknown(_Record, frozen=True, gc=False, tag="unknown"):
    """The effect was begun, has no outcome, must not be repeated, and nobody can say whether it took effect."""

    key: str
    ask: EffectRequest | None = None
    why: str = ""
    """What stopped it, in words for the model; empty where its process ended."""


class Cancelled(_Record, frozen=True, gc=False, tag="cancelled"):
    """The effect was stopped: it lost a race, or the code that asked for it was cancelled (a timeout, say).

    If it had been intended, nobody can say whether it took effect before. On replay the code is cancelled again by
    whatever cancelled it, so such an effect waits for that. After an outcome of the same key it means that the code was
    cancelled before it got to see the outcome.
    """

    key: str
    ask: EffectRequest | None = None
    detail: msgspec.Raw = ABSENT
    """What else is known about it: the tries of a model call, say."""
    why: str = ""
    """What stopped it, in words for the model."""


class Progressed(_Record, frozen=True, gc=False, tag="progressed"):
    """How far a run in the background is, in the words of what it runs."""

    run: str
    note: str | None = None
    fraction: float | None = None


class Handed(_Record, frozen=True, gc=False, tag="handed"):
    """Another agent has the session from here on, and goes on with the run. It is the last record of its commit."""

    run: str
    key: str
    """The call that asked for it; its outcome is in the same commit."""
    agent: str
    """Who has the session now."""
    by: str
    """Who had it before."""
    reason: str = ""
    untrusted: bool = False
    """What strangers wrote had been read by then; the next agent may not know the tools that gave it."""
    private: bool = False
    """The same, of what is not meant for everybody."""
    mode: str | None = None
    """How the model of who has it now works in this turn."""
    untrusted_by: str = ""
    """The record with which it had been read."""
    private_by: str = ""


class Grouped(_Record, frozen=True, gc=False, tag="grouped"):
    """Several effects at once. The order in which they settled is the order of their outcomes in the journal."""

    key: str
    wake: Wake
    members: tuple[str, ...]


Outcome: TypeAlias = Done | Failed | Unknown | Cancelled
Record: TypeAlias = (
    Opened
    | Admitted
    | Started
    | Resumed
    | Parked
    | Ended
    | Intended
    | Done
    | Failed
    | Unknown
    | Cancelled
    | Grouped
    | Progressed
    | Handed
)
RECORD_TYPES: Final[frozenset[type]] = frozenset(get_args(Record))
_LIFECYCLE: Final = frozenset((Opened, Started, Resumed, Parked, Ended, Handed))
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Record)
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""How bytes can fail to be JSON of the wanted shape; nesting that is too deep is one of them."""
encode = _encoder.encode
"""The bytes of a record, as they are stored."""


def encode_readable(record: Record) -> bytes:
    """The bytes of a record that we have made: nothing that can't be read may ever be stored."""
    body = encode(record)
    if type(record) is Done and record.at >= 0 and record.ms >= 0:
        return body  # its value is JSON that we have just written or read ourselves
    try:
        _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise InvalidValue("$", f"the record can't be read back: {error}") from error
    return body


def encode_checked(record: object) -> bytes:
    """The bytes of a record that somebody else has made: only if reading them gives the same record again."""
    if type(record) not in RECORD_TYPES:
        raise InvalidValue("$", f"a {type(record).__name__} is not a record")
    try:
        body = encode(record)
        same = _decoder.decode(body) == record
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidValue("$", f"the record can't be read back: {error}") from error
    if not same:
        raise InvalidValue("$", "the record reads back as another one")
    return body


HANDED_PREFIX: Final = b'{"t":"handed",'
"""How the bytes of a handoff begin, and those of no other record."""
decode_unversioned = _decoder.decode
"""The record in bytes that are not the first of their journal: without a look at the format."""


def decode(body: bytes) -> Record:
    """The record in `body`; `RecordUnreadable` when the kind or the format is not known here."""
    try:
        record = _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise RecordUnreadable(str(error)) from error
    if type(record) is Opened and record.format > FORMAT:
        reason = f"format {record.format}, this release knows {FORMAT}"
        raise RecordUnreadable(reason)
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
    """What the host said about a session, in the bytes of its first record; nothing where they can't be read."""
    if not isinstance(body, bytes) or b'"metadata":{' not in body:  # in a damaged store it may be anything
        return {}
    try:
        opened = _decoder.decode(body)
        return metadata_of(opened) if type(opened) is Opened else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def metadata_of(opened: Opened) -> dict[str, Any]:
    """What the host said about a session when it was opened."""
    return msgspec.json.decode(opened.metadata, type=dict[str, Any]) if opened.metadata else {}


def is_process_run(run: str) -> bool:
    """Whether `run` is one of a durable function."""
    return run.partition(".")[0] == PROCESS_RUN


def touches_lists(record: Record) -> bool:
    """Whether `record` changes how its journal is listed."""
    return type(record) in _LIFECYCLE and not getattr(record, "unstarted", False)


def is_plain(record: Record) -> bool:
    """Whether `record` concerns nothing but its own journal: no list, no inbox, no wait, no blob."""
    if type(record) is Done:  # as most are
        told = record.ask is None or record.ask.blob is None
        return told and record.blob is None and not record.refs and not record.kept
    if type(record) in (Admitted, Ended) or blobs_of(record):
        return False
    return not touches_lists(record)


def next_status(status: Status, record: Record) -> Status:
    """How a journal's status follows from its records; the lists are a fold of this.

    A waiting journal runs again with whatever it records next, except that inputs may come in and queued runs may end
    meanwhile.
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
