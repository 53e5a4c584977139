"""Errors that the caller can act on: wrong arguments, unknown ids, refused inputs, changed code."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from holdfast.errors.base import UsageError, excerpt
from holdfast.errors.fields import ErrorFields

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.effects.replay import Divergence


_SHOWN: Final = frozenset((str, bytes, int, float, bool, type(None), list, tuple, dict, set))
"""Types that the excerpt of a value shows by itself."""


class InvalidId(ErrorFields, UsageError):
    """An id that cannot name a session, key, wait or step."""

    what: str
    value: object
    reason: str
    _message = "{what} {value!e} is not valid: {reason}"


class InvalidNumber(ErrorFields, UsageError):
    """A number out of range: a time, a size, a position or a count."""

    what: str
    value: object
    reason: str
    _message = "{what} {value!e} is not valid: {reason}"


class InvalidArgument(UsageError):
    """An argument of the wrong type."""

    def __init__(self, what: str, value: object, wanted: str) -> None:
        instead = "" if type(value) in _SHOWN else f", not a {type(value).__name__}"
        super().__init__(f"{what} {excerpt(value)} is not valid: {wanted} is wanted{instead}")
        self.what = what
        self.value = value
        self.wanted = wanted


class InvalidValue(ErrorFields, UsageError):
    """A value that has no canonical JSON form, so it cannot be recorded."""

    path: str
    reason: str
    _message = "the value at {path} can't be recorded: {reason}; use plain JSON values"


class PayloadTooLarge(UsageError):
    """A payload is over its limit."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        other = {"the attachment": "", "the blob": "", "the summary": "shorten it or "}
        instead = other.get(what, "store it as an attachment or ")
        super().__init__(f"{what} is {size:,} bytes, the limit is {limit:,}; {instead}raise the limit")
        self.what = what
        self.size = size
        self.limit = limit


class ResultTooLarge(ErrorFields, PayloadTooLarge):
    """A function ran to its end, but its result is over the limit and was not recorded."""

    what: str
    size: int
    limit: int
    _message = """it ran to its end, but what it gave can't be kept: {what} of {size:,} bytes, the limit is
        {limit:,}; return less, or raise StoreLimits(blob_bytes=)"""


class ArgumentsInvalid(InvalidArgument):
    """The arguments of a tool call do not fit its schema."""

    def __init__(self, tool: str, arguments: object, complaint: str) -> None:
        wrong = "; ".join(line[2:] for line in complaint.splitlines() if line.startswith("- ")) or complaint
        UsageError.__init__(self, f"the arguments of {tool} are not valid: {wrong}")
        self.what = "arguments"
        self.value = arguments
        self.wanted = wrong
        self.tool = tool


class AgentInvalid(ErrorFields, UsageError):
    """The definition of an agent is wrong."""

    agent: str
    reason: str
    _message = "the agent {agent!r} is not valid: {reason}"


class AgentUnknown(ErrorFields, UsageError):
    """This runtime has no agent of that name."""

    agent: str
    known: tuple[str, ...]
    _message = "this runtime has no agent {agent!r}; it has: {known!l}. Pass it to open(agents=[...])"


class AgentMissing(ErrorFields, UsageError):
    """The session makes no progress: this runtime does not have its agent, and no other worker drives it."""

    session: str
    agent: str
    known: tuple[str, ...]
    _message = """the session {session!r} needs the agent {agent!r}, and this runtime has: {known!l}. Pass it to
        open(agents=[...]), or wait for a process that has it with outcome(wait_for_agent=)"""


class DepsMissing(ErrorFields, UsageError):
    """A tool, a hook or a process wants dependencies, and the runtime has none."""

    who: str
    wanted: str = "deps"
    _message = "{who} wants {wanted} as its dependencies, and this runtime has none; give it to hf.open(deps=...)"


class DepsMismatch(ErrorFields, UsageError):
    """The dependencies of the runtime are of another type than a tool or a process wants."""

    who: str
    wanted: str
    given: str
    _message = "{who} wants {wanted} as its dependencies, and hf.open(deps=...) gave a {given}"


class ForeignLoop(ErrorFields, UsageError):
    """A runtime was used from another event loop than the one that opened it. Nothing was begun."""

    _message = """this runtime belongs to the event loop it was opened in; call it there with
        asyncio.run_coroutine_threadsafe(..., loop), or open the store again in this loop"""


class TelemetryMissing(ErrorFields, UsageError):
    """Tracing is configured, but OpenTelemetry is not installed. Nothing was opened."""

    _message = "tracing needs OpenTelemetry; install it with: pip install 'holdfast[otel]'"


class TelemetryUnconfigured(ErrorFields, UsageError):
    """Tracing is configured, but there is no place to export spans to. Nothing was opened."""

    reason: str
    _message = """{reason}; give Telemetry(endpoint="http://127.0.0.1:4318"), set OTEL_EXPORTER_OTLP_ENDPOINT, or call
        opentelemetry.trace.set_tracer_provider before hf.open"""


class StoreInWorkspace(ErrorFields, UsageError):
    """The workspace of a tool contains a file of the store, so its calls could approve themselves."""

    agent: str
    tool: str
    workspace: str
    place: str
    """The file of the store that the tool can reach."""
    remedy: str
    _message = """the tool {tool!r} of agent {agent!r} works in {workspace} and could reach {place}, which belongs to
        the store: its calls could approve themselves. {remedy}"""


class ToolInvalid(UsageError):
    """The function cannot be a tool."""

    def __init__(self, function: str, parameter: str | None, reason: str) -> None:
        where = f"parameter {parameter!r} of the tool {function!r}" if parameter else f"the tool {function!r}"
        super().__init__(f"{where} is not valid: {reason}")
        self.function = function
        self.parameter = parameter
        self.reason = reason


class TurnUnknown(ErrorFields, UsageError):
    """The session has no such turn."""

    session: str
    turn: str
    _message = "the session {session!r} has no turn {turn!r}"


class CallUnknown(ErrorFields, UsageError):
    """The session has no such tool call, or none that can be cancelled by itself."""

    session: str
    call: str
    reason: str
    _message = "the session {session!r} has no call {call!e} to cancel: {reason}"


class CallConflict(ErrorFields, UsageError):
    """The key of a host call was used before with another tool, other arguments or another session."""

    key: str
    id: str
    _message = "another host call was made under the key {key!r} ({id}); a new call needs a new key"


class CallOverBudget(ErrorFields, UsageError):
    """A budget of the session, the day or the agent leaves no room for a host call. It was not made."""

    session: str
    code: str
    reason: str
    _message = "the call for the session {session!r} was not made ({code}): {reason}; raise the limit, or wait"


class TaskUnknown(ErrorFields, UsageError):
    """There is no such background task."""

    task: str
    _message = "there is no task {task!r}; `holdfast tasks` lists them"


class CursorInvalid(ErrorFields, UsageError):
    """The cursor does not belong to this stream of events."""

    cursor: object
    reason: str
    _message = "the cursor {cursor!e} is not valid: {reason}; use the cursor of an event, or 0"


class ControlCancelled(UsageError):
    """The `Control` was cancelled and accepts no more requests."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this control was cancelled{f': {reason}' if reason else ''}; make another one")
        self.reason = reason


class TooManyRuntimes(ErrorFields, UsageError):
    """One process opened the same store too often to drive it."""

    path: str
    limit: int
    _message = """this process drives the store {path!r} {limit} times already; open it once and share the runtime,
        or pass drive=False to accept and watch only"""


class RuntimeStopped(ErrorFields, UsageError):
    """The runtime is closed or closing and accepts nothing new."""

    _message = "this runtime is closed or closing; open it again"


class RuntimeUnopened(ErrorFields, UsageError, AttributeError):
    """The result of `hf.open` was used without `async with` or `await`."""

    used: str
    _message = """{used!r} needs an open runtime: write 'async with hf.open(...) as runtime:', in a notebook
        'runtime = await hf.open(...)', in code that is not async 'with hf.open_sync(...) as runtime:'"""


class RuntimeForked(ErrorFields, UsageError):
    """A runtime of `hf.open_sync` was used in a forked child: its thread and its store stayed in the parent."""

    parent: int
    _message = "this runtime was opened by process {parent}, before a fork; open another one in this process"


class WaitOnLoop(ErrorFields, UsageError):
    """A method of `hf.open_sync` was called on the event loop of that runtime, which would wait for itself."""

    called: str
    _message = """{called!r} would wait for the event loop on which it was called; make the tool or handler a plain
        function, which runs in a thread, or use the async API there"""


class EmptyInput(InvalidArgument):
    """The input has no content."""

    def __init__(self, content: object = "") -> None:
        super().__init__("content", content, "text that is not empty, or a file")


class InputTooLarge(ErrorFields, UsageError):
    """The input is over a limit of `Admission`. `what` is ``characters``, ``parts`` or ``bytes``."""

    session: str
    what: str
    size: int
    limit: int
    _message = """the input of {session!r} has {size:,} {what}, the limit is {limit:,}; send less at once, or raise
        the limit in Admission"""


class DuplicateInput(UsageError):
    """The session got the same input a moment ago. `key_of_first` and `at` (wall milliseconds) name it."""

    def __init__(self, session: str, key_of_first: str | None, at: int) -> None:
        first = "" if key_of_first is None else f" under the key {key_of_first!r}"
        super().__init__(
            f"the same was said to {session!r}{first} at {_moment(at)}; wait for its answer, or say it later"
        )
        self.session = session
        self.key_of_first = key_of_first
        self.at = at


class RateExceeded(UsageError):
    """The session got too many inputs in its window. It accepts more from `retry_at` (wall milliseconds) on."""

    def __init__(self, session: str, per_window: int, window_ms: int, retry_at: int) -> None:
        super().__init__(
            f"{session!r} takes {per_window:,} inputs in {window_ms / 1000:g} s; try again at {_moment(retry_at)}"
        )
        self.session = session
        self.per_window = per_window
        self.window_ms = window_ms
        self.retry_at = retry_at


def _moment(at: int) -> str:
    try:
        return dt.datetime.fromtimestamp(at / 1000, dt.UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{at} ms"


class ApprovalUnknown(ErrorFields, UsageError):
    """No open approval has this id. Nothing was changed."""

    id: str
    reason: str
    _message = "no approval {id!r} waits: {reason}. Nothing was changed; 'holdfast inbox' lists what waits"


class ApprovalClosed(UsageError):
    """The approval was answered or expired before. This answer has no effect."""

    def __init__(self, id: str, state: str) -> None:
        how = {"resolved": "it was answered", "expired": "its time was up"}.get(state, f"it was {state}")
        super().__init__(f"the approval {id!r} is closed: {how}. This answer changes nothing")
        self.id = id
        self.state = state


class MediaTypeMismatch(UsageError):
    """The bytes are not of the media type that the caller named."""

    def __init__(self, said: str, found: str | None) -> None:
        what = f"they are {found}" if found is not None else "they do not begin as such a file does"
        super().__init__(f"the bytes are said to be {said}, but {what}; say what they are, or leave media_type out")
        self.said = said
        self.found = found


class AttachmentUnknown(UsageError):
    """No such attachment, or none that this session may read.

    The two cases look the same, so that guessing an id reveals nothing.
    """

    def __init__(self, digest: str, session: str | None) -> None:
        where = "in this store" if session is None else f"that the session {session!r} may read"
        super().__init__(f"there is no attachment {digest[:80]!r} {where}; put it first")
        self.digest = digest
        self.session = session


class GateInvalid(ErrorFields, UsageError):
    """`can_deliver` is not a function that answers True or False, or did not answer in time."""

    gate: object
    reason: str
    _message = """can_deliver {gate!e} is not valid: {reason}; give a function of the session's id, plain or async, that
        says True or False, and call runtime.gate_changed() when it may say otherwise"""


class NotASession(ErrorFields, UsageError):
    """The id is that of a background task; only sessions can be notified."""

    id: str
    _message = """{id!r} is a task, and tasks are told nothing; notify its session, which `(await
        runtime.tasks.task(id)).session` names"""


class ScopeBusy(ErrorFields, UsageError):
    """Two effects run at once in one scope, so their order would not be the same on replay."""

    path: str
    _message = """two effects run at once in the scope {path!r}; start each branch as a task, or use all(), any() or
        race()"""


class OrderUnknown(ErrorFields, UsageError):
    """Tasks were started in an order that differs from process to process."""

    _message = """asyncio.as_completed starts its coroutines in no fixed order, so their branches could not be told
        apart on replay; create the tasks first, in order, and pass those"""


class SuspensionSwallowed(ErrorFields, UsageError):
    """Code caught its own suspension and went on, so it was stopped for good. `name` is the code."""

    name: str
    _message = """{name!r} went on after it was suspended and was stopped: it catches everything around a wait or a
        step. Catch Exception there instead of BaseException, or raise again what is not an Exception"""


class RunEnded(ErrorFields, UsageError):
    """The run has ended; no more effects can be performed in it."""

    run: str
    _message = "the run {run!r} has ended; await all of its tasks before it does"


class CallAbandoned(ErrorFields, UsageError):
    """A function went on after its turn, task or process was over: it ignored its cancellation."""

    run: str
    _message = """{run!r} is over here: it was stopped, or its runtime was closed. What this function asks for is not
        done; let it end when it is cancelled"""


class EffectRepeated(ErrorFields, UsageError):
    """The code used one replay key twice in one drive."""

    key: str
    _message = "the effect {key!r} was already performed in this drive; a key is good for one effect"


class ReplayMismatch(UsageError):
    """The code asks for another effect than the journal has. Nothing new was done."""

    def __init__(self, key: str, divergence: Divergence, code: str | None = None) -> None:
        wrote = f" (recorded by code version {code})" if code else ""
        super().__init__(f"replay of {key!r} differs from its record{wrote}: {divergence.describe()}")
        self.key = key
        self.divergence = divergence
        self.code = code


class ReplayMiss(ErrorFields, UsageError):
    """A check-only replay reached an effect that was never recorded."""

    key: str
    _message = "the effect {key!r} is not in the journal and this replay must not perform anything"


class NotificationUnknown(UsageError):
    """No notification of this store or session has this number."""

    def __init__(self, number: int, journal: str | None = None) -> None:
        where = "in this store" if journal is None else f"of {journal!r}"
        super().__init__(f"there is no notification {number} {where}; check the id")
        self.number = number
        self.journal = journal


_TOOLS_SHOWN: Final = 5
"""Tools that the message about a missing policy names."""


class PolicyInvalid(UsageError):
    """A rule or policy file is wrong. `file`, `rule` (its number) and `key` say where, if known."""

    def __init__(
        self, reason: str, *, key: str | None = None, rule: int | None = None, file: str | None = None
    ) -> None:
        where = [] if file is None else [file]
        where += [] if rule is None else [f"rule {rule}"]
        where += [] if key is None else [f"{key!r}"]
        super().__init__(f"the policy is not valid: {', '.join(where)}{': ' if where else ''}{reason}")
        self.reason = reason
        self.key = key
        self.rule = rule
        self.file = file

    def located(self, *, file: str | None, rule: int | None) -> PolicyInvalid:
        """The same complaint, with the place it is about."""
        return PolicyInvalid(self.reason, key=self.key, rule=rule, file=file)


class PolicyMissing(UsageError):
    """The agent has tools that change things but no policy."""

    def __init__(self, agent: str, tools: Sequence[str]) -> None:
        more = f" and {len(tools) - _TOOLS_SHOWN} more" if len(tools) > _TOOLS_SHOWN else ""
        named = ", ".join(tools[:_TOOLS_SHOWN]) + more
        super().__init__(
            f"the agent {agent!r} has tools that write ({named}) and no policy. Say what it may do:\n"
            f'    policy=[hf.ask("{tools[0]}"), hf.allow("*")]   # ask a person before this one\n'
            f'    policy=[hf.allow("*")]   # or allow everything'
        )
        self.agent = agent
        self.tools = tuple(tools)


class PolicyUnwritable(ErrorFields, UsageError):
    """The policy contains conditions that no file can express."""

    rule: str
    reason: str
    _message = "the rule {rule!r} can't be written to a file: {reason}"


class PolicyUnsafe(ErrorFields, UsageError):
    """Other users can change the policy file, so it is not obeyed."""

    file: str
    reason: str
    _message = "the policy {file} is not obeyed: {reason}"


class HookTimeout(ErrorFields, UsageError):
    """A hook took longer than its time limit. If it decides about a call, the call is denied."""

    hook: str
    where: str
    seconds: float
    _message = "{hook}.{where} did not end within {seconds:g} s; make it quicker, or set `timeout` (seconds) in {hook}"


class ProcessInvalid(ErrorFields, UsageError):
    """The function cannot be a process, or does not take these arguments."""

    process: str
    reason: str
    _message = "the process {process!r} is not valid: {reason}"


class ProcessUnknown(ErrorFields, UsageError):
    """There is no process with this id."""

    process: str
    _message = "there is no process {process!r}; `holdfast processes` lists them"


class ProcessPruned(ProcessUnknown):
    """The process ended and was pruned: its status is known, its result and records are gone."""

    process: str
    status: str
    """Its final status."""
    at: int
    """When it was pruned, in wall milliseconds."""
    _message = "the process {process!r} ended as {status} and was pruned since; prune later where results are asked for"


class ProcessConflict(ErrorFields, UsageError):
    """The id belongs to a process with another function or other arguments. Nothing was started."""

    process: str
    asked: str
    _message = """the process {process!r} was started before, and not as {asked}; ids are never used again, choose
        another"""


class RetryRefused(ErrorFields, UsageError):
    """The process or turn can't be retried like this. Nothing was started."""

    id: str
    reason: str
    _message = "{id!r} is not retried: {reason}"


class FunctionUnknown(ErrorFields, UsageError):
    """This runtime does not have the function of the process."""

    name: str
    known: tuple[str, ...]
    _message = "this runtime has no process {name!r}; it has: {known!l}. Pass it to open(processes=[...])"


class ProgramsUnavailable(ErrorFields, UsageError):
    """This machine cannot run programs, so none is run. `reason` says why, `next_step` what helps."""

    reason: str
    next_step: str
    _message = "programs can't be run here: {reason}; {next_step}, or leave code mode out"


class ModeUnavailable(ErrorFields, UsageError):
    """The turn began in a mode that its agent no longer supports. The turn waits as it is."""

    turn: str
    agent: str
    mode: str
    reason: str
    _message = """the turn {turn!r} began with mode={mode!r} and goes on in it, but {agent!r} can't: {reason}. Let
        the agent have what it had, or cancel the turn"""


class StubsInvalid(ErrorFields, UsageError):
    """Two tools have the same name in programs, or a tool cannot be a function there."""

    tool: str
    reason: str
    _message = "the tool {tool!r} can't be a function in programs: {reason}; give it another name"


class AnswerRefused(ErrorFields, UsageError):
    """The answer does not belong to a call of the program, or the program cannot take it."""

    call: str
    reason: str
    _message = "the answer to the call {call!r} is refused: {reason}"


class ProgramOver(ErrorFields, UsageError):
    """The program has ended, was closed, or was driven out of order."""

    reason: str
    _message = "the program can't go on: {reason}; start it again with the recorded results"


class ProgramDiverged(ErrorFields, UsageError):
    """On replay the program asks for something else than its record has. Nothing new was done."""

    call: str
    recorded: str
    asked: str
    _message = """the program diverged at the call {call!r}: the record has {recorded}, the program asks for {asked};
        the program, its variables, its tools or the version of its sandbox are not those that were recorded"""


class RuleUnknown(ErrorFields, UsageError):
    """No stored rule has this number."""

    number: int
    _message = "there is no stored rule {number} in this store; list the rules to find its number"


class SecretUnknown(UsageError):
    """The runtime has no secret of this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        choice = f"there are {', '.join(known[:50])}" if known else "there are none"
        super().__init__(f"there is no secret {name!r} here: {choice}; name it in hf.open(secrets=...)")
        self.name = name
        self.known = tuple(known)


class SecretNameInvalid(ErrorFields, UsageError):
    """The name of a secret has characters that cannot replace its value in every text."""

    reason: str
    _message = "the name of a secret is 1 to 64 letters, digits and . _ - and begins with a letter or _: {reason}"


class SecretTooShort(ErrorFields, UsageError):
    """The value is too short to be told from ordinary text, so it could not be kept out of records."""

    name: str
    least: int
    _message = """the secret {name} has fewer than {least} characters and can't be told from ordinary text; use a
        longer one, or say hf.Secrets(..., short=[{name!r}]): then it is only hidden as a whole word"""


class SecretTooCommon(ErrorFields, UsageError):
    """The value is a word that Holdfast's own records contain."""

    name: str
    _message = """the value of the secret {name} is a word that records themselves are made of, and can't be told
        from them; use another value"""


class SecretTooLong(ErrorFields, UsageError):
    """The value is so long that searching for it would slow down every write."""

    name: str
    size: int
    limit: int
    _message = """the secret {name} has {size:,} characters, the limit is {limit:,}; keep it in a file, and its path
        or the key that opens it as the secret"""


class SecretExposed(ErrorFields, UsageError):
    """A name or key contains a secret. Names are stored as they are, so it is refused."""

    what: str
    name: str
    _message = "the {what} holds the secret {name}; it would be stored as it is: use another {what}"


class ScheduleInvalid(ErrorFields, UsageError):
    """The schedule of a trigger is wrong."""

    written: object
    reason: str
    _message = "the schedule {written!e} is not valid: {reason}"


class TemplateInvalid(ErrorFields, UsageError):
    """A template names a field that occurrences of its trigger never have."""

    template: str
    reason: str
    _message = "the template {template!e} is not valid: {reason}; write {{{{ and }}}} for braces that stay"


class TriggerInvalid(ErrorFields, UsageError):
    """The definition of a trigger is wrong."""

    name: object
    reason: str
    _message = "the trigger {name!e} is not valid: {reason}"


class TriggerUnknown(UsageError):
    """No trigger has this name."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        shown = f"; there are {', '.join(known[:10])}" if known else "; declare it with runtime.every"
        super().__init__(f"there is no trigger {name!r}{shown}")
        self.name = name
        self.known = tuple(known)


class TriggerConflict(ErrorFields, UsageError):
    """Another definition owns a trigger of this name, or another process is changing it."""

    name: str
    reason: str
    _message = "the trigger {name!r} can't be changed: {reason}"


class TriggerDisabled(ErrorFields, UsageError):
    """The trigger is disabled and takes nothing in."""

    name: str
    _message = "the trigger {name!r} is disabled; 'holdfast triggers enable {name}' lets it go on"


class WaitUnknown(ErrorFields, UsageError):
    """The wait token is not valid.

    Tampered, never issued and revoked look the same on purpose: a bearer of a bad token learns nothing.
    """

    _message = "this wait is unknown or was revoked"


class AnswerInvalid(ErrorFields, UsageError):
    """The answer is not of the type that the tool returns. Nothing was settled: send another answer."""

    tool: str
    reason: str
    _message = "the answer is no result of {tool!r}: {reason}. Nothing was settled; give another answer"


_ANSWER_SHOWN: Final = 200
"""Characters of a wrong answer that the message shows."""


class AskAnswerInvalid(UsageError):
    """The answer does not say how the interrupted call ended. Nothing was settled: send another answer."""

    def __init__(self, journal: str, name: str, value: object) -> None:
        said = repr(value)
        shown = said if len(said) <= _ANSWER_SHOWN else f"{said[:_ANSWER_SHOWN]}..."
        super().__init__(
            f"{shown} does not say what came of the interrupted call; "
            'answer {"done": RESULT}, "not_done" or "unknown". Nothing was settled'
        )
        self.journal = journal
        self.name = name
        self.value = value


class ApprovalMismatch(UsageError):
    """The answer is about another call than the one that waits. Nothing was settled."""

    def __init__(self, journal: str, name: str, expected: str, actual: str | None) -> None:
        asked = "asks for nothing in particular" if actual is None else f"is about {actual}"
        super().__init__(
            f"the answer is about {expected}, but the wait {name!r} of {journal!r} {asked}; "
            "nothing was settled. Look at what is asked now, and answer that"
        )
        self.journal = journal
        self.name = name
        self.expected = expected
        self.actual = actual


class KeyConflict(ErrorFields, UsageError):
    """The idempotency key was used before with other content."""

    journal: str
    key: str
    _message = "{journal!r} already accepted other content under the key {key!r}; a new input needs a new key"


class JournalMissing(ErrorFields, UsageError):
    """No journal has this id."""

    journal: str
    _message = "there is no {journal!r} in this store; name its agent to make it, or check the id"


class StopRequested(ErrorFields, UsageError):
    """The session, task or process `journal` is being stopped and begins nothing more.

    `journal` is the session, task or process that is being stopped.
    """

    journal: str
    _message = "{journal!r} is being stopped and begins nothing more; start it again where it is still wanted"


class JournalPruned(JournalMissing):
    """The journal with this id ended and was pruned. Ids are never used again."""

    def __init__(self, journal: str, status: str, at: int, *, same: bool = False) -> None:
        UsageError.__init__(
            self, f"{journal!r} ended as {status} and was pruned; ids are never used again, choose another"
        )
        self.journal = journal
        self.status = status
        """Its final status."""
        self.at = at
        """When it was pruned, in wall milliseconds."""
        self.same = same
        """True if it began with the same input."""


class JournalForgotten(JournalMissing):
    """The session with this id was forgotten, and its id is refused from now on."""

    at: int
    """When it was forgotten, in wall milliseconds."""
    _message = "{journal!r} was forgotten, and its id is not used again; choose another id"


class ForgetRefused(ErrorFields, UsageError):
    """The session was not forgotten, and nothing was removed."""

    session: str
    reason: str
    _message = "{session!r} was not forgotten: {reason}"


class SessionForked(ForgetRefused):
    """Forks go on from this session and read from it."""

    forks: tuple[str, ...]

    def __init__(self, session: str, forks: tuple[str, ...]) -> None:
        shown, more = ", ".join(map(repr, forks[:5])), len(forks) - 5
        named = f"{shown} and {more:,} more" if more > 0 else shown
        super().__init__(session, f"{named} go on from it; forget them first, or with it (forks=True)")
        self.forks = forks


class BackupRefused(ErrorFields, UsageError):
    """The backup was not made, and no file was left."""

    path: Path | str
    reason: str
    _message = "{path} was not written: {reason}"


class ExportRefused(ErrorFields, UsageError):
    """The session was not exported, and no file was left."""

    session: str
    reason: str
    _message = "{session!r} was not exported: {reason}"


class ImportRefused(ErrorFields, UsageError):
    """The session was not imported, and nothing of it was stored."""

    session: str
    reason: str
    _message = "{session!r} was not imported: {reason}"


class SessionFileDamaged(ErrorFields, UsageError):
    """The file holds no whole session: it was cut short, changed, or is of another kind. Nothing of it was stored."""

    path: str
    line: int
    reason: str
    _message = "{path}, line {line:,}: {reason}; nothing was imported. Export the session again"


class SessionFileNewer(ErrorFields, UsageError):
    """A newer release wrote the file. Nothing of it was stored."""

    path: str
    format: int
    known: int
    _message = "{path} has format {format}, this release reads up to {known}; import it with a newer Holdfast"


class SessionFileUntrusted(ErrorFields, UsageError):
    """Nothing proves which store wrote the file. Nothing of it was stored."""

    path: str
    store: str
    _message = """{path} says it is of the store {store}, and no key at hand proves that. What it holds
        decides what its agents do next: name the key of that store (--key FILE), or say that you trust the file
        (--trust)"""


class JournalInUse(ErrorFields, UsageError):
    """The journal cannot be pruned: it has not ended, or another one needs it."""

    journal: str
    reason: str
    _message = "{journal!r} is kept: {reason}; prune it when it is over and no longer needed"


class JournalConflict(UsageError):
    """The journal exists with another kind or agent."""

    def __init__(self, journal: str, recorded: str, asked: str, helps: str = "choose another id") -> None:
        super().__init__(f"journal {journal!r} was opened as {recorded}, not as {asked}; {helps}")
        self.journal = journal
        self.recorded = recorded
        self.asked = asked


class ForkPointMissing(ErrorFields, UsageError):
    """The session to fork has no record with this number."""

    journal: str
    at: int
    head: int
    _message = "{journal!r} has no record {at:,} to fork at; it has the records 1 to {head:,}"


class MemoryMisfit(ErrorFields, UsageError):
    """The value of an entry of memory can't be read as the wanted type."""

    scope: str
    key: str
    wanted: str
    reason: str
    _message = "the memory {key!r} of {scope!r} is no {wanted}: {reason}; read it without `returns`, or write it anew"


class MemoryConflict(UsageError):
    """The entry has another version than expected. `current` is 0 if it does not exist."""

    def __init__(self, scope: str, key: str, expected: int, current: int) -> None:
        wanted = f"version {expected} was expected" if expected else "it was expected not to exist"
        found = f"it is at version {current}" if current else "it does not exist"
        super().__init__(f"the memory {key!r} of {scope!r} has changed: {wanted}, {found}; read it again")
        self.scope = scope
        self.key = key
        self.expected = expected
        self.current = current


class ModelUnknown(UsageError):
    """No model has this name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        from difflib import get_close_matches  # only where a name is wrong

        close = get_close_matches(name.partition(":")[0], known, n=1) if ":" in name else []
        meant = f"did you mean '{close[0]}:{name.partition(':')[2]}'? " if close else ""
        choice = f"known providers are {', '.join(known)}" if known else "no provider is registered"
        super().__init__(f"{name!r} names no model: {meant}{choice}; write 'provider:model', or pass a Model")
        self.name = name
        self.known = known


class RecordingInvalid(ErrorFields, UsageError):
    """The file is not a usable recording."""

    path: Path
    reason: str
    _message = "{path} can't be used as a recording: {reason}"
