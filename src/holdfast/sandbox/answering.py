"""Answers to what a program asks for, as its worker takes them."""

from __future__ import annotations

import asyncio
import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors.programs import AnswerRefused
from holdfast.sandbox import nodes, requests
from holdfast.sandbox.steps import Raised, Returned

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.sandbox.events import System
    from holdfast.sandbox.steps import Outcome

LARGE: Final = 65536
"""A message of more bytes is read and written in a thread: that may take a while."""
_SHORT: Final = 512
"""An answer of more bytes is not sent ahead: no pipe may ever be full of them."""
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_CONTAINERS: Final = (list, dict, tuple)


def short(number: int, outcome: Outcome) -> bytes | None:
    """The answer to a call, if it is a plain and short one."""
    if isinstance(outcome, Returned) and isinstance(outcome.value, _CONTAINERS):
        return None
    try:
        answer = requests.settled(number, outcome)
    except TypeError:  # it is told when it is its turn
        return None
    return answer if len(answer) <= _SHORT else None


async def settled(number: int, outcome: Outcome) -> bytes:
    """The answer to a call. `AnswerRefused` for a value that no program can have."""
    try:
        if isinstance(outcome, Raised) or type(outcome.value) in _SCALARS:
            return requests.settled(number, outcome)
        return await made(partial(requests.settled, number, outcome), outcome.value)
    except TypeError as error:
        raise AnswerRefused(str(number), str(error)) from None


async def made(request: Callable[[], bytes], value: object) -> bytes:
    """A request with this value in it. A large one is written in a thread: that may take a while."""
    if isinstance(value, _CONTAINERS) and len(msgspec.json.encode(value)) > LARGE:
        return await asyncio.to_thread(request)
    return request()


def system_answer(asked: System, outcome: Outcome) -> bytes:
    """The answer to something of the system that can't wait."""
    number = asked.number
    if isinstance(outcome, Raised):
        return requests.refused(number, outcome.kind, outcome.message)
    if asked.name == "sleep":
        return requests.answered(number, None)
    seconds = float(outcome.value)
    if asked.name == "time":
        return requests.answered(number, seconds)
    now = dt.datetime.fromtimestamp(seconds, dt.UTC)
    if asked.name == "today":
        return requests.answered_with(number, nodes.day(now.date()))
    if asked.offset is None:
        return requests.answered_with(number, nodes.moment(now.replace(tzinfo=None), None))
    there = now.astimezone(dt.timezone(dt.timedelta(seconds=asked.offset)))
    return requests.answered_with(number, nodes.moment(there, asked.zone))
