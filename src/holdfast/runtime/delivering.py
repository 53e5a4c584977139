"""Letting notifications into a session: several in one input, claimed before they are said, at a moment that suits.

They are claimed and put into the inbox in one transaction; the turn that takes the input in acknowledges them with its
end, or they are queued again. All of that is in the store, so a crash at any place loses none and repeats none.
"""

from __future__ import annotations

import inspect
from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast.effects.canonical import canonical
from holdfast.errors import InboxFull, InvalidArgument
from holdfast.errors.delivering import GateInvalid, NotASession
from holdfast.messages import Text
from holdfast.store.contract import Input
from holdfast.tasks import is_task_id
from holdfast.turns.conversation import Said
from holdfast.turns.notices import chosen, notice

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from holdfast.policy.subject import InputTaint
    from holdfast.store import Notification, Store
    from holdfast.store.contract import Lease

AT_ONCE: Final = 32
"""How many are looked at for one input."""


def checked_gate(given: Callable[[str], bool] | None) -> Callable[[str], bool]:
    """What says whether notifications may enter a session now; `GateInvalid` if it can't say so at once.

    Whatever is not yes or no is an error when it is said, not a yes: a coroutine that nobody awaits would be one.
    """
    if given is None:
        return _always
    if not callable(given):
        raise GateInvalid(given, f"it is a {type(given).__name__}")
    call = getattr(given, "__call__", None)  # noqa: B004  an object whose call is asynchronous
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(given):
        raise GateInvalid(given, "it is asynchronous, and nobody can wait for it there")

    def ask(session: str) -> bool:
        said: object = given(session)
        if type(said) is bool:
            return said
        if inspect.iscoroutine(said):
            cast("Coroutine[object, object, object]", said).close()
        raise GateInvalid(given, f"it answered with a {type(said).__name__}")

    return ask


def checked_session(id: str) -> str:
    """An id that is not that of a task: nobody would ever read what it is told."""
    if isinstance(id, str) and is_task_id(id):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise NotASession(id)
    return id


def _always(session: str) -> bool:  # noqa: ARG001  any session
    return True


def next_batch(ready: Sequence[Notification], *, idle: bool) -> tuple[Notification, ...]:
    """The notifications that go into the next input.

    One that a turn carried and did not acknowledge is delivered alone, in a turn of its own, so only while the session
    is `idle`: if its text is what makes turns fail, it takes no other notification and no turn of a person with it.
    """
    fresh = [found for found in ready if not found.attempts]
    if idle and ready and ready[0].attempts:
        return (ready[0],)
    return chosen(fresh)


async def deliver(
    store: Store, lease: Lease, picked: Sequence[Notification], *, reads: bool, taint: InputTaint
) -> tuple[Input, Said] | None:
    """Put these into the inbox as one input; None when none can be claimed any more.

    `reads`: the agent has the tool that reads tasks. `taint` is that of the work that they tell of.
    """
    steer = not any(found.attempts for found in picked)
    said = Said(parts=(Text(notice(picked, reads=reads)),), steer=steer, origin="holdfast", taint=taint)
    content = msgspec.to_builtins(said)
    try:
        receipt = await store.carry(lease, [found.id for found in picked], content)
    except InboxFull:
        return None  # they wait until there is room
    if receipt is None:
        return None
    return Input(receipt.input, receipt.key, canonical(content), receipt.at), said


def wall_of(at: datetime | None) -> int | None:
    """A time as it is stored: in wall milliseconds."""
    if at is None:
        return None
    if not isinstance(at, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
        raise InvalidArgument("time", at, "a datetime")
    return round(at.timestamp() * 1000)
