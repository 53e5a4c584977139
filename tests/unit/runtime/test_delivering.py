"""Who decides whether a session is told something now, and who can be told at all."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.every import every

from holdfast.errors import UsageError
from holdfast.errors.caller import GateInvalid, NotASession
from holdfast.processes.keys import task_id
from holdfast.runtime import session_driver
from holdfast.runtime.session_driver import check_gate, check_session_id


async def _later(_session: str) -> bool:
    return True


async def _several(_session: str) -> Any:
    yield True


class _Object:
    async def __call__(self, session: str) -> bool:
        return bool(session)


@every("gate", [_several, True, "yes", 1])
def test_a_gate_that_can_not_answer_is_refused(gate: Any) -> None:
    with pytest.raises(GateInvalid, match="plain or async"):
        check_gate(gate)


@pytest.mark.parametrize("answer", [None, 1, "no"])
async def test_an_answer_that_is_neither_yes_nor_no_is_no_yes(answer: Any) -> None:
    with pytest.raises(GateInvalid, match="answered with a"):
        await check_gate(lambda _: answer)("s")


@pytest.mark.parametrize("answer", [True, False])
async def test_a_plain_gate_is_asked(answer: bool) -> None:
    assert await check_gate(lambda _: answer)("s") is answer


@pytest.mark.parametrize("gate", [_later, partial(_later), _Object()])
async def test_an_async_gate_is_asked(gate: Any) -> None:
    assert await check_gate(gate)("s") is True


async def test_an_async_gate_that_never_answers_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_driver, "GATE_SECONDS", 0.01)

    async def never(_session: str) -> bool:
        await asyncio.get_running_loop().create_future()
        return True

    with pytest.raises(GateInvalid, match="within"):
        await check_gate(never)("s")


async def test_without_a_gate_everything_may_enter() -> None:
    assert await check_gate(None)("s") is True


def test_a_task_can_not_be_told_anything() -> None:
    with pytest.raises(NotASession, match="notify its session"):
        check_session_id(task_id("s", "t1/1.tools/1.pay"))


@pytest.mark.parametrize("id", ["s", "task-", "task-1", "tasks"])
def test_a_session_that_is_called_a_little_like_a_task_can(id: str) -> None:
    assert check_session_id(id) == id


@pytest.mark.parametrize("kind", [GateInvalid, NotASession])
def test_both_are_errors_of_the_caller(kind: type[Exception]) -> None:
    assert issubclass(kind, UsageError)
