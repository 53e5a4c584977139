"""Errors that the caller can act on: wrong arguments, unknown ids, refused inputs, changed code."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from holdfast.errors.base import UsageError, excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from holdfast.effects.replay import Divergence


_SHOWN: Final = frozenset((str, bytes, int, float, bool, type(None), list, tuple, dict, set))
"""Types that the excerpt of a value shows by itself."""


class InvalidId(UsageError):
    """An id that cannot name a session, key, wait or step."""

    def __init__(self, what: str, value: object, reason: str) -> None:
        super().__init__(f"{what} {excerpt(value)} is not valid: {reason}")
        self.what = what
        self.value = value
        self.reason = reason


class InvalidNumber(UsageError):
    """A number out of range: a time, a size, a position or a count."""

    def __init__(self, what: str, value: object, reason: str) -> None:
        super().__init__(f"{what} {excerpt(value)} is not valid: {reason}")
        self.what = what
        self.value = value
        self.reason = reason


class InvalidArgument(UsageError):
    """An argument of the wrong type."""

    def __init__(self, what: str, value: object, wanted: str) -> None:
        instead = "" if type(value) in _SHOWN else f", not a {type(value).__name__}"
        super().__init__(f"{what} {excerpt(value)} is not valid: {wanted} is wanted{instead}")
        self.what = what
        self.value = value
        self.wanted = wanted


class InvalidValue(UsageError):
    """A value that has no canonical JSON form, so it cannot be recorded."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the value at {path} can't be recorded: {reason}; use plain JSON values")
        self.path = path
        self.reason = reason


class PayloadTooLarge(UsageError):
    """A payload is over its limit."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        elsewhere = "" if what in {"the attachment", "the blob"} else "store it as an attachment or "
        super().__init__(f"{what} is {size:,} bytes, the limit is {limit:,}; {elsewhere}raise the limit")
        self.what = what
        self.size = size
        self.limit = limit


class ResultTooLarge(PayloadTooLarge):
    """A function ran to its end, but its result is over the limit and was not recorded."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        UsageError.__init__(
            self,
            f"it ran to its end, but what it gave can't be kept: {what} of {size:,} bytes, the limit is {limit:,}; "
            "return less, or raise StoreLimits(blob_bytes=)",
        )
        self.what = what
        self.size = size
        self.limit = limit


class AgentInvalid(UsageError):
    """The definition of an agent is wrong."""

    def __init__(self, agent: str, reason: str) -> None:
        super().__init__(f"the agent {agent!r} is not valid: {reason}")
        self.agent = agent
        self.reason = reason


class AgentUnknown(UsageError):
    """This runtime has no agent of that name."""

    def __init__(self, agent: str, known: tuple[str, ...]) -> None:
        choice = ", ".join(known) or "none"
        super().__init__(f"this runtime has no agent {agent!r}; it has: {choice}. Pass it to open(agents=[...])")
        self.agent = agent
        self.known = known


class AgentMissing(UsageError):
    """The session makes no progress: this runtime does not have its agent, and no other worker drives it."""

    def __init__(self, session: str, agent: str, known: tuple[str, ...]) -> None:
        choice = ", ".join(known) or "none"
        super().__init__(
            f"the session {session!r} needs the agent {agent!r}, and this runtime has: {choice}. Pass it to "
            "open(agents=[...]), or wait for a process that has it with outcome(wait_for_agent=)"
        )
        self.session = session
        self.agent = agent
        self.known = known


class ForeignLoop(UsageError):
    """A runtime was used from another event loop than the one that opened it. Nothing was begun."""

    def __init__(self) -> None:
        super().__init__(
            "this runtime belongs to the event loop it was opened in; call it there with "
            "asyncio.run_coroutine_threadsafe(..., loop), or open the store again in this loop"
        )


class StoreInWorkspace(UsageError):
    """The workspace of a tool contains a file of the store, so its calls could approve themselves."""

    def __init__(self, agent: str, tool: str, workspace: str, place: str, remedy: str) -> None:
        super().__init__(
            f"the tool {tool!r} of agent {agent!r} works in {workspace} and could reach {place}, which belongs to the "
            f"store: its calls could approve themselves. {remedy}"
        )
        self.agent = agent
        self.tool = tool
        self.workspace = workspace
        self.place = place
        """The file of the store that the tool can reach."""
        self.remedy = remedy


class ToolInvalid(UsageError):
    """The function cannot be a tool."""

    def __init__(self, function: str, parameter: str | None, reason: str) -> None:
        where = f"parameter {parameter!r} of the tool {function!r}" if parameter else f"the tool {function!r}"
        super().__init__(f"{where} is not valid: {reason}")
        self.function = function
        self.parameter = parameter
        self.reason = reason


class TurnUnknown(UsageError):
    """The session has no such turn."""

    def __init__(self, session: str, turn: str) -> None:
        super().__init__(f"the session {session!r} has no turn {turn!r}")
        self.session = session
        self.turn = turn


class TaskUnknown(UsageError):
    """There is no such background task."""

    def __init__(self, task: str) -> None:
        super().__init__(f"there is no task {task!r}; `holdfast tasks` lists them")
        self.task = task


class CursorInvalid(UsageError):
    """The cursor does not belong to this stream of events."""

    def __init__(self, cursor: object, reason: str) -> None:
        super().__init__(f"the cursor {excerpt(cursor)} is not valid: {reason}; use the cursor of an event, or 0")
        self.cursor = cursor
        self.reason = reason


class ControlCancelled(UsageError):
    """The `Control` was cancelled and accepts no more requests."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this control was cancelled{f': {reason}' if reason else ''}; make another one")
        self.reason = reason


class TooManyRuntimes(UsageError):
    """One process opened the same store too often to drive it."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__(
            f"this process drives the store {path!r} {limit} times already; open it once and share the runtime, "
            "or pass drive=False to accept and watch only"
        )
        self.path = path
        self.limit = limit


class RuntimeStopped(UsageError):
    """The runtime is closed or closing and accepts nothing new."""

    def __init__(self) -> None:
        super().__init__("this runtime is closed or closing; open it again")


class RuntimeUnopened(UsageError, AttributeError):
    """The result of `hf.open` was used without `async with`."""

    def __init__(self, used: str) -> None:
        super().__init__(f"{used!r} needs an open runtime: write 'async with hf.open(...) as runtime:', and use that")
        self.used = used


class EmptyInput(InvalidArgument):
    """The input has no content."""

    def __init__(self, content: object = "") -> None:
        super().__init__("content", content, "text that is not empty, or a file")


class InputTooLarge(UsageError):
    """The input is over a limit of `Admission`. `what` is ``characters``, ``parts`` or ``bytes``."""

    def __init__(self, session: str, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"the input of {session!r} has {size:,} {what}, the limit is {limit:,}; send less at once, or raise the "
            "limit in Admission"
        )
        self.session = session
        self.what = what
        self.size = size
        self.limit = limit


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


class ApprovalUnknown(UsageError):
    """No open approval has this id. Nothing was changed."""

    def __init__(self, id: str, reason: str) -> None:
        super().__init__(f"no approval {id!r} waits: {reason}. Nothing was changed; 'holdfast inbox' lists what waits")
        self.id = id
        self.reason = reason


class ApprovalClosed(UsageError):
    """The approval was answered or expired before. This answer has no effect."""

    def __init__(self, id: str, state: str) -> None:
        how = {"resolved": "somebody has answered it", "expired": "its time was up"}.get(state, f"it was {state}")
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

    One that is not there and one of another session look the same on purpose: whoever guesses learns nothing.
    """

    def __init__(self, digest: str, session: str | None) -> None:
        where = "in this store" if session is None else f"that the session {session!r} may read"
        super().__init__(f"there is no attachment {digest[:80]!r} {where}; put it first")
        self.digest = digest
        self.session = session


class GateInvalid(UsageError):
    """`can_deliver` is not a plain function that returns True or False."""

    def __init__(self, gate: object, reason: str) -> None:
        super().__init__(
            f"can_deliver {excerpt(gate)} is not valid: {reason}; give a plain function of the session's id that says "
            "True or False, and call runtime.gate_changed() when it may say otherwise"
        )
        self.gate = gate
        self.reason = reason


class NotASession(UsageError):
    """The id is that of a background task; only sessions can be notified."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"{id!r} is a task, and tasks are told nothing; notify its session, which "
            "`(await runtime.tasks.task(id)).session` names"
        )
        self.id = id


class ScopeBusy(UsageError):
    """Two effects run at once in one scope, so their order would not be the same on replay."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"two effects run at once in the scope {path!r}; start each branch as a task, or use all(), any() or race()"
        )
        self.path = path


class OrderUnknown(UsageError):
    """Tasks were started in an order that differs from process to process."""

    def __init__(self) -> None:
        super().__init__(
            "asyncio.as_completed starts its coroutines in no fixed order, so their branches could not be told apart "
            "on replay; create the tasks first, in order, and pass those"
        )


class SuspensionSwallowed(UsageError):
    """Code caught its own suspension and went on, so it was stopped for good. `name` is the code."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} went on after it was suspended and was stopped: it catches everything around a wait or a step. "
            "Catch Exception there instead of BaseException, or raise again what is not an Exception"
        )
        self.name = name


class RunEnded(UsageError):
    """The run has ended; no more effects can be performed in it."""

    def __init__(self, run: str) -> None:
        super().__init__(f"the run {run!r} has ended; await all of its tasks before it does")
        self.run = run


class CallAbandoned(UsageError):
    """A function went on after its turn, task or process was over: it ignored its cancellation."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"{run!r} is over here: it was stopped, or its runtime was closed. What this function asks for is not "
            "done; let it end when it is cancelled"
        )
        self.run = run


class EffectRepeated(UsageError):
    """The code used one replay key twice in one drive."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the effect {key!r} was already performed in this drive; a key is good for one effect")
        self.key = key


class ReplayMismatch(UsageError):
    """The code asks for another effect than the journal has. Nothing new was done."""

    def __init__(self, key: str, divergence: Divergence, code: str | None = None) -> None:
        wrote = f" (recorded by code version {code})" if code else ""
        super().__init__(f"replay of {key!r} differs from its record{wrote}: {divergence.describe()}")
        self.key = key
        self.divergence = divergence
        self.code = code


class ReplayMiss(UsageError):
    """A check-only replay reached an effect that was never recorded."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the effect {key!r} is not in the journal and this replay must not perform anything")
        self.key = key


class NotificationUnknown(UsageError):
    """No notification of this store or session has this number."""

    def __init__(self, number: int, journal: str | None = None) -> None:
        where = "in this store" if journal is None else f"of {journal!r}"
        super().__init__(f"there is no notification {number} {where}; check the id")
        self.number = number
        self.journal = journal


_POLICY_SHOWN: Final = 5


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
        more = f" and {len(tools) - _POLICY_SHOWN} more" if len(tools) > _POLICY_SHOWN else ""
        named = ", ".join(tools[:_POLICY_SHOWN]) + more
        super().__init__(
            f"the agent {agent!r} has tools that write ({named}) and no policy. Say what it may do:\n"
            f'    policy=[hf.ask("{tools[0]}"), hf.allow("*")]   # ask a person before this one\n'
            f'    policy=[hf.allow("*")]   # or allow everything'
        )
        self.agent = agent
        self.tools = tuple(tools)


class PolicyUnwritable(UsageError):
    """The policy contains conditions that no file can express."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"the rule {rule!r} can't be written to a file: {reason}")
        self.rule = rule
        self.reason = reason


class PolicyUnsafe(UsageError):
    """Other users can change the policy file, so it is not obeyed."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"the policy {file} is not obeyed: {reason}")
        self.file = file
        self.reason = reason


class HookTimeout(UsageError):
    """A hook took longer than its time limit. If it decides about a call, the call is denied."""

    def __init__(self, hook: str, where: str, seconds: float) -> None:
        super().__init__(
            f"{hook}.{where} did not end within {seconds:g} s; make it quicker, or set `timeout` (seconds) in {hook}"
        )
        self.hook = hook
        self.where = where
        self.seconds = seconds


class ProcessInvalid(UsageError):
    """The function cannot be a process, or does not take these arguments."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(f"the process {process!r} is not valid: {reason}")
        self.process = process
        self.reason = reason


class ProcessUnknown(UsageError):
    """There is no process with this id."""

    def __init__(self, process: str) -> None:
        super().__init__(f"there is no process {process!r}; `holdfast processes` lists them")
        self.process = process


class ProcessPruned(ProcessUnknown):
    """The process ended and was pruned: its status is known, its result and records are gone."""

    def __init__(self, process: str, status: str, at: int) -> None:
        UsageError.__init__(
            self,
            f"the process {process!r} ended as {status} and was pruned since; prune later where results are asked for",
        )
        self.process = process
        self.status = status
        """How it ended."""
        self.at = at
        """When it was pruned, in wall milliseconds."""


class ProcessConflict(UsageError):
    """The id belongs to a process with another function or other arguments. Nothing was started."""

    def __init__(self, process: str, asked: str) -> None:
        super().__init__(
            f"the process {process!r} was started before, and not as {asked}; ids are never used again, choose another"
        )
        self.process = process
        self.asked = asked


class FunctionUnknown(UsageError):
    """This runtime does not have the function of the process."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        choice = ", ".join(known) or "none"
        super().__init__(f"this runtime has no process {name!r}; it has: {choice}. Pass it to open(processes=[...])")
        self.name = name
        self.known = known


class ProgramsUnavailable(UsageError):
    """This machine cannot run programs, so none is run. `reason` says why, `next_step` what helps."""

    def __init__(self, reason: str, next_step: str) -> None:
        super().__init__(f"programs can't be run here: {reason}; {next_step}, or leave code mode out")
        self.reason = reason
        self.next_step = next_step


class ModeUnavailable(UsageError):
    """The turn began in a mode that its agent no longer supports. The turn waits as it is."""

    def __init__(self, turn: str, agent: str, mode: str, reason: str) -> None:
        super().__init__(
            f"the turn {turn!r} began with mode={mode!r} and goes on in it, but {agent!r} can't: {reason}. "
            "Let the agent have what it had, or cancel the turn"
        )
        self.turn = turn
        self.agent = agent
        self.mode = mode
        self.reason = reason


class StubsInvalid(UsageError):
    """Two tools have the same name in programs, or a tool cannot be a function there."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"the tool {tool!r} can't be a function in programs: {reason}; give it another name")
        self.tool = tool
        self.reason = reason


class AnswerRefused(UsageError):
    """The answer does not belong to a call of the program, or the program cannot take it."""

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(f"the answer to the call {call!r} is refused: {reason}")
        self.call = call
        self.reason = reason


class ProgramOver(UsageError):
    """The program has ended, was closed, or was driven out of order."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the program can't go on: {reason}; start it again with the recorded results")
        self.reason = reason


class ProgramDiverged(UsageError):
    """On replay the program asks for something else than its record has. Nothing new was done."""

    def __init__(self, call: str, recorded: str, asked: str) -> None:
        super().__init__(
            f"the program diverged at the call {call!r}: the record has {recorded}, the program asks for {asked}; "
            "the program, its variables, its tools or the version of its sandbox are not those that were recorded"
        )
        self.call = call
        self.recorded = recorded
        self.asked = asked


class RuleUnknown(UsageError):
    """No stored rule has this number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"there is no stored rule {number} in this store; list the rules to find its number")
        self.number = number


class SecretUnknown(UsageError):
    """The runtime has no secret of this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        choice = f"there are {', '.join(known[:50])}" if known else "there are none"
        super().__init__(f"there is no secret {name!r} here: {choice}; name it in hf.open(secrets=...)")
        self.name = name
        self.known = tuple(known)


class SecretNameInvalid(UsageError):
    """The name of a secret has characters that cannot replace its value in every text."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the name of a secret is 1 to 64 letters, digits and . _ - and begins with a letter or _: {reason}"
        )
        self.reason = reason


class SecretTooShort(UsageError):
    """The value is too short to be told from ordinary text, so it could not be kept out of records."""

    def __init__(self, name: str, least: int) -> None:
        super().__init__(
            f"the secret {name} has fewer than {least} characters and can't be told from ordinary text; use a longer "
            f"one, or say hf.Secrets(..., short=[{name!r}]): then it is only hidden where it stands alone, as a word"
        )
        self.name = name
        self.least = least


class SecretTooCommon(UsageError):
    """The value is a word that Holdfast's own records contain."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the value of the secret {name} is a word that records themselves are made of, and can't be told from "
            "them; use another value"
        )
        self.name = name


class SecretTooLong(UsageError):
    """The value is so long that searching for it would slow down every write."""

    def __init__(self, name: str, size: int, limit: int) -> None:
        super().__init__(
            f"the secret {name} has {size:,} characters, the limit is {limit:,}; keep it in a file, and its path or "
            "the key that opens it as the secret"
        )
        self.name = name
        self.size = size
        self.limit = limit


class SecretExposed(UsageError):
    """A name or key contains a secret. Names are stored as they are, so it is refused."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"the {what} holds the secret {name}; it would be stored as it is: use another {what}")
        self.what = what
        self.name = name


class ScheduleInvalid(UsageError):
    """The schedule of a trigger is wrong."""

    def __init__(self, written: object, reason: str) -> None:
        super().__init__(f"the schedule {excerpt(written)} is not valid: {reason}")
        self.written = written
        self.reason = reason


class TemplateInvalid(UsageError):
    """A template names a field that occurrences of its trigger never have."""

    def __init__(self, template: str, reason: str) -> None:
        super().__init__(
            f"the template {excerpt(template)} is not valid: {reason}; write {{{{ and }}}} for braces that stay"
        )
        self.template = template
        self.reason = reason


class TriggerInvalid(UsageError):
    """The definition of a trigger is wrong."""

    def __init__(self, name: object, reason: str) -> None:
        super().__init__(f"the trigger {excerpt(name)} is not valid: {reason}")
        self.name = name
        self.reason = reason


class TriggerUnknown(UsageError):
    """No trigger has this name."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        shown = f"; there are {', '.join(known[:10])}" if known else "; declare it with runtime.every"
        super().__init__(f"there is no trigger {name!r}{shown}")
        self.name = name
        self.known = tuple(known)


class TriggerConflict(UsageError):
    """Another definition owns a trigger of this name, or another process is changing it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the trigger {name!r} can't be changed: {reason}")
        self.name = name
        self.reason = reason


class TriggerDisabled(UsageError):
    """The trigger is disabled and takes nothing in."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the trigger {name!r} is disabled; 'holdfast triggers enable {name}' lets it go on")
        self.name = name


_WAITS_SHOWN: Final = 200


class WaitUnknown(UsageError):
    """The wait token is not valid.

    Tampered, never issued and revoked look the same on purpose: a bearer of a bad token learns nothing.
    """

    def __init__(self) -> None:
        super().__init__("this wait is unknown or was revoked")


class AnswerInvalid(UsageError):
    """The answer is not of the type that the tool returns. Nothing was settled: send another answer."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"the answer is no result of {tool!r}: {reason}. Nothing was settled; give another answer")
        self.tool = tool
        self.reason = reason


class AskAnswerInvalid(UsageError):
    """The answer does not say how the interrupted call ended. Nothing was settled: send another answer."""

    def __init__(self, journal: str, name: str, value: object) -> None:
        said = repr(value)
        shown = said if len(said) <= _WAITS_SHOWN else f"{said[:_WAITS_SHOWN]}..."
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


class KeyConflict(UsageError):
    """The idempotency key was used before with other content."""

    def __init__(self, journal: str, key: str) -> None:
        super().__init__(
            f"{journal!r} already accepted other content under the key {key!r}; a new input needs a new key"
        )
        self.journal = journal
        self.key = key


class JournalMissing(UsageError):
    """No journal has this id."""

    def __init__(self, journal: str) -> None:
        super().__init__(f"there is no {journal!r} in this store; name its agent to make it, or check the id")
        self.journal = journal


class StopRequested(UsageError):
    """The session, task or process `journal` is being stopped and begins nothing more.

    `journal` is the session, task or process that is being stopped.
    """

    def __init__(self, journal: str) -> None:
        super().__init__(
            f"{journal!r} is being stopped and begins nothing more; start it again where it is still wanted"
        )
        self.journal = journal


class JournalPruned(JournalMissing):
    """The journal with this id ended and was pruned. Ids are never used again."""

    def __init__(self, journal: str, status: str, at: int, *, same: bool = False) -> None:
        UsageError.__init__(
            self, f"{journal!r} ended as {status} and was pruned; ids are never used again, choose another"
        )
        self.journal = journal
        self.status = status
        """How it ended."""
        self.at = at
        """When it was pruned, in wall milliseconds."""
        self.same = same
        """Whether it was begun with the very input that was offered now."""


class JournalInUse(UsageError):
    """The journal cannot be pruned: it has not ended, or another one needs it."""

    def __init__(self, journal: str, reason: str) -> None:
        super().__init__(f"{journal!r} is kept: {reason}; prune it when it is over and nobody needs it")
        self.journal = journal
        self.reason = reason


class JournalConflict(UsageError):
    """The journal exists with another kind or agent."""

    def __init__(self, journal: str, recorded: str, asked: str, helps: str = "choose another id") -> None:
        super().__init__(f"journal {journal!r} was opened as {recorded}, not as {asked}; {helps}")
        self.journal = journal
        self.recorded = recorded
        self.asked = asked


class ForkPointMissing(UsageError):
    """The session to fork has no record with this number."""

    def __init__(self, journal: str, at: int, head: int) -> None:
        super().__init__(f"{journal!r} has no record {at:,} to fork at; it has the records 1 to {head:,}")
        self.journal = journal
        self.at = at
        self.head = head


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


class RecordingInvalid(UsageError):
    """The file is not a usable recording."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} can't be used as a recording: {reason}")
        self.path = path
        self.reason = reason
