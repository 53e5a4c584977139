"""The runtime's services for the toolkits, and the texts for times and durations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.processes.state import TaskState
    from holdfast.store import Notification, Store
    from holdfast.store.contract import Journal
    from holdfast.tools.context import Context


class RuntimeMissing(UsageError):
    """A tool that needs a runtime was called without one."""

    def __init__(self, tool: str) -> None:
        super().__init__(f"the tool {tool!r} works only for an agent of a runtime; give it to one and use hf.open")
        self.tool = tool


class ToolkitHost(Protocol):
    """The runtime, as the tools of one session see it."""

    store: Store
    session: str

    @property
    def now(self) -> int:
        """Wall time in milliseconds."""
        ...

    async def tasks(self, limit: int = 20) -> Sequence[Journal]:
        """The tasks of the session, most recently changed first."""
        ...

    async def task(self, id: str) -> TaskState:
        """One task of the session; `TaskUnknown` for any other."""
        ...

    async def task_result(self, state: TaskState) -> bytes | None:
        """The JSON result of a task."""
        ...

    async def cancel_task(self, id: str, reason: str) -> Literal["requested", "already_requested", "too_late"]:
        """Request the cancellation of a task of the session."""
        ...

    async def remind(self, kind: str, title: str, body: str, *, due: int, key: str) -> Notification:
        """Notify the session at a later time."""
        ...

    async def reminders(self, kind: str) -> list[Notification]:
        """Pending notifications of a kind, the next one first."""
        ...

    async def forget_reminder(self, kind: str, id: int) -> bool:
        """Cancel a pending notification; whether this call did."""
        ...

    async def kept(self, digest: str) -> bytes | None:
        """A kept result of this session or of its tasks."""
        ...


def require_host(context: Context) -> ToolkitHost:
    """The runtime behind a call; `RuntimeMissing` if there is none."""
    if context.host is None:
        raise RuntimeMissing(context.tool)
    return cast("ToolkitHost", context.host)


_LAST: Final = 253_402_300_799_000  # the last second that has a date, in wall milliseconds
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def format_time(wall: int) -> str:
    """A wall time as a date in UTC, to the second."""
    at = datetime.fromtimestamp(min(max(wall, 0), _LAST) // 1000, tz=UTC)
    return at.isoformat().replace("+00:00", "Z")


def format_duration(ms: float) -> str:
    """A duration in its two largest units."""
    seconds = max(ms, 0) / 1000
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    rest = int(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count:,} {unit}")
    if rest:
        parts.append(f"{rest} s")
    return " ".join(parts[:2])
