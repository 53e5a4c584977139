"""Agents, their tools, sessions and turns, and the runtime they run in."""

from __future__ import annotations

from holdfast.errors.tree import UsageError, excerpt


class AgentInvalid(UsageError):
    """An agent that can't be run as it is defined."""

    def __init__(self, agent: str, reason: str) -> None:
        super().__init__(f"the agent {agent!r} is not valid: {reason}")
        self.agent = agent
        self.reason = reason


class AgentUnknown(UsageError):
    """No agent of this runtime has this name."""

    def __init__(self, agent: str, known: tuple[str, ...]) -> None:
        choice = ", ".join(known) or "none"
        super().__init__(f"this runtime has no agent {agent!r}; it has: {choice}. Pass it to open(agents=[...])")
        self.agent = agent
        self.known = known


class AgentMissing(UsageError):
    """Nobody goes on with this session: this runtime does not have its agent, and no other process drives it."""

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
    """A runtime was used from another event loop than the one it was opened in. Nothing was begun."""

    def __init__(self) -> None:
        super().__init__(
            "this runtime belongs to the event loop it was opened in; call it there with "
            "asyncio.run_coroutine_threadsafe(..., loop), or open the store again in this loop"
        )


class StoreInWorkspace(UsageError):
    """A tool works in a folder that has a file of the store in it: its calls could approve themselves."""

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
    """A function that can't be a tool."""

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
    """There is no such task."""

    def __init__(self, task: str) -> None:
        super().__init__(f"there is no task {task!r}; `holdfast tasks` lists them")
        self.task = task


class CursorInvalid(UsageError):
    """A cursor that no event of this stream can have."""

    def __init__(self, cursor: object, reason: str) -> None:
        super().__init__(f"the cursor {excerpt(cursor)} is not valid: {reason}; use the cursor of an event, or 0")
        self.cursor = cursor
        self.reason = reason


class ControlCancelled(UsageError):
    """The control was cancelled; nothing more is accepted under it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this control was cancelled{f': {reason}' if reason else ''}; make another one")
        self.reason = reason


class TooManyRuntimes(UsageError):
    """One process has a store open too often, each time to drive it."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__(
            f"this process drives the store {path!r} {limit} times already; open it once and share the runtime, "
            "or pass drive=False to accept and watch only"
        )
        self.path = path
        self.limit = limit


class RuntimeStopped(UsageError):
    """The runtime is being closed and takes nothing new."""

    def __init__(self) -> None:
        super().__init__("this runtime is closed or closing; open it again")


class RuntimeUnopened(UsageError, AttributeError):
    """What `hf.open` gives was used without opening it."""

    def __init__(self, used: str) -> None:
        super().__init__(f"{used!r} needs an open runtime: write 'async with hf.open(...) as runtime:', and use that")
        self.used = used
