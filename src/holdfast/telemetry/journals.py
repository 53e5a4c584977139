"""Reading the spans of journals: of one, or of a turn with all that worked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast import errors, records
from holdfast.names import PROCESS_PREFIX, is_process_journal, is_task_id
from holdfast.policy.limits import ROLE
from holdfast.processes.keys import CALL_KEY, FIRST_RUN, TASK_ROLE
from holdfast.processes.state import Registration, TaskCall, decode_begin
from holdfast.telemetry.spans import Span, SpanFold, TraceOrigin, span_id, trace_id
from holdfast.turns import keys
from holdfast.turns.compaction.plan import is_compaction
from holdfast.turns.conversation import UserInput, decode_input

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.store import Store
    from holdfast.store.contract import Input

MAX_DEPTH: Final = 64
"""Turns and processes above a run that are followed to the root of its trace."""
FIRST_TURN: Final = keys.turn_id(1)
_MODEL_KINDS: Final = frozenset(("model_call", "direct", "sync_environment"))
_CALL_KINDS: Final = frozenset(("tool_call", "exec_code"))
_PROCESS_KEY: Final = "process/"
"""Prefix of the keys of inputs that processes send."""


class JournalSpans:
    """The spans of one journal, from its records in order and its state in the store."""

    def __init__(self, store: Store, journal: str, *, content: bool = False) -> None:
        self.journal = journal
        self.fold = SpanFold(store.id, journal, content=content)
        self._store = store
        self._content = content

    async def add(self, seq: int, record: records.Record) -> list[Span]:
        """The spans that end with the next record."""
        kind = type(record)
        if kind is records.Opened:
            await self.resolve()
            await self._inherit(record)
        elif getattr(record, "blob", None) is not None:
            record = await self._complete(record)
        return self.fold.add(seq, record)

    async def resolve(self, first: Input | None = None) -> None:
        """Find the run above this journal, once. `first` is the first input of the journal, if known."""
        if self.fold.above is None:
            run = FIRST_RUN if _is_process(self.journal) else FIRST_TURN
            self.fold.above = await find_origin(self._store, self.journal, run, first=first)

    async def _inherit(self, record: records.Record) -> None:
        """Read the environments of the journals from which this one was forked."""
        ancestors: list[tuple[str, int]] = []
        while isinstance(record, records.Opened) and record.parent is not None and len(ancestors) < MAX_DEPTH:
            ancestors.append((record.parent, record.parent_seq))
            first = await self._store.read(record.parent, limit=1)
            if not first:
                break
            record = first[0].record
        for journal, end in reversed(ancestors):
            async for entry in self._store.read_all(journal):
                if entry.seq > end:
                    break
                ask = getattr(entry.record, "ask", None)
                if ask is not None and ask.kind == "sync_environment":
                    self.fold.inherit(await self._complete(entry.record))

    async def _complete(self, record: records.Record) -> records.Record:
        """The record with its large value, if its span needs that."""
        if isinstance(record, records.Admitted) and record.blob is not None:
            return msgspec.structs.replace(record, body=await self._read(record.blob), blob=None)
        if not isinstance(record, records.Done) or record.blob is None:
            return record
        kind = "" if record.ask is None else record.ask.kind
        wanted = kind in _MODEL_KINDS or is_compaction(record.key)
        if not wanted and not (self._content and (not kind or kind in _CALL_KINDS)):
            return record
        return msgspec.structs.replace(record, value=await self._read(record.blob), blob=None)

    async def _read(self, blob: records.Blob) -> msgspec.Raw:
        body = await self._store.blob(blob.digest)
        if body is None:
            raise errors.BlobMissing(blob.digest)
        return msgspec.Raw(body)


def _is_process(journal: str) -> bool:
    return is_task_id(journal) or is_process_journal(journal)


async def find_origin(
    store: Store, journal: str, run: str, *, first: Input | None = None, depth: int = 0
) -> TraceOrigin:
    """The trace of a run, and the span above it: a sub-agent, a task or a child belongs to the trace of its caller."""
    own = TraceOrigin(trace_id(store.id, journal, run))
    if depth >= MAX_DEPTH:
        return own
    try:
        begun = first or await store.input(journal, 1)
        above = None if begun is None else await _run_above(store, journal, run, begun)
    except errors.JournalMissing:  # pruned
        return own
    if above is None:
        return own
    parent_journal, parent_run, span = above
    return TraceOrigin((await find_origin(store, parent_journal, parent_run, depth=depth + 1)).trace, span)


async def _run_above(store: Store, journal: str, run: str, begun: Input) -> tuple[str, str, str] | None:
    """The journal and the run that began this one, and the span of the effect that did so."""
    if is_task_id(journal):
        session = (await store.journal(journal)).session
        call = decode_begin(begun.body, TaskCall)
        return None if session is None else (session, call.turn, span_id(store.id, session, call.key))
    if is_process_journal(journal):
        if begun.key != CALL_KEY:
            return None
        made = decode_begin(begun.body, Registration)
        if made.parent is None or made.key is None:
            return None
        return made.parent, FIRST_RUN, span_id(store.id, made.parent, made.key)
    if run != FIRST_TURN:
        return None
    said = decode_input(begun.body)
    if isinstance(said, UserInput) and said.mandate is not None:
        return said.mandate.session, said.mandate.turn, said.mandate.call[:16]
    # The session that a process made for a turn is named after the process and the effect.
    process, dot, told = journal.rpartition(".")
    sent = begun.key.removeprefix(_PROCESS_KEY)
    if dot and sent != begun.key and sent.startswith(told) and len(told) == 12:
        return f"{PROCESS_PREFIX}{process}", FIRST_RUN, sent[:16]
    return None


async def read_spans(
    store: Store, journal: str, *, run: str | None = None, content: bool = False
) -> AsyncIterator[Span]:
    """Yield the finished spans of a journal in the order of their end: all, or those of one run."""
    reading = JournalSpans(store, journal, content=content)
    async for entry in store.read_all(journal):
        for span in await reading.add(entry.seq, entry.record):
            if run is None or span.run == run:
                yield span


async def read_trace(store: Store, journal: str, *, run: str | None = None, content: bool = False) -> list[Span]:
    """The finished spans of a journal, or of one of its turns, with all sub-agents, tasks and processes below them."""
    found: list[Span] = []
    todo, seen = [journal], {journal}
    while todo:
        name = todo.pop(0)
        only = run if name == journal else None
        below = [span async for span in read_spans(store, name, run=only, content=content)]
        traces = {span.trace for span in found}
        if name != journal and run is not None:  # a session may work for several turns
            below = [span for span in below if span.trace in traces]
        found += below
        for child in await _journals_below(store, name, below):
            if child not in seen:
                seen.add(child)
                todo.append(child)
    return found


async def _journals_below(store: Store, journal: str, spans: list[Span]) -> list[str]:
    """The journals that work for one: sub-agents, tasks, children, and sessions that a process made."""
    found: list[str] = []
    for kind, role in (("session", ROLE), ("process", TASK_ROLE)):
        last = None
        while page := await store.journals(kind=kind, role=role, session=journal, before=last):  # pyright: ignore[reportArgumentType]  # one of the kinds
            found += [line.id for line in page]
            last = page[-1]
    found += [str(span.attributes["holdfast.session"]) for span in spans if "holdfast.session" in span.attributes]
    found += [str(span.attributes["holdfast.child"]) for span in spans if "holdfast.child" in span.attributes]
    return found
