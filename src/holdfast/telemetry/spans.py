"""Spans of turns and processes, folded from a journal. Pure: the same records always give the same spans.

Ids are digests of the store, the journal and the key of the effect. So all processes that work on a turn agree on them,
and so does a reader of the journal years later. Names follow the GenAI conventions of OpenTelemetry; attributes of our
own begin with ``holdfast.``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast import messages, records
from holdfast.effects.canonical import digest
from holdfast.effects.performer import idempotency_key
from holdfast.names import is_process_journal, is_task_id
from holdfast.policy import approvals
from holdfast.processes.keys import CALL_KEY, attempt_of_run, process_id_of, process_journal, wait_label
from holdfast.processes.state import Registration, TaskCall, decode_begin
from holdfast.turns import keys, results
from holdfast.turns.compaction.plan import decode_compaction, is_compaction
from holdfast.turns.conversation import UserInput, decode_input, ending_of_record
from holdfast.turns.environment import Environment, decode_environment, is_environment

Value: TypeAlias = str | bool | int | float | tuple[str, ...]
MAX_TEXT: Final = 8_192
"""Most characters of one text or value in the content of a span."""
DIRECT_PREFIX: Final = "direct/"
"""Prefix of the journals of direct completions."""
_CALLER: Final = "traceparent"
"""The member of an input's metadata in which a host may name the span of its caller (W3C)."""
_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "azure-deployments": "azure.ai.openai",
    "azure-responses": "azure.ai.openai",
    "google": "gcp.gemini",
    "google-chat": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "openai-chat": "openai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
    "xai-chat": "x_ai",
}
"""Names of providers in the conventions; others are the same there and here."""
_FINISH: Final[dict[str, str]] = {
    "tool_calls": "tool_call",
    "output_limit": "length",
    "context_overflow": "length",
    "refusal": "content_filter",
}
_WAITED: Final = frozenset(("turn", "await", "outside", "race"))
"""Targets of `process` effects that wait for a process or a turn."""
_SUB_AGENT: Final = "sub-agent"
"""The name of the wait of a call for its sub-agent."""
_attempts: Final = msgspec.json.Decoder(tuple[messages.Attempt, ...])


class SpanLink(msgspec.Struct, frozen=True, gc=False):
    """A link to another span: of the caller, or of a process that died."""

    trace: str
    span: str
    reason: Literal["caller", "interrupted", "turn"]


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One finished span. Times are wall milliseconds, ids are hexadecimal."""

    name: str
    run: str
    """The turn, or the attempt of a process."""
    operation: str
    """invoke_agent, chat, execute_tool, process, wait or step."""
    trace: str
    id: str
    parent: str = ""
    start: int
    end: int
    attributes: dict[str, Value]
    links: tuple[SpanLink, ...] = ()
    error: str = ""
    """The kind of the error; empty without one."""
    message: str = ""
    """The message of the error, if content is wanted."""
    seq: int = 0
    """The record at which the span ended."""


class TraceOrigin(NamedTuple):
    """The trace of a run, and the span above its own; empty for the root of a trace."""

    trace: str
    parent: str = ""


@lru_cache(maxsize=8_192)
def span_id(store: str, journal: str, key: str) -> str:
    """The id of the span of an effect, or of a run: the beginning of its idempotency key."""
    return idempotency_key(store, journal, key)[:16]


@lru_cache(maxsize=8_192)
def trace_id(store: str, journal: str, run: str) -> str:
    """The id of the trace that begins with a run. All attempts of a process are one trace."""
    return digest("trace", [store, journal, run if keys.input_number(run) is not None else ""])[:32]


@dataclass(slots=True, kw_only=True)
class _Run:
    """A turn, or an attempt of a process, that has begun."""

    run: str
    id: str
    origin: TraceOrigin
    begun: int
    agent: str
    code: str = ""
    worker: str = ""
    common: dict[str, Value] = field(default_factory=dict[str, Value])
    """The attributes that all its spans have; empty if they must be made anew."""
    resumed: int = 0
    """Times that another drive continued it."""
    died: str = ""
    """The last span of the process that died, for those of the process that continues."""
    last: str = ""
    """The span that ended last."""
    last_at: int = 0
    resumed_at: int = 0
    parked: bool = False
    parked_at: dict[str, int] = field(default_factory=dict[str, int])
    """Times at which the run was first parked for a wait."""
    open: dict[str, tuple[int, records.EffectRequest]] = field(
        default_factory=dict[str, tuple[int, records.EffectRequest]]
    )
    """Effects that have begun, and when."""
    first_below: dict[str, int] = field(default_factory=dict[str, int])
    """The earliest begin of the spans below a call."""
    failed_attempts: dict[str, int] = field(default_factory=dict[str, int])
    calls: dict[str, messages.ToolCall] = field(default_factory=dict[str, messages.ToolCall])
    """The calls of the last reply, by key without the name of the tool."""
    links: list[SpanLink] = field(default_factory=list[SpanLink])
    taints: list[str] = field(default_factory=list[str])
    said: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The messages of people that entered, if content is wanted."""
    fresh: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The messages since the last model call, if content is wanted."""
    answer: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class SpanFold:
    """Makes the spans of one journal from its records, given in order from the first.

    Large values of model replies, environments and inputs must be inline, with `content` those of tool results too.
    `above` is the origin of the first turn of a session, or of all attempts of a process.
    """

    def __init__(self, store: str, journal: str, *, content: bool = False) -> None:
        self.seq = 0
        """The last record."""
        self.above: TraceOrigin | None = None
        self._store = store
        self.journal = journal
        self._content = content
        self._agent = ""
        self._session = journal
        """The session of the conversation."""
        is_process = is_process_journal(journal) or is_task_id(journal) or journal.startswith(DIRECT_PREFIX)
        self._run_attribute = "holdfast.run" if is_process else "holdfast.turn"
        self._environments: dict[str, Environment] = {}
        """The last recorded environment of each agent."""
        self._registration: Registration | TaskCall | None = None
        self._run: _Run | None = None
        self._intents: dict[str, tuple[int, records.EffectRequest]] = {}
        """Intents before the start of the run: a background call has one."""
        self._found: list[Span] = []

    def add(self, seq: int, record: records.Record) -> list[Span]:
        """The spans that end with this record."""
        self.seq = seq
        self._found = []
        match record:
            case records.Done() | records.Failed() | records.Unknown() | records.Cancelled():
                self._outcome(record)
            case records.Intended():
                intents = self._intents if self._run is None else self._run.open
                intents[record.key] = record.at, record.ask
            case records.Started():
                self._run = self._begin(record.run, record.at, record.code or "", record.by or "")
                self._run.open, self._intents = self._intents, {}
            case records.Admitted():
                self._admit(record)
            case records.Resumed() if self._run is not None:
                self._resume(self._run, record)
            case records.Parked() if self._run is not None:
                self._run.parked = True
                for wait in record.waits:
                    self._run.parked_at.setdefault(wait, record.at)
            case records.Ended():
                self._end(record)
            case records.Handed():
                self._agent = record.agent
                if self._run is not None:
                    self._run.common = {}
                    self._run.taints += self._taints(record.untrusted, record.private)
            case records.Opened():
                # A durable function has its own name there.
                self._agent = "" if is_process_journal(self.journal) else record.agent or ""
                self._session = self.journal if record.kind == "session" else record.session or ""
            case _:
                pass
        if self._run is not None and not isinstance(record, records.Progressed):
            self._run.last_at = record.at
        return self._found

    def inherit(self, record: records.Record) -> None:
        """Take over the environments of the journal from which this one was forked."""
        if isinstance(record, records.Done) and record.ask is not None and is_environment(record):
            self._environments[record.ask.target] = decode_environment(bytes(record.value))

    def origin(self, run: str) -> TraceOrigin:
        """The trace of a run."""
        if self.above is not None and keys.input_number(run) in {1, None}:
            return self.above
        return TraceOrigin(trace_id(self._store, self.journal, run))

    # ---- runs ----

    def _begin(self, run: str, at: int, code: str = "", worker: str = "") -> _Run:
        id = self._span_id(run)
        return _Run(
            run=run, id=id, origin=self.origin(run), begun=at, last_at=at, agent=self._agent, code=code, worker=worker
        )

    def _resume(self, run: _Run, record: records.Resumed) -> None:
        run.resumed += 1
        run.worker, run.resumed_at, run.common = record.by, record.at, {}
        run.died = "" if run.parked else run.last
        run.parked = False

    def _admit(self, record: records.Admitted) -> None:
        if record.key == CALL_KEY:
            body = bytes(record.body)
            kind = TaskCall if self._journal_is_task(body) else Registration
            self._registration = decode_begin(body, kind)
            return
        run = self._run
        if run is None or record.run != run.run or not record.body:
            return
        said = decode_input(bytes(record.body))
        if not isinstance(said, UserInput):
            return
        for caller in (said.caller, (said.metadata or {}).get(_CALLER)):
            link = parse_traceparent(caller) if isinstance(caller, str) and not run.origin.parent else None
            if link is not None and link not in run.links:
                run.links.append(link)
        if said.taint is not None:
            run.taints += self._taints(bool(said.taint.untrusted), bool(said.taint.private))
        if self._content and said.parts:
            message = _message("user", [_text_part(part) for part in said.parts])
            run.said.append(message)
            run.fresh.append(message)

    @staticmethod
    def _journal_is_task(body: bytes) -> bool:
        return b'"tool":' in body and b'"call_id":' in body

    @staticmethod
    def _taints(untrusted: bool, private: bool) -> list[str]:
        return ["untrusted"] * untrusted + ["private"] * private

    def _end(self, record: records.Ended) -> None:
        run = self._run
        if run is None or run.run != record.run:
            if keys.input_number(record.run) is None:
                return
            run = self._begin(record.run, record.at)  # it ended before it started
        else:
            self._run = None
        for key, (at, ask) in run.open.items():
            if self._is_wait(ask):
                self._wait(run, key, ask, at, record.at, state="ended")
        if keys.input_number(record.run) is not None:
            self._end_turn(run, record)
        elif not self.journal.startswith(DIRECT_PREFIX):
            self._end_process(run, record)

    def _end_turn(self, run: _Run, record: records.Ended) -> None:
        ending = ending_of_record(record)
        usage = ending.usage
        attributes = self._common(run) | {
            "gen_ai.operation.name": "invoke_agent",
            "holdfast.status": record.status,
            "holdfast.steps": ending.steps,
            "holdfast.usage.input_tokens": usage.input + usage.cache_read + usage.cache_write,
            "holdfast.usage.output_tokens": usage.output,
            "holdfast.resumed": run.resumed,
        }
        environment = self._environments.get(run.agent)
        if environment is not None:
            attributes |= _model_names(environment.model)
        if run.code:
            attributes["gen_ai.agent.version"] = run.code
        if ending.cost is not None:
            attributes["holdfast.cost_usd"] = ending.cost
        if ending.handoffs:
            attributes["holdfast.handoffs"] = ending.handoffs
        if run.taints:
            attributes["holdfast.taint"] = tuple(dict.fromkeys(run.taints))
        if self._content:
            if environment is not None and environment.instructions:
                told = [{"type": "text", "content": _shorten(environment.instructions)}]
                attributes["gen_ai.system_instructions"] = _json(told)
            attributes |= _content_attributes(run.said, run.answer)
        failed = ending.code or record.status if record.status != "completed" else ""
        self._finish_run(run, f"invoke_agent {run.agent}", "invoke_agent", record, attributes, failed, ending.message)

    def _end_process(self, run: _Run, record: records.Ended) -> None:
        made = self._registration
        name = "" if made is None else made.tool if isinstance(made, TaskCall) else made.name
        attributes = self._common(run) | {
            "gen_ai.workflow.name": name,
            "holdfast.process": process_id_of(self.journal),
        }
        attributes |= {"holdfast.status": record.status, "holdfast.resumed": run.resumed}
        if isinstance(made, TaskCall):
            attributes["gen_ai.tool.call.id"] = made.call_id
        else:
            attributes["holdfast.attempt"] = attempt_of_run(run.run) or 1
        error = "" if record.status == "completed" else record.status if record.error is None else record.error.kind
        message = "" if record.error is None else record.error.message
        self._finish_run(run, f"process {name}", "process", record, attributes, error, message)

    def _finish_run(
        self,
        run: _Run,
        name: str,
        operation: str,
        record: records.Ended,
        attributes: dict[str, Value],
        error: str,
        message: str,
    ) -> None:
        if error:
            attributes["error.type"] = error
        self._found.append(
            Span(
                name=name.strip(),
                run=run.run,
                operation=operation,
                trace=run.origin.trace,
                id=run.id,
                parent=run.origin.parent,
                start=run.begun,
                end=max(record.at, run.begun),
                attributes=attributes,
                links=tuple(run.links),
                error="" if record.status == "cancelled" else error,
                message=message if self._content else "",
                seq=self.seq,
            )
        )

    # ---- effects ----

    def _outcome(self, record: records.Outcome) -> None:
        run, key = self._run, record.key
        if run is None or key.partition("/")[0] != run.run:
            return
        intent = run.open.pop(key, None)
        ask = record.ask or (None if intent is None else intent[1])
        if ask is None:
            return  # the code was cancelled before it saw a recorded outcome
        begun = None if intent is None else intent[0]
        match ask.kind:
            case "tool_call" | "exec_code":
                self._tool_call(run, record, ask, begun)
            case "model_call" | "direct":
                self._model_call(run, record, ask)
            case "sync_environment":
                self.inherit(record)
            case "sleep" | "await_event":
                self._wait(run, key, ask, begun, record.at, state=_state(record))
            case "process":
                if self._is_wait(ask):
                    self._wait(run, key, ask, begun, record.at, state=_state(record))
                else:
                    self._step(run, record, ask, begun)
            case "step":
                self._step(run, record, ask, begun)
            case "sample" if ask.target == "attempt":
                call = key.rpartition("/")[0]
                run.failed_attempts[call] = run.failed_attempts.get(call, 0) + 1
            case _:
                if is_compaction(key) and isinstance(record, records.Done):
                    self._compaction(run, record)

    def _model_call(self, run: _Run, record: records.Outcome, ask: records.EffectRequest) -> None:
        reply = messages.decode_reply(bytes(record.value)) if isinstance(record, records.Done) else None
        if reply is None:
            detail = getattr(record, "detail", b"")
            attempts = _attempts.decode(detail) if detail else ()
        else:
            attempts = reply.attempts
        environment = self._environments.get(ask.target)
        asked = ask.target if ask.kind == "direct" else "" if environment is None else environment.model
        attributes = self._common(run) | _model_names(attempts[-1].model if attempts else asked)
        attributes["gen_ai.operation.name"] = "chat"
        attributes["holdfast.key"] = record.key
        if ask.iteration:
            attributes["holdfast.step"] = ask.iteration
        if len(attempts) > 1:
            attributes["holdfast.attempts"] = len(attempts)
            attributes["holdfast.attempt.outcomes"] = tuple(attempt.outcome for attempt in attempts)
        if environment is not None and environment.settings and ask.kind == "model_call":
            attributes |= _setting_attributes(environment.settings)
        if reply is not None:
            attributes |= _reply_attributes(reply)
        if self._content:
            said, run.fresh = run.fresh, []
            answered = [] if reply is None else [_reply_message(reply)]
            run.answer = answered or run.answer
            attributes |= _content_attributes(said, answered)
        if reply is not None and ask.kind == "model_call":
            self._note_calls(run, record.key, reply)
        model = str(attributes.get("gen_ai.request.model", ""))
        self._finish(run, f"chat {model}", "chat", record, attributes, self._start(run, record, None))

    @staticmethod
    def _note_calls(run: _Run, key: str, reply: messages.ModelReply) -> None:
        parsed = keys.parse_key(key)
        if parsed is not None:
            batch = keys.effect_key(parsed.run, parsed.number + 1, "tools")
            run.calls = {f"{batch}/{number}": call for number, call in enumerate(reply.calls, 1)}

    def _compaction(self, run: _Run, record: records.Done) -> None:
        made = decode_compaction(bytes(record.value))
        if not made.calls:
            return
        attributes = self._common(run) | _model_names(made.attempts[-1].model if made.attempts else made.model)
        attributes |= {"gen_ai.operation.name": "chat", "holdfast.key": record.key, "holdfast.purpose": "summary"}
        attributes |= _usage_attributes(made.usage, made.cost)
        name = f"chat {attributes.get('gen_ai.request.model', '')}"
        spent = sum(attempt.ms for attempt in made.attempts)
        self._finish(run, name, "chat", record, attributes, max(run.begun, record.at - spent))

    def _tool_call(self, run: _Run, record: records.Outcome, ask: records.EffectRequest, begun: int | None) -> None:
        key = record.key
        call = run.calls.get(key.rpartition(".")[0])
        made = self._registration
        attributes = self._common(run)
        attributes |= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": ask.target if call is None else call.name,
            "gen_ai.tool.type": "function",
            "holdfast.key": key,
            "holdfast.state": _state(record),
        }
        arguments: Any = None if call is None else call.arguments
        if call is not None:
            attributes["gen_ai.tool.call.id"] = call.id
        elif isinstance(made, TaskCall):
            attributes["gen_ai.tool.call.id"], arguments = made.call_id, made.arguments
        elif ask.body:
            arguments = msgspec.json.decode(ask.body)
        if attempts := run.failed_attempts.pop(key, 0):
            attributes["holdfast.attempts"] = attempts + 1
        taint = getattr(record, "taint", None)
        if taint is not None and (marks := self._taints(bool(taint.untrusted), bool(taint.private))):
            attributes["holdfast.taint"] = tuple(marks)
            run.taints += marks
        if self._content:
            attributes |= self._call_content(run, record, call, arguments)
        name = str(attributes["gen_ai.tool.name"])
        self._finish(run, f"execute_tool {name}", "execute_tool", record, attributes, self._start(run, record, begun))

    def _call_content(
        self, run: _Run, record: records.Outcome, call: messages.ToolCall | None, arguments: Any
    ) -> dict[str, Value]:
        found: dict[str, Value] = (
            {} if arguments is None else {"gen_ai.tool.call.arguments": _json(_bounded(arguments))}
        )
        shown = call or messages.ToolCall("", "", None)
        if isinstance(record, records.Done) and not record.value:
            return found  # a large result below a process, which nothing shows
        content = _bounded(results.result_of(shown, record).content)
        found["gen_ai.tool.call.result"] = _json(content)
        if call is not None:
            run.fresh.append(_message("tool", [{"type": "tool_call_response", "id": call.id, "response": content}]))
        return found

    def _step(self, run: _Run, record: records.Outcome, ask: records.EffectRequest, begun: int | None) -> None:
        name = record.key.rpartition("/")[2]
        title = f"start {name}" if ask.kind == "process" and ask.target in {"agent", "start"} else f"step {name}"
        attributes = self._common(run) | {"holdfast.key": record.key, "holdfast.state": _state(record)}
        links: tuple[SpanLink, ...] = ()
        if ask.target == "agent" and isinstance(record, records.Done) and record.value:
            sent = msgspec.json.decode(record.value)
            session, turn = str(sent["session"]), keys.turn_id(int(sent["input"]))
            attributes["holdfast.session"] = session
            trace = trace_id(self._store, session, turn)
            links = (SpanLink(trace, span_id(self._store, session, turn), "turn"),)
        elif ask.target == "start" and ask.kind == "process" and isinstance(record, records.Done) and record.value:
            attributes["holdfast.child"] = process_journal(msgspec.json.decode(record.value)["id"])
        self._finish(run, title, "step", record, attributes, self._start(run, record, begun), links)

    def _is_wait(self, ask: records.EffectRequest) -> bool:
        return ask.kind in {"sleep", "await_event"} or (ask.kind == "process" and ask.target in _WAITED)

    def _wait(
        self, run: _Run, key: str, ask: records.EffectRequest, begun: int | None, end: int, *, state: str
    ) -> None:
        parked = run.parked_at.pop(key, None) or run.parked_at.pop(ask.target, None)
        name = key.rpartition("/")[2]
        kind, label = "external", name
        if ask.kind == "sleep":
            kind = "sleep"
        elif approvals.MARK in key:
            kind, label = "approval", keys.tool_in_key(key.rpartition("/")[0])
        elif name == keys.DEFERRAL:
            kind, label = "deferral", keys.tool_in_key(key.rpartition("/")[0])
        elif name.partition("#")[0] == _SUB_AGENT:
            kind = "agent"
        elif ask.kind == "process":
            kind = "agent" if ask.target == "turn" else "process" if ask.target != "outside" else "external"
        elif name.startswith("~") or "/~signal/" in key:
            kind, label = "signal", wait_label(ask.target)
        attributes = self._common(run) | {"holdfast.key": key, "holdfast.wait.kind": kind, "holdfast.state": state}
        attributes["holdfast.parked"] = parked is not None
        start = begun if begun is not None else run.last_at if parked is None else min(parked, run.last_at)
        title = f"wait {kind}" if label in {kind, ""} else f"wait {kind} {label}"
        self._append(run, title, "wait", key, start, end, attributes, _wait_error(state), "")

    # ---- parts of spans ----

    def _finish(
        self,
        run: _Run,
        name: str,
        operation: str,
        record: records.Outcome,
        attributes: dict[str, Value],
        start: int,
        links: tuple[SpanLink, ...] = (),
    ) -> None:
        error, message = "", ""
        if isinstance(record, records.Failed):
            error, message = record.error.kind, record.error.message
        elif isinstance(record, records.Unknown):
            error, message = "unknown", record.why
        elif isinstance(record, records.Cancelled):
            attributes["error.type"] = "cancelled"
        self._append(run, name.strip(), operation, record.key, start, record.at, attributes, error, message, links)

    def _append(
        self,
        run: _Run,
        name: str,
        operation: str,
        key: str,
        start: int,
        end: int,
        attributes: dict[str, Value],
        error: str,
        message: str,
        links: tuple[SpanLink, ...] = (),
    ) -> None:
        above = _key_above(key)
        start = max(run.begun, min(start, run.first_below.pop(key, start), end))
        if above:
            run.first_below[above] = min(start, run.first_below.get(above, start))
        if error:
            attributes["error.type"] = error
        if run.died:
            links = (*links, SpanLink(run.origin.trace, run.died, "interrupted"))
        id = self._span_id(key)
        direct = self.journal.startswith(DIRECT_PREFIX)
        self._found.append(
            Span(
                name=name,
                run=run.run,
                operation=operation,
                trace=run.origin.trace,
                id=id,
                parent=self._span_id(above) if above else "" if direct else run.id,
                start=start,
                end=max(end, start),
                attributes=attributes,
                links=links,
                error=error,
                message=message if self._content else "",
                seq=self.seq,
            )
        )
        run.last = id

    def _start(self, run: _Run, record: records.Outcome, begun: int | None) -> int:
        """The begin of an effect: by its measured time, or by its intent if it was interrupted."""
        ms = getattr(record, "ms", 0)
        if begun is not None and (begun < run.resumed_at or not isinstance(record, records.Done | records.Failed)):
            return begun
        return record.at - ms

    def _common(self, run: _Run) -> dict[str, Value]:
        if not run.common:
            run.common = {self._run_attribute: run.run, "holdfast.worker": run.worker}
            if self._session:
                run.common["gen_ai.conversation.id"] = self._session
            if self._agent:
                run.common["gen_ai.agent.name"] = self._agent
        return run.common.copy()

    def _span_id(self, key: str) -> str:
        return span_id(self._store, self.journal, key)


@lru_cache(maxsize=4_096)
def _key_above(key: str) -> str:
    """The key of the effect in which the effect `key` happened; empty if that is the run itself."""
    above = key.rpartition("/")[0]
    while above.rpartition("/")[2].startswith("~"):
        above = above.rpartition("/")[0]
    batch = above.count("/") == 1 and above.endswith(".tools")
    return above if "/" in above and not batch else ""


def parse_traceparent(text: str) -> SpanLink | None:
    """The span that a W3C ``traceparent`` names; None if the text is none."""
    parts = text.split("-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2] or parts[0] == "ff":
        return None
    try:
        trace, span = int(parts[1], 16), int(parts[2], 16)
    except ValueError:
        return None
    return SpanLink(f"{trace:032x}", f"{span:016x}", "caller") if trace and span else None


def _state(record: records.Outcome) -> str:
    match record:
        case records.Done():
            return "ok"
        case records.Failed():
            return "error"
        case records.Unknown():
            return "unknown"
        case records.Cancelled():
            return "cancelled"


def _wait_error(state: str) -> str:
    return "expired" if state == "error" else ""


@lru_cache(maxsize=1_024)
def _split_model(asked: str) -> tuple[str, str]:
    provider, colon, model = asked.partition(" | ")[0].partition(":")
    return (_PROVIDERS.get(provider, provider), model) if colon else ("", provider)


def _model_names(asked: str) -> dict[str, Value]:
    provider, model = _split_model(asked)
    found: dict[str, Value] = {"gen_ai.provider.name": provider} if provider else {}
    if model:
        found["gen_ai.request.model"] = model
    return found


def _reply_attributes(reply: messages.ModelReply) -> dict[str, Value]:
    found = _usage_attributes(reply.usage, reply.cost)
    found["gen_ai.response.finish_reasons"] = (_FINISH.get(reply.finish, reply.finish),)
    if reply.model:
        found["gen_ai.response.model"] = _split_model(reply.model)[1]
    if reply.response_id:
        found["gen_ai.response.id"] = reply.response_id
    return found


def _usage_attributes(usage: messages.Usage, cost: float | None) -> dict[str, Value]:
    found: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.input + usage.cache_read + usage.cache_write,
        "gen_ai.usage.output_tokens": usage.output,
    }
    if usage.cache_read:
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cache_read
    if usage.cache_write:
        found["gen_ai.usage.cache_creation.input_tokens"] = usage.cache_write
    if usage.reasoning:
        found["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning
    if cost is not None:
        found["holdfast.cost_usd"] = cost
    return found


_SETTINGS: Final = {
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "seed": "gen_ai.request.seed",
}


def _setting_attributes(settings: dict[str, Any]) -> dict[str, Value]:
    return {name: settings[ours] for ours, name in _SETTINGS.items() if settings.get(ours) is not None}


# ---- content ----


def _content_attributes(said: list[dict[str, Any]], answered: list[dict[str, Any]]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if said:
        found["gen_ai.input.messages"] = _json(said)
    if answered:
        found["gen_ai.output.messages"] = _json(answered)
    return found


def _message(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "parts": parts}


def _reply_message(reply: messages.ModelReply) -> dict[str, Any]:
    return _message("assistant", list(_reply_parts(reply))) | {"finish_reason": _FINISH.get(reply.finish, reply.finish)}


def _reply_parts(reply: messages.ModelReply) -> Iterator[dict[str, Any]]:
    for part in reply.parts:
        match part:
            case messages.Text(text) | messages.Refusal(text):
                yield {"type": "text", "content": _shorten(text)}
            case messages.Reasoning(text):
                yield {"type": "reasoning", "content": _shorten(text)}
            case messages.ToolCall():
                arguments = part.malformed if part.arguments is None else part.arguments
                yield {"type": "tool_call", "id": part.id, "name": part.name, "arguments": _bounded(arguments)}
            case messages.Attachment():
                yield _text_part(part)


def _text_part(part: messages.InputPart) -> dict[str, Any]:
    if isinstance(part, messages.Text):
        return {"type": "text", "content": _shorten(part.text)}
    return {"type": "file", "mime_type": part.media_type, "file_id": part.digest}


def _bounded(value: Any) -> Any:
    """A value, or the beginning of its JSON if that is too long."""
    if isinstance(value, str):
        return _shorten(value)
    text = _json(value)
    return value if len(text) <= MAX_TEXT else _shorten(text)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text) - MAX_TEXT:,} more characters)"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
