"""A context for calling a tool directly, without an agent and a model."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

from holdfast.deps import NO_DEPS
from holdfast.effects.performer import LeasedJournal, Performer, read_history
from holdfast.effects.scopes import current_scope, install_task_factory
from holdfast.errors import InvalidArgument, UsageError
from holdfast.errors.fields import ErrorFields
from holdfast.names import check_id
from holdfast.policy.limits import LEASE_MS
from holdfast.runtime.deferrals import Deferrals
from holdfast.runtime.open import open as open_runtime
from holdfast.runtime.runtime import context_of
from holdfast.runtime.tool_host import ToolHost
from holdfast.runtime.waits import JournalWaits, ToolWaits
from holdfast.secrets.sources import Secrets
from holdfast.store.lease import LeaseHolder
from holdfast.tools.context import CallContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from holdfast.clock import Clock
    from holdfast.records import Record
    from holdfast.runtime.runtime import Runtime
    from holdfast.tools.context import CallHost


_TURN = "t1"


class WaitUnanswered(ErrorFields, UsageError):
    """A tool under test waits, and the test has no answer for it."""

    name: str
    _message = "the tool waits for {name!r}, and the test has no answer: give context(answers={{{name!r}: ...}})"


class DirectContext(CallContext):
    """The context of a call that a test makes. Steps are recorded in a store in memory."""

    __slots__ = ("_call", "runtime")

    def __init__(self, call: _DirectCall) -> None:
        super().__init__(cast("CallHost", call), f"{_TURN}/1.tools/1.{call.tool}", "call_1", call.tool)
        self._call = call
        self.runtime = call.runtime
        """The runtime of the call: its memory, attachments, notifications."""

    async def step(self, name: str, function: Callable[..., Any], *args: object, **options: Any) -> Any:
        """Run a part of the tool once; `again` gives a context in which it returns the recorded result."""
        scope = current_scope.get()
        if scope is not None and scope.drive is self._call.performer:
            return await super().step(name, function, *args, **options)
        token = current_scope.set(self.place)  # a fixture has made this context, in another task
        try:
            return await super().step(name, function, *args, **options)
        finally:
            current_scope.reset(token)

    @property
    def reports(self) -> list[tuple[str | None, float | None]]:
        """The tool's `progress` reports: notes and fractions."""
        return self._call.reports

    def cancel(self) -> None:
        """Set `cancelled`, as a stop of the turn does."""
        self._call.stopped = True

    async def again(self) -> DirectContext:
        """The context of the next attempt of this call, as after a crash: recorded steps return their results."""
        made = DirectContext(await self._call.next_attempt())
        current_scope.set(made.place)
        return made


class _DirectCall:
    """The call in place of a turn."""

    agent = None

    def __init__(
        self, given: context, runtime: Runtime, ledger: LeasedJournal, performer: Performer, *, stopped: bool = False
    ) -> None:
        self._given = given
        self._ledger = ledger
        self.runtime = runtime
        self.performer = performer
        self.tool = given.tool
        self.session = given.session
        self.run = _TURN
        self.metadata = given.metadata
        self.deadline = given.deadline
        self.stopped = stopped
        self.host = ToolHost(context_of(runtime), given.session)
        journal = JournalWaits(runtime.store, given.session)
        self.waits = _AnsweredWaits(journal, performer, runtime, given.answers)
        self.deferrals = Deferrals(journal, performer)
        self.reports: list[tuple[str | None, float | None]] = []

    def note(self, record: Record) -> None:
        self.performer.submit([record], patient=True)

    def progress(self, key: str, note: str | None, fraction: float | None) -> None:
        self.reports.append((note, fraction))

    async def next_attempt(self) -> _DirectCall:
        await self.performer.settle()
        await self.performer.close("ended")
        past = await read_history(self.runtime.store, self.session)
        return _DirectCall(self._given, self.runtime, self._ledger, Performer(self._ledger, past, _TURN))


class _AnsweredWaits(ToolWaits):
    """Waits that the test has answered before."""

    def __init__(
        self, waits: JournalWaits, performer: Performer, runtime: Runtime, answers: Mapping[str, object]
    ) -> None:
        super().__init__(waits, performer)
        self._runtime = runtime
        self._answers = answers

    async def wait(self, key: str, name: str, occurrence: int, timeout: Any) -> Any:
        if name not in self._answers:
            raise WaitUnanswered(name)
        answer = self._answers[name]
        if isinstance(answer, BaseException):
            raise answer
        value = answer() if callable(answer) else answer
        await self._runtime.resolve(self.token(key, name, occurrence), value)
        return await super().wait(key, name, occurrence, timeout)


class context:  # noqa: N801  used like a function
    """A `hf.Context` for calling a tool directly: ``async with context() as ctx: await refund(ctx, "7", 100)``.

    Steps run and are recorded, as in a turn; ``ctx.again()`` gives the context of the next attempt, in which they
    return their results. `answers` are the answers to ``ctx.wait(name)``: a value, an error such as `hf.WaitExpired`,
    or a function that gives the value at each wait. `deps` is what `hf.open` takes; `secrets` are values. In a test
    that is not async, ``with context() as ctx`` gives a context for a plain function.
    """

    def __init__(
        self,
        *,
        tool: str = "tool",
        session: str = "session",
        metadata: Mapping[str, Any] | None = None,
        deps: object = NO_DEPS,
        secrets: Mapping[str, str] | Secrets | None = None,
        answers: Mapping[str, object] | None = None,
        deadline: datetime | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.tool = check_id("tool", tool)
        self.session = check_id("session", session)
        self.metadata = dict(metadata or {})
        self.answers = dict(answers or {})
        if deadline is not None and deadline.tzinfo is None:
            raise InvalidArgument("deadline", deadline, "a time with a time zone")
        self.deadline = None if deadline is None else round(deadline.timestamp() * 1000)
        self._secrets = secrets if secrets is None or isinstance(secrets, Secrets) else _secrets_of(secrets)
        self._clock = clock
        self._deps = deps
        self._open = AsyncExitStack()
        self._runner: asyncio.Runner | None = None

    async def __aenter__(self) -> DirectContext:
        async with AsyncExitStack() as opened:
            install_task_factory(asyncio.get_running_loop())
            runtime = await opened.enter_async_context(
                open_runtime(None, deps=self._deps, secrets=self._secrets, clock=self._clock)
            )
            await runtime.store.open_journal(self.session, "session")
            held = await opened.enter_async_context(LeaseHolder(runtime.store, self.session, LEASE_MS))
            ledger = LeasedJournal(runtime.store, held.lease)
            call = _DirectCall(self, runtime, ledger, Performer(ledger, await ledger.past(), _TURN))
            made = DirectContext(call)
            opened.push_async_callback(call.performer.close, "ended")
            opened.callback(current_scope.set, current_scope.get())
            current_scope.set(made.place)  # so that each task of the tool has a scope of its own
            self._open = opened.pop_all()
        return made

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    def __enter__(self) -> DirectContext:
        self._runner = asyncio.Runner()
        try:
            return self._runner.run(self.__aenter__())
        except BaseException:
            self._runner.close()
            raise

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            with self._runner as runner:
                runner.run(self.__aexit__())


def _secrets_of(values: Mapping[str, str]) -> Secrets:
    return Secrets({name: lambda value=value: value for name, value in values.items()}, short=values)
