"""A process that another one started, as that one sees it; and what its end stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors.processes import ProcessAbandoned, ProcessCancelled, ProcessFailed

if TYPE_CHECKING:
    from holdfast.processes.timeline import ProcessLine


class Parent(Protocol):
    """The run that started it."""

    async def ended(self, id: str) -> Any: ...  # noqa: ANN401
    async def glance(self, id: str) -> ProcessLine: ...
    async def signal(self, id: str, name: str, value: object) -> None: ...
    async def cancel(self, id: str, reason: str) -> None: ...


class Started:
    """A process that this one started."""

    __slots__ = ("_run", "id")

    def __init__(self, run: Parent, id: str) -> None:
        self._run = run
        self.id = id

    def __repr__(self) -> str:
        return f"Child({self.id!r})"

    async def result(self) -> Any:  # noqa: ANN401
        return await self._run.ended(self.id)

    async def status(self) -> ProcessLine:
        return await self._run.glance(self.id)

    async def signal(self, name: str, value: object = None) -> None:
        await self._run.signal(self.id, name, value)

    async def cancel(self, reason: str = "") -> None:
        await self._run.cancel(self.id, reason)


def raise_unless_completed(id: str, told: dict[str, Any]) -> None:
    """Raise what stands for the end of a process that did not complete."""
    match told["status"]:
        case "completed":
            return
        case "cancelled":
            raise ProcessCancelled(id, told["message"])
        case "abandoned":
            raise ProcessAbandoned(id, told["message"])
        case _:
            raise ProcessFailed(id, told["kind"], told["message"])
