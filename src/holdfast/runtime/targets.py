"""What triggers start: an agent in a session of its own, an input to a session, a process.

A target starts something under a key, at least once, and the same key is the same start. All that is recorded of it is
its kind and its name; whoever drives a trigger looks the target up by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

from holdfast.agent import Agent
from holdfast.errors import HoldfastError, InvalidArgument, KeyConflict
from holdfast.errors.triggers import TriggerInvalid
from holdfast.names import check_id, check_string
from holdfast.runtime.session import Session
from holdfast.triggers.definition import TargetName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.turn import Turn

ENDED: Final = frozenset(("completed", "failed", "cancelled", "limit", "abandoned"))
PROMPT: Final = "prompt"
SESSION: Final = "session"


@runtime_checkable
class Target(Protocol):
    """Something that a trigger can start."""

    @property
    def target_name(self) -> TargetName:
        """How it is recorded."""
        ...

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise a `UsageError` for arguments that can't be meant."""
        ...

    async def start(self, key: str, arguments: Mapping[str, Any]) -> str:
        """Start it, once for each key; answers what names what was started."""
        ...

    async def is_over(self, ref: str) -> bool:
        """Whether what was started has ended."""
        ...

    async def over(self, ref: str) -> None:
        """Wait until what was started has ended, however."""
        ...


@runtime_checkable
class WaryTarget(Target, Protocol):
    """A target that can be told that its arguments were written by strangers."""

    async def start_untrusted(self, key: str, arguments: Mapping[str, Any]) -> str:
        """The same as `start`; what is started is tainted."""
        ...


class AgentTarget:
    """Asks an agent: in a session of its own for each occurrence, or in one that is named."""

    def __init__(self, runtime: Runtime, agent: str) -> None:
        self._runtime = runtime
        self._agent = agent

    @property
    def target_name(self) -> TargetName:
        return TargetName("agent", self._agent)

    def check(self, arguments: Mapping[str, Any]) -> None:
        _check_words(self._agent, arguments, (PROMPT, SESSION))
        if (session := arguments.get(SESSION)) is not None:
            check_string(SESSION, session)

    async def start(self, key: str, arguments: Mapping[str, Any]) -> str:
        return await _sent(self._asked(key, arguments), key, arguments, untrusted=False)

    async def start_untrusted(self, key: str, arguments: Mapping[str, Any]) -> str:
        return await _sent(self._asked(key, arguments), key, arguments, untrusted=True)

    def _asked(self, key: str, arguments: Mapping[str, Any]) -> Session:
        session = arguments.get(SESSION) or key
        return self._runtime.session(check_id(SESSION, session), agent=self._agent)

    async def is_over(self, ref: str) -> bool:
        return await _turn_is_over(self._runtime, ref)

    async def over(self, ref: str) -> None:
        await _turn_over(self._runtime, ref)


class SessionTarget:
    """Says something in a session."""

    def __init__(self, runtime: Runtime, session: Session) -> None:
        self._runtime = runtime
        self._session = session

    @property
    def target_name(self) -> TargetName:
        return TargetName("session", self._session.id)

    def check(self, arguments: Mapping[str, Any]) -> None:
        _check_words(self._session.id, arguments, (PROMPT,))

    async def start(self, key: str, arguments: Mapping[str, Any]) -> str:
        return await _sent(self._session, key, arguments, untrusted=False)

    async def start_untrusted(self, key: str, arguments: Mapping[str, Any]) -> str:
        return await _sent(self._session, key, arguments, untrusted=True)

    async def is_over(self, ref: str) -> bool:
        return await _turn_is_over(self._runtime, ref)

    async def over(self, ref: str) -> None:
        await _turn_over(self._runtime, ref)


class Started(Protocol):
    """A process that was started, as far as triggers need it."""

    async def status(self) -> Any:  # noqa: ANN401  a word, or something with a `status`
        ...

    async def result(self) -> Any:  # noqa: ANN401  whatever it gives
        ...


class ProcessTarget:
    """Starts a durable function: `start` and `find` are those of the runtime, which knows it by its name."""

    def __init__(
        self,
        name: str,
        start: Callable[[str, Mapping[str, Any], bool], Awaitable[object]],
        find: Callable[[str], Awaitable[Started]],
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        self._name = name
        self._start = start
        self._find = find
        self._check = check

    @property
    def target_name(self) -> TargetName:
        return TargetName("process", self._name)

    def check(self, arguments: Mapping[str, Any]) -> None:
        self._check(arguments)

    async def start(self, key: str, arguments: Mapping[str, Any]) -> str:
        await self._start(key, arguments, False)  # noqa: FBT003
        return key

    async def start_untrusted(self, key: str, arguments: Mapping[str, Any]) -> str:
        await self._start(key, arguments, True)  # noqa: FBT003
        return key

    async def is_over(self, ref: str) -> bool:
        status = await (await self._find(ref)).status()
        return str(getattr(status, "status", status)) in ENDED

    async def over(self, ref: str) -> None:
        try:
            await (await self._find(ref)).result()
        except HoldfastError:
            if not await self.is_over(ref):
                raise


class Targets:
    """The targets that are known here."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[TargetName, Target] = {}
        self.adapters: list[Callable[[object], Target | None]] = []
        """Others that make targets of what is given to `every`: of processes, say."""

    def bind(self, given: object) -> Target:
        """The target that is meant; known from now on."""
        target = self._made(given)
        self._known[target.target_name] = target
        return target

    def _made(self, given: object) -> Target:
        if isinstance(given, Agent):
            return AgentTarget(self._runtime, self._runtime.register(given).name)
        if isinstance(given, Session):
            return SessionTarget(self._runtime, given)
        for adapt in self.adapters:
            if (target := adapt(given)) is not None:
                return target
        if isinstance(given, Target) and not isinstance(given, type):
            return given
        raise InvalidArgument("target", given, "an agent, a session or a process")

    def find(self, name: TargetName) -> Target | None:
        """The target of this name, if it is known here."""
        known = self._known.get(name)
        if known is None and name.kind == "agent" and name.name in self._runtime.agents:
            return AgentTarget(self._runtime, name.name)
        return known


def _check_words(name: str, arguments: Mapping[str, Any], known: tuple[str, ...]) -> None:
    prompt = arguments.get(PROMPT)
    if not isinstance(prompt, str) or not prompt.strip():
        raise TriggerInvalid(name, "an agent or a session is given a prompt: every(..., prompt='...')")
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise TriggerInvalid(name, f"it takes {' and '.join(known)}, not {', '.join(unknown)}")


def _prompt(arguments: Mapping[str, Any]) -> str:
    prompt: object = arguments[PROMPT]
    # A template that is one place alone gives the value itself; an agent is told a text.
    from holdfast.effects.canonical import canonical  # noqa: PLC0415  rarely needed

    return prompt if isinstance(prompt, str) else canonical(prompt).decode()


async def _sent(session: Session, key: str, arguments: Mapping[str, Any], *, untrusted: bool) -> str:
    prompt = _prompt(arguments)
    try:
        return _ref(await session.send(prompt, key=key, untrusted=untrusted))
    except KeyConflict:
        if not untrusted:
            raise
        # An earlier release has sent the same before it was interrupted, and did not say who wrote it.
        return _ref(await session.send(prompt, key=key))


def _ref(turn: Turn) -> str:
    return f"{turn.session}/{turn.id}"


def _turn(runtime: Runtime, ref: str) -> Turn:
    session, _, turn = ref.rpartition("/")
    return runtime.session(session).turn(turn)


async def _turn_is_over(runtime: Runtime, ref: str) -> bool:
    return cast("str", await _turn(runtime, ref).status()) in ENDED


async def _turn_over(runtime: Runtime, ref: str) -> None:
    await _turn(runtime, ref).outcome()


class ProcessStarts(Protocol):
    """The processes of a runtime, as far as triggers need them."""

    async def start(
        self,
        procedure: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        id: str | None,
        untrusted: bool = False,
    ) -> object:
        """Start a process, once for each id. `untrusted`: strangers wrote its arguments."""
        ...

    async def get(self, id: str) -> Started:
        """The process with this id."""
        ...


def process_adapter(processes: ProcessStarts, kind: type[Any]) -> Callable[[object], Target | None]:
    """What makes targets of durable functions, which are of this `kind` and have a name."""

    def adapt(given: object) -> Target | None:
        if not isinstance(given, kind):
            return None
        made: Any = given

        def start(key: str, arguments: Mapping[str, Any], untrusted: bool) -> Awaitable[object]:  # noqa: FBT001
            return processes.start(made, (), dict(arguments), id=key, untrusted=untrusted)

        return ProcessTarget(made.name, start, processes.get, made.check_names)

    return adapt
