# Written by scripts/sync_stubs.py from the classes of the async API; change those, and run it again.
"""The types of `hf.open_sync`: the objects of the async API, with methods that wait."""

import builtins
from collections import deque as deque
from collections.abc import AsyncIterable as AsyncIterable
from collections.abc import Awaitable as Awaitable
from collections.abc import Callable, Coroutine, Iterator
from collections.abc import Mapping as Mapping
from collections.abc import Sequence as Sequence
from datetime import date as date
from datetime import datetime as datetime
from datetime import timedelta as timedelta
from pathlib import Path as Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
from typing import Generic as Generic

from holdfast import media as media
from holdfast.agent import Agent as Agent
from holdfast.agent import OutputT as OutputT
from holdfast.agent import OutputT_co as OutputT_co
from holdfast.clock import Clock as Clock
from holdfast.deps import DepsSource as DepsSource
from holdfast.events import Event as Event
from holdfast.memory.handle import T as T2
from holdfast.messages import Attachment as Attachment
from holdfast.messages import Message as Message
from holdfast.messages import Settings as Settings
from holdfast.messages import Text as Text
from holdfast.models import Model as Model
from holdfast.models.prices import Price as Price
from holdfast.policy.hooks import Hooks as Hooks
from holdfast.processes import definition as definition
from holdfast.processes import lists as lists
from holdfast.processes import service as service
from holdfast.processes import tasks as tasks
from holdfast.processes.definition import AnyProcess as AnyProcess
from holdfast.processes.service import Requested as Requested
from holdfast.processes.service import Signalled as Signalled
from holdfast.processes.service import T as T
from holdfast.processes.state import ProcessState as ProcessState
from holdfast.processes.state import ProcessStatus as ProcessStatus
from holdfast.processes.state import TaskCall as TaskCall
from holdfast.processes.state import TaskStatus as TaskStatus
from holdfast.processes.state import WorkItem as WorkItem
from holdfast.processes.tasks import RecoveredTask as RecoveredTask
from holdfast.records import Status as Status
from holdfast.runtime import retention as retention
from holdfast.runtime import session_records as session_records
from holdfast.runtime.approvals import Approval as Approval
from holdfast.runtime.host_call import CallStatus as CallStatus
from holdfast.runtime.host_call import R as R2
from holdfast.runtime.open import T as T3
from holdfast.runtime.runtime import P as P
from holdfast.runtime.runtime import R as R
from holdfast.runtime.session import AbortedCall as AbortedCall
from holdfast.runtime.session import UsageLine as UsageLine
from holdfast.runtime.subscriptions import Control as Control
from holdfast.runtime.subscriptions import EmitRequest as EmitRequest
from holdfast.runtime.turn import CancelStatus as CancelStatus
from holdfast.runtime.turn import TurnOutcome as TurnOutcome
from holdfast.runtime.turn import TurnStatus as TurnStatus
from holdfast.secrets.sources import SecretsInput as SecretsInput
from holdfast.store import Collected as Collected
from holdfast.store import MemoryChange as MemoryChange
from holdfast.store import MemoryEntry as MemoryEntry
from holdfast.store import Notification as Notification
from holdfast.store import inbox as inbox
from holdfast.store.contract import Durability as Durability
from holdfast.store.contract import Journal as Journal
from holdfast.store.contract import Settlement as Settlement
from holdfast.store.contract import StoreLimits as StoreLimits
from holdfast.store.contract import Wait as Wait
from holdfast.store.exports import SessionReport as SessionReport
from holdfast.store.notifications import NotificationState as NotificationState
from holdfast.store.notifications import SettledByHand as SettledByHand
from holdfast.store.retention import Forgotten as Forgotten
from holdfast.store.spending import Spend as Spend
from holdfast.store.sqlite.backup import BackupReport as BackupReport
from holdfast.telemetry import Telemetry as Telemetry
from holdfast.tools.definition import AnyTool as AnyTool
from holdfast.tools.definition import Tool as Tool
from holdfast.triggers.definition import Source as Source
from holdfast.triggers.definition import TriggerOptions as TriggerOptions
from holdfast.triggers.driver import PrunedTrigger as PrunedTrigger
from holdfast.triggers.service import Delivery as Delivery
from holdfast.triggers.service import EventReceipt as EventReceipt
from holdfast.triggers.service import TriggerStatus as TriggerStatus
from holdfast.turns.conversation import UsageTotal as UsageTotal

FACADES: Final[dict[type, type[Any]]]
OMITTED: Final[dict[str, frozenset[str]]]
_T = TypeVar("_T")

def call_on_loop(runtime: SyncRuntime, name: str, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T: ...

class SyncRuntime:
    agents: dict[str, Agent]
    attachments: SyncAttachments
    tasks: SyncTasks
    processes: SyncProcesses
    triggers: SyncTriggers
    notifications: SyncNotifications
    def close(self, *, grace: float = ...) -> None:
        """Accept nothing new, let short work finish within `grace` seconds, leave the rest to the next runtime."""
    def register(self, agent: Agent) -> Agent:
        """Let `agent` run here."""
    def session(
        self, id: str, *, agent: Agent[Any, OutputT] | str | None = None, metadata: dict[str, Any] | None = None
    ) -> SyncSession[OutputT]:
        """The session with this id. Nothing is read or written yet; without `agent`, it must exist when it is used."""
    def sessions(
        self, *, agent: str | None = None, status: Status | None = None, before: Journal | None = None, limit: int = 50
    ) -> list[Journal]:
        """List sessions, the last changed first."""
    def spent(self, agent: Agent[Any, Any] | str, *, day: date | None = None) -> Spend:
        """Everything that the sessions of an agent have used, in total or on one day (UTC): what `Limits` counts."""
    def forget(
        self,
        session: str,
        *,
        forks: bool = False,
        memory: Sequence[str] | None = None,
        keep_hash: bool = False,
        dry_run: bool = False,
    ) -> Forgotten:
        """Remove a session and everything that belongs to it, in one transaction, also while it runs."""
    def prune_sessions(
        self, older_than: timedelta | float, *, dry_run: bool = False, limit: int | None = None
    ) -> retention.SessionPruneReport:
        """Forget the sessions that have not changed for so long, at most `limit`. Memory stays."""
    def backup(self, path: Path | str, *, with_key: bool = True) -> BackupReport:
        """Copy one state of the store into the new file `path`, and check the copy, while work goes on."""
    def export_session(
        self,
        session: str,
        path: Path | str,
        *,
        move: bool = False,
        force: bool = False,
        memory: Sequence[str] | None = None,
    ) -> SessionReport:
        """Write a session with everything that belongs to it, its forks too, into the file `path` (``-``: the output)."""
    def import_session(
        self, path: Path | str, *, key: Path | str | None = None, trust: bool = False, dry_run: bool = False
    ) -> SessionReport:
        """Store the session in a file of `export_session` (``-``: the input), all of it in one transaction."""
    def refusals(self, session: str | None = None, *, limit: int = 50) -> list[inbox.RefusedInput]:
        """List refused inputs, newest first: when, why, and how many of that session there were so far."""
    def run(
        self,
        agent: Agent[Any, OutputT] | str,
        prompt: str,
        *,
        session: str | None = None,
        key: str | None = None,
        deadline: timedelta | float | None = None,
        metadata: dict[str, Any] | None = None,
        model: str | None = None,
        settings: Settings | None = None,
    ) -> TurnOutcome[OutputT]:
        """Send a prompt and wait for the outcome, in a new session unless `session` names one."""
    @overload
    def call(
        self,
        tool: Tool[..., Awaitable[R]],
        arguments: dict[str, Any] | None = None,
        *,
        session: str,
        key: str | None = None,
        inline_budget: timedelta | float | None = None,
        notify: bool = False,
    ) -> SyncHostCall[R]: ...
    @overload
    def call(
        self,
        tool: Tool[..., R],
        arguments: dict[str, Any] | None = None,
        *,
        session: str,
        key: str | None = None,
        inline_budget: timedelta | float | None = None,
        notify: bool = False,
    ) -> SyncHostCall[R]: ...
    @overload
    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        session: str,
        key: str | None = None,
        inline_budget: timedelta | float | None = None,
        notify: bool = False,
    ) -> SyncHostCall[Any]: ...
    def call(
        self,
        tool: AnyTool | str,
        arguments: dict[str, Any] | None = None,
        *,
        session: str,
        key: str | None = None,
        inline_budget: timedelta | float | None = None,
        notify: bool = False,
    ) -> SyncHostCall[Any]:
        """Make one tool call outside a turn, with a tool of the session's agent: by the tool, or by its name."""
    @overload
    def start(
        self, process: definition.ProcessDefinition[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncProcess[R]: ...
    @overload
    def start(
        self, process: definition.ProcessDefinition[..., R], /, *args: Any, id: str | None, **kwargs: Any
    ) -> SyncProcess[R]: ...
    @overload
    def start(
        self, process: definition.ProcessDefinition[..., R], /, *args: Any, session: str | None, **kwargs: Any
    ) -> SyncProcess[R]: ...
    @overload
    def start(self, process: str, /, *args: Any, **kwargs: Any) -> SyncProcess[Any]: ...
    def start(
        self, process: Any, /, *args: Any, id: str | None = None, session: str | None = None, **kwargs: Any
    ) -> SyncProcess[Any]:
        """Start a durable function. When this returns, the start is durable and the process will run to its end."""
    def signal(self, id: str, name: str, value: object = None, *, key: str | None = None) -> service.Signalled:
        """Send a signal that a process waits for, or will wait for: once for each `key`."""
    @overload
    def complete(
        self, model: Model | str, prompt: str, *, output: type[R], instructions: str = "", key: str | None = None
    ) -> R: ...
    @overload
    def complete(
        self, model: Model | str, prompt: str, *, output: None = None, instructions: str = "", key: str | None = None
    ) -> str: ...
    @overload
    def complete(
        self, model: Model | str, prompt: str, *, output: Any, instructions: str = "", key: str | None = None
    ) -> Any: ...
    def complete(
        self, model: Model | str, prompt: str, *, output: Any = None, instructions: str = "", key: str | None = None
    ) -> Any:
        """Ask a model once, without a conversation; returns text, or a value of the type `output`."""
    def requests(self, journal: str) -> list[session_records.RecordedRequest]:
        """The model requests of a journal: of a session, a process, or ``direct/KEY`` of `complete`."""
    def abort_calls(self, session: str, reason: str = "") -> list[AbortedCall]:
        """Cancel all tool calls of a session that are under way: those of its turn, and those in the background."""
    def resolve(self, key: str, value: object = None, *, error: str | None = None) -> Settlement:
        """Answer a wait, or give the result of a deferred call; `error` reports a failure instead."""
    def waits(self, session: str) -> list[Wait]:
        """The open waits of a session that `resolve` can answer."""
    def wait_token(self, session: str, name: str) -> str:
        """The key with which `resolve` answers a wait of a session."""
    def approvals(self, session: str | None = None) -> list[Approval]:
        """List the calls that wait for approval, oldest first: of one session, or of all."""
    def approve(
        self,
        id: str,
        *,
        by: str | None = None,
        arguments: dict[str, Any] | None = None,
        always: str | None = None,
        digest: str | None = None,
    ) -> Approval:
        """Let a call run once: exactly as it was shown, or with other `arguments`."""
    def deny(self, id: str, reason: str = "", *, by: str | None = None) -> Approval:
        """Refuse a call; the model gets the reason as its result, and the turn continues."""
    def events(self, after: int | str | None = None) -> Iterator[Event]:
        """Yield the events of all sessions in commit order: after a cursor, or from now on (0: from the start)."""
    def on(
        self,
        kind: Any,
        handler: Callable[[Any], Awaitable[None] | None],
        *,
        session: str | None = None,
        after: int | str | None = None,
        concurrency: int = 16,
    ) -> SyncSubscription:
        """Call `handler` with each event of a kind: in order for each session, from a cursor or from now on."""
    def emit(self, request: EmitRequest, *, control: Control | None = None) -> SyncEmitted:
        """Accept a request: the receipt names the turn at once; awaiting it gives the outcome."""
    def every(
        self, name: str, source: Source, target: object, /, *, options: TriggerOptions | None = None, **arguments: Any
    ) -> SyncTrigger:
        """Start `target` at each occurrence of `source`, exactly once, also across restarts and processes."""
    def deliver_webhook(self, name: str, headers: Mapping[str, str], body: bytes) -> Delivery:
        """Hand a request to the trigger `name`; returns accepted, duplicate or refused, and the HTTP status."""
    def emit_event(self, name: str, payload: object = None, *, key: str | None = None) -> EventReceipt:
        """Fire all triggers on the event `name`, once for each `key`."""
    def notify(
        self,
        session: str,
        title: str,
        body: str = "",
        *,
        key: str | None = None,
        priority: int = 0,
        at: datetime | None = None,
        expires: datetime | None = None,
        kind: str = "host",
        payload: object = None,
    ) -> Notification:
        """Notify a session: at the next safe point of its turn, or as a new turn if it is idle."""
    def memory(self, scope: str, *, by: str | None = None) -> SyncMemory:
        """The memory of a scope: texts that outlive sessions, mirrored as files next to the store."""
    def gate_changed(self, session: str | None = None) -> None:
        """Ask `can_deliver` again, also for pumps: for one session, or for all."""
    def recover(self) -> list[tasks.RecoveredTask]:
        """Recover the background calls of dead processes; returns each with the action taken."""
    @property
    def active(self) -> int:
        """Number of sessions that are being driven."""
    @property
    def forked(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class SyncSession(Generic[OutputT_co]):
    id: str
    def send(
        self,
        content: str | Text | media.File | Attachment | Sequence[str | Text | media.File | Attachment],
        *,
        key: str | None = None,
        steer: bool = False,
        pin: bool = False,
        deadline: timedelta | float | None = None,
        metadata: dict[str, Any] | None = None,
        untrusted: bool = False,
        model: str | None = None,
        settings: Settings | None = None,
    ) -> SyncTurn[OutputT_co]:
        """Send an input. When this returns, it is durable and will be answered."""
    def compact(self, *, key: str | None = None) -> SyncTurn:
        """Summarise the older part of the conversation now. When this returns, the request is durable."""
    def turn(self, id: str) -> SyncTurn[OutputT_co]:
        """The turn with this id."""
    def agent(self) -> str:
        """The name of the session's current agent: the first one, or the target of the last handoff."""
    def metadata(self) -> dict[str, Any]:
        """The metadata with which the session was opened."""
    def status(self) -> Status:
        """The status: idle, running, waiting, or how the last turn ended."""
    def open_turn(self) -> SyncTurn[OutputT_co] | None:
        """The turn that runs or waits, or else the next in the queue; None if all turns have ended."""
    def last_turn(self) -> SyncTurn[OutputT_co] | None:
        """The newest turn, also one in the queue or the retry of another; None in a fork that has none of its own."""
    def cancel(self, reason: str = "") -> CancelStatus:
        """Stop the running turn, or else the next one; returns `too_late` if there is none."""
    def history(self, *, at: int | None = None) -> list[Message]:
        """All messages, oldest first, including those of the running turn; `at` shows them as of a record."""
    def context(self) -> list[Message]:
        """The messages that the model sees: after compaction fewer than `history`."""
    def requests(self) -> list[session_records.RecordedRequest]:
        """The model requests of this session, rebuilt from its journal without its agents' code."""
    def search(self, words: str) -> list[Message]:
        """The messages of `history` that contain these words, oldest first, with compacted ones."""
    def usage(self) -> list[UsageLine]:
        """Usage by model and source; the source "child" is the usage of all sub-agents."""
    def total_usage(self) -> UsageTotal:
        """The sum of `usage`: all models, with sub-agents on all levels."""
    def events(self, after: int | str = 0) -> Iterator[Event]:
        """Yield the events of this session, from its start or after a cursor, until the runtime is closed."""
    def fork(self, at: int | None = None, *, id: str | None = None) -> SyncSession[OutputT_co]:
        """Make a session that begins where this one was at record `at`; nothing is copied, and this one stays."""

class SyncTurn(Generic[OutputT_co]):
    session: str
    id: str
    def outcome(
        self, *, timeout: float | None = None, wait_for_agent: timedelta | float | None = None
    ) -> TurnOutcome[OutputT_co]:
        """Wait for the outcome. After `timeout` seconds, raises `TimeoutError`; the turn continues."""
    def status(self) -> TurnStatus:
        """The current status."""
    def events(self, after: int | str | None = None) -> Iterator[Event]:
        """Yield the events of this turn, from its start or after a cursor, until it ends or the runtime is closed."""
    def cancel(self, reason: str = "") -> CancelStatus:
        """Request that the turn is stopped, wherever it is. The first request counts; one after the end is too late."""
    def retry(
        self, *, from_step: int | None = None, key: str | None = None, repeat_unknown: bool = False
    ) -> SyncTurn[OutputT_co]:
        """Try an ended turn again; returns the turn that does. When this returns, the request is durable."""
    def cancel_call(self, call: str, reason: str = "") -> CancelStatus:
        """Request that one tool call of the turn is cancelled, wherever it is; the others go on."""

class SyncProcess(Generic[OutputT_co]):
    id: str
    @overload
    def result(self, *, timeout: float | None = None, returns: None = None) -> OutputT_co: ...
    @overload
    def result(self, *, timeout: float | None = None, returns: type[T]) -> T: ...
    def result(self, *, timeout: float | None = None, returns: type[Any] | None = None) -> Any:
        """Wait for the end, and return the result as the type `returns`, or as the one that the function declares."""
    def status(self) -> ProcessStatus:
        """Its status."""
    def line(self) -> lists.ProcessLine:
        """Its line in lists."""
    def signal(self, name: str, value: object = None, *, key: str | None = None) -> Signalled:
        """Send a signal that it waits for, or will wait for. After its end it is too late."""
    def cancel(self, reason: str = "") -> Requested:
        """Ask for it to be stopped, wherever it is. The first request counts; one after the end is too late."""
    def complete(self, value: object = None) -> bool:
        """End a process that is carried out elsewhere; False if it had ended before."""
    def fail(self, message: str) -> bool:
        """End it with a failure."""
    def retry(
        self, *, from_step: str | None = None, key: str | None = None, repeat_unknown: bool = False
    ) -> SyncProcess:
        """Start it again from its failure, or from a step, as a new process that uses the results before."""
    def transfer(self, session: str) -> Requested:
        """Let it work for another session, which is notified of its end. After the end it is too late."""
    def events(self, after: int = 0) -> Iterator[lists.ProcessEvent]:
        """Its events from the beginning or after a cursor (`seq`), until it has ended."""
    def timeline(self) -> list[lists.ProcessEvent]:
        """Its events so far."""

class SyncProcesses:
    functions: dict[str, AnyProcess]
    def external(
        self,
        *,
        title: str,
        instructions: str = "",
        tags: Sequence[str] = ...,
        requested_by: str | None = None,
        metadata: dict[str, Any] | None = None,
        key: str | None = None,
        session: str | None = None,
        deadline: timedelta | float | None = None,
        parent: SyncSession[Any] | SyncTurn[Any] | SyncProcess[Any] | str | None = None,
    ) -> SyncExternalWork:
        """Begin a work item: a process that a person or another system carries out. It is durable when this returns."""
    def find_external(self, id: str) -> SyncExternalWork:
        """The handle of a work item, by its id or its token. This reads nothing."""
    def retry(self, id: str, *, from_step: str | None, key: str | None, repeat_unknown: bool) -> SyncProcess:
        """Start an ended process again, from its failure or from a step. See `Process.retry`."""
    def handle(self, id: str) -> SyncProcess:
        """The handle of a process. This reads nothing."""
    def get(self, id: str) -> SyncProcess:
        """The process with this id, also one that was pruned; `ProcessUnknown` when there never was one."""
    def line(self, id: str) -> lists.ProcessLine:
        """The list line of a process, also of a pruned one, with its retries."""
    def list(
        self,
        *,
        status: ProcessStatus | None = None,
        name: str | None = None,
        session: str | None = None,
        parent: str | None = None,
        tag: str | None = None,
        before: lists.ProcessLine | None = None,
        limit: int = 50,
    ) -> list[lists.ProcessLine]:
        """Processes, those that changed last first. Pass the last one as `before` for the next page."""
    def stuck(self, limit: int | None = None) -> list[lists.StuckProcess]:
        """Processes that need a person, with the command that helps."""
    def changes(self, after: int = 0, limit: int | None = None) -> lists.ProcessChanges:
        """Processes that began, went on, waited or ended, in the order in which they did, from a cursor on."""
    def prune(
        self, older_than: timedelta | float, *, name: str | None = None, dry_run: bool = False, limit: int | None = None
    ) -> lists.PruneReport:
        """Forget processes that ended so long ago, with all that belongs to them. A tombstone of each stays for ever."""
    def events(self, id: str, after: int = 0) -> Iterator[lists.ProcessEvent]:
        """What happens in a process, from its beginning or from a cursor, until it has ended."""
    def abandon(self, id: str, reason: str = "", *, by: str = "") -> Requested:
        """Give up a process that can't go on. It ends as abandoned, with who and why."""
    def transfer(self, id: str, session: str) -> Requested:
        """Let a process work for another session, which is notified of its end. After the end it is too late."""

class SyncExternalWork(SyncProcess[Any]):
    @property
    def token(self) -> str:
        """A secret token for `Processes.find_external` in another process."""
    def item(self) -> WorkItem:
        """Its title, instructions, tags and metadata."""
    def progress(self, note: str = "", fraction: float | None = None) -> Requested:
        """Report progress: a note, and the fraction done, from 0 to 1. Returns ``"too_late"`` after the end."""

class SyncHostCall(Generic[R2]):
    id: str
    disposition: Final
    def status(self) -> CallStatus:
        """Its status now."""
    def result(self, *, timeout: float | None = None) -> R2:
        """Wait for its result, as the type that the tool declares."""
    def cancel(self, reason: str = "") -> Requested:
        """Request its cancellation, in any process. The first request counts; one after the end is too late."""

class SyncTasks:
    def start_host_call(self, id: str, agent: str, call: TaskCall, session: str) -> None:
        """Make a host call; returns once it is durable."""
    def list(
        self,
        *,
        session: str | None = None,
        status: TaskStatus | None = None,
        before: Journal | None = None,
        limit: int = 50,
    ) -> Sequence[Journal]:
        """Tasks, the last changed first; `status` is a status word of tasks."""
    def under_way(self, session: str) -> builtins.list[str]:
        """The ids of the tasks of a session that have not ended."""
    def task(self, id: str) -> ProcessState:
        """One task; `TaskUnknown` when there is none."""
    def result(self, state: ProcessState) -> bytes | None:
        """The result of a task as JSON; None without one."""
    def cancel(self, id: str, reason: str = "") -> Requested:
        """Request the cancellation of a task and its sub-agent. The first request counts."""
    def recover(self) -> list[RecoveredTask]:
        """Tasks whose process is gone, with their recovery here. Leaves out tasks of live processes."""

class SyncAttachments:
    def put(
        self,
        data: bytes | Path | str | AsyncIterable[bytes],
        *,
        media_type: str | None = None,
        name: str | None = None,
        session: str | None = None,
    ) -> Attachment:
        """Store bytes, or the file at a path, once. When this returns they are durable; pass the result to `send`."""
    def get(self, attachment: Attachment | str, *, session: str | None = None) -> bytes:
        """The bytes of an attachment or digest."""
    def stream(self, attachment: Attachment | str, *, session: str | None = None) -> Iterator[bytes]:
        """Yield the bytes in parts: ``async for part in runtime.attachments.stream(picture)``."""
    def of(self, session: str | None = None) -> list[Attachment]:
        """The attachments put for a session or sent to it; without a session, those of none."""
    def collect(
        self, *, older_than: timedelta | float = ..., dry_run: bool = False, without_roots: bool = False
    ) -> Collected:
        """Delete unreferenced bytes: those that no record, input, fork, task, process or session refers to."""

class SyncMemory:
    scope: Any
    def written_by(self, by: str) -> SyncMemory:
        """The same memory for another author."""
    @overload
    def get(self, key: str, *, returns: None = None) -> MemoryEntry | None: ...
    @overload
    def get(self, key: str, *, returns: type[T2]) -> MemoryEntry[T2] | None: ...
    def get(self, key: str, *, returns: type[Any] | None = None) -> MemoryEntry | None:
        """The entry; None without one. Its value has the type `returns`, by default a text or plain JSON types."""
    def put(
        self,
        key: str,
        value: object,
        *,
        summary: str = "",
        metadata: Mapping[str, object] | None = None,
        expected: int | None = None,
        ttl: timedelta | float | None = None,
    ) -> MemoryEntry:
        """Write an entry, a text or a value with a JSON form; returns it with its new version."""
    def rewrite(
        self,
        entry: MemoryEntry,
        value: object,
        *,
        summary: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> MemoryEntry:
        """Replace the value of an entry if its version is still that of `entry`; keep its expiry."""
    def copy(self, entry: MemoryEntry, key: str) -> MemoryEntry:
        """Write the value of `entry` under a free key, with the same expiry, summary and metadata."""
    def delete(self, key: str, *, expected: int | None = None) -> MemoryEntry | None:
        """Remove an entry; returns it, or None without one. Its history stays."""
    def list(self, prefix: str = "", *, after: str = "", limit: int | None = None) -> list[MemoryEntry]:
        """Entries whose key begins with `prefix`, by key. Pass the last key as `after` for the next page."""
    def entries(self, prefix: str = "", *, damaged: Callable[[str], object] | None = None) -> Iterator[MemoryEntry]:
        """All entries whose key begins with `prefix`, by key, read page by page."""
    def damaged(self, prefix: str = "") -> list[str]:
        """The keys of entries with a wrong checksum. Write them again, or restore them from a backup."""
    def search(self, words: str, limit: int | None = None) -> list[MemoryEntry]:
        """Entries that contain all these words in key, value or summary, best first. No word is an operator."""
    def history(self, key: str, limit: int | None = None) -> list[MemoryChange]:
        """The changes of an entry, newest first, also of a deleted one. The store keeps a limited number."""

class SyncTriggers:
    def list(self) -> list[TriggerStatus]:
        """All triggers, by name."""
    def get(self, name: str) -> TriggerStatus:
        """One trigger; `TriggerUnknown` without one."""
    def fire(self, name: str, payload: object = None, *, key: str | None = None) -> str:
        """Fire a trigger by hand, once for each `key`; answers the occurrence. `TriggerDisabled` if it is off."""
    def enable(self, name: str, *, by: str = "") -> TriggerStatus:
        """Enable a trigger. It skips moments missed while it was off, but not files."""
    def disable(self, name: str, *, by: str = "") -> TriggerStatus:
        """Disable a trigger. Reserved occurrences still start."""
    def remove(self, name: str, *, by: str = "") -> None:
        """Remove a trigger and drop its reserved occurrences; started work continues."""
    def prune(
        self, name: str | None = None, *, older_than: timedelta | float, dry_run: bool = False
    ) -> list[PrunedTrigger]:
        """Prune old records of one trigger or of all, including removed ones."""
    def deliver_webhook(self, name: str, headers: Mapping[str, str], body: bytes) -> Delivery:
        """Accept a webhook if it is signed, recent and new."""
    def emit_event(self, name: str, payload: object = None, *, key: str | None = None) -> EventReceipt:
        """Pass an event to all triggers of its name; it is durable for each when this returns."""

class SyncTrigger:
    name: str
    def status(self) -> TriggerStatus: ...
    def fire(self, payload: object = None, *, key: str | None = None) -> str:
        """Fire it by hand."""

class SyncSubscription:
    errors: deque[tuple[Event, BaseException]]
    error: Exception | None
    failures: Any
    handled: Any
    @property
    def finished(self) -> bool:
        """True if it has ended: by `stop`, by an error, or with the runtime."""
    def stop(self) -> None:
        """Call the handler no more; a running one may finish."""

class SyncEmitted:
    session: str
    turn: str
    def outcome(self, *, timeout: float | None = None) -> TurnOutcome: ...
    def events(self, after: int | str | None = None) -> Iterator[Event]:
        """Yield the events of the turn."""
    def cancel(self, reason: str = "") -> CancelStatus:
        """Request that the turn is stopped."""

class SyncNotifications:
    def list(
        self,
        session: str | None = None,
        state: NotificationState | None = None,
        *,
        before: Notification | None = None,
        limit: int = 50,
    ) -> list[Notification]:
        """Notifications, newest first; ``state="claimed"``: those in flight. `before` is the last one of a page."""
    def settle(self, id: int, state: SettledByHand) -> bool:
        """Settle one by hand: ``cancelled``, ``acknowledged``, or a dead one ``queued`` again. False if too late."""
    def pump(
        self,
        session: str,
        *,
        can_deliver: Callable[[str], bool | Awaitable[bool]] | None = None,
        interval: timedelta | float = ...,
    ) -> Iterator[SyncPumpedNotification]:
        """Take the notifications of a session yourself, one at a time, in the order of delivery."""

class SyncPumpedNotification:
    notification: Final[Notification]
    id: Final[int]
    @property
    def title(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def payload(self) -> Any: ...
    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""
    @property
    def text(self) -> str:
        """The text for a model: title and body, fenced as data."""
    def ack(self) -> bool:
        """Acknowledge it: it is done. False if it was settled otherwise, or its pump has lost it."""
    def requeue(self, delay: timedelta | float | None = None, reason: str = "") -> bool:
        """Queue it again: after `delay` (a timedelta or seconds; by default 1 s, doubled with each attempt)."""

def open_sync(
    path: Path | str | None,
    *,
    agents: Sequence[Agent[T3, Any]] = ...,
    durability: Durability = "power",
    lease_ms: int = ...,
    concurrency: int = ...,
    max_calls: int = ...,
    drive: bool = True,
    prices: Mapping[str, Price] | None = None,
    can_deliver: Callable[[str], bool | Awaitable[bool]] | None = None,
    mirror: bool = True,
    secrets: SecretsInput = None,
    hooks: Sequence[Hooks] = ...,
    inline_budget: timedelta | float | None = None,
    limits: StoreLimits | None = None,
    clock: Clock | None = None,
    processes: Sequence[AnyProcess] = ...,
    deps: DepsSource[T3] = ...,
    retention: timedelta | float | None = None,
    session_retention: timedelta | float | None = None,
    gate_interval: timedelta | float = ...,
    missing_tool_deadline: timedelta | float = ...,
    telemetry: Telemetry | None = None,
) -> SyncRuntime:
    """Open the store at `path` (None: in memory) with the agents that may run on it, as an async context manager."""

def run_sync(
    agent: Agent[T3, OutputT],
    prompt: str,
    *,
    deadline: timedelta | float | None = None,
    deps: DepsSource[T3] = ...,
    model: str | None = None,
    settings: Settings | None = None,
) -> TurnOutcome[OutputT]:
    """Ask an agent once, on a temporary store in memory. `model` and `settings`: see `Session.send`."""
