"""The host says when notifications may enter; whenever that changes, what waits comes in. Several hosts share it."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.background import SESSION, agent_with, asked, notices, told
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import InvalidArgument
from holdfast.runtime.runtime import context_of
from holdfast.testing import text

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime

A_MOMENT = 0.1
EVERY = 0.2


class Gate:
    """What a host says."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self.asked: list[str] = []

    def __call__(self, session: str) -> bool:
        self.asked.append(session)
        return self.is_open


async def _waiting(runtime: Runtime, agent: hf.Agent, gate: Gate) -> None:
    """A notification that the gate has kept out; the session rests."""
    await asked(runtime, agent)
    await runtime.notify(SESSION, "The parcel is here")

    async def is_kept_out() -> bool:
        return SESSION in gate.asked and runtime.active == 0

    await until(is_kept_out)
    await asyncio.sleep(A_MOMENT)


def _agent() -> hf.Agent:
    return agent_with(script=[text("hello")])


async def test_nothing_enters_while_the_gate_is_closed() -> None:
    gate, agent = Gate(), _agent()
    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, gate)
        (notice,) = await runtime.store.notifications(SESSION)
        assert (notice.state, notice.attempts, await notices(runtime)) == ("queued", 0, [])


async def test_an_async_gate_keeps_out_and_lets_in() -> None:
    agent, plain = _agent(), Gate()

    async def gate(session: str) -> bool:
        await asyncio.sleep(0)
        return plain(session)

    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, plain)
        assert "The parcel" not in str(await runtime.session(SESSION).history())
        plain.is_open = True
        runtime.gate_changed(SESSION)

        async def has_entered() -> bool:
            return "The parcel" in str(await runtime.session(SESSION).history())

        await until(has_entered)


async def test_an_async_gate_that_raises_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    agent, plain = _agent(), Gate(is_open=True)

    async def gate(session: str) -> bool:
        plain(session)
        if len(plain.asked) == 1:
            raise OSError("the calendar is down")
        return True

    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, plain)
        assert "the calendar is down" in caplog.text
        runtime.gate_changed(SESSION)

        async def has_entered() -> bool:
            return "The parcel" in str(await runtime.session(SESSION).history())

        await until(has_entered)


async def test_what_waits_enters_once_when_the_gate_of_a_session_opens() -> None:
    gate, agent = Gate(), _agent()
    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, gate)
        gate.is_open = True
        runtime.gate_changed(SESSION)
        (notice,) = await told(runtime.store)
        assert (notice.attempts, len(await notices(runtime))) == (1, 1)


async def test_what_waits_enters_when_the_gates_of_all_sessions_open() -> None:
    gate, agent = Gate(), _agent()
    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, gate)
        gate.is_open = True
        runtime.gate_changed()
        (notice,) = await told(runtime.store)
        assert notice.state == "acknowledged"


@pytest.mark.timeout(60)
@pytest.mark.torture
async def test_a_gate_that_opens_without_a_word_is_found_by_the_safety_tick() -> None:
    gate, agent = Gate(), _agent()
    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, gate)
        gate.is_open = True
        async with asyncio.timeout(5 + 3):
            while (await runtime.store.notifications(SESSION))[0].state != "acknowledged":
                await asyncio.sleep(0.2)


@pytest.mark.parametrize("drives", ["this runtime", "another runtime"])
async def test_a_host_chooses_how_often_its_gate_is_asked_again(drives: str, tmp_path: Path) -> None:
    gate, agent = Gate(), _agent()
    elsewhere = drives == "another runtime"
    async with hf.open(tmp_path / "s.db", agents=[agent], can_deliver=gate, gate_interval=EVERY) as runtime:
        await asked(runtime, agent)
        async with hf.open(tmp_path / "s.db", drive=False) as other:
            await (other if elsewhere else runtime).notify(SESSION, "The parcel is here")
        await until(lambda: SESSION in gate.asked)
        first = len(gate.asked)
        await until(lambda: len(gate.asked) > first + 2)
        gate.is_open = True
        (notice,) = await told(runtime.store)
        assert notice.state == "acknowledged"


async def test_the_gate_is_asked_again_every_5_seconds_unless_the_host_says_otherwise() -> None:
    assert inspect.signature(hf.open).parameters["gate_interval"].default == 5


@pytest.mark.parametrize("given", [0, -1, "often", None])
async def test_a_gate_interval_that_is_no_span_of_time_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        async with hf.open(None, gate_interval=given):
            pass


async def test_a_gate_that_opens_while_it_is_asked_is_not_missed() -> None:
    """Level-triggered: the gate opens right after it has said no, and the host tells so at that moment."""
    runtimes: list[Any] = []
    answers: list[bool] = []

    def gate(session: str) -> bool:
        answers.append(bool(answers))
        if not answers[-1]:
            asyncio.get_running_loop().call_soon(runtimes[0].gate_changed, session)
        return answers[-1]

    agent = _agent()
    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        runtimes.append(runtime)
        await asked(runtime, agent)
        await runtime.notify(SESSION, "The parcel is here")
        (notice,) = await told(runtime.store)
        assert notice.state == "acknowledged"


async def test_a_gate_that_opens_within_its_own_question_is_not_missed() -> None:
    runtimes: list[Any] = []
    answers: list[bool] = []

    def gate(session: str) -> bool:
        answers.append(bool(answers))
        runtimes[0].gate_changed(session)
        return answers[-1]

    agent = _agent()
    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        runtimes.append(runtime)
        await asked(runtime, agent)
        await runtime.notify(SESSION, "The parcel is here")
        (notice,) = await told(runtime.store)
        assert notice.state == "acknowledged"


async def test_what_a_closed_gate_kept_out_enters_after_a_restart(tmp_path: Path) -> None:
    gate, agent = Gate(), _agent()
    async with hf.open(tmp_path / "s.db", agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, gate)
    async with hf.open(tmp_path / "s.db", agents=[_agent()]) as runtime:
        (notice,) = await told(runtime.store)
        assert notice.state == "acknowledged"


async def test_what_one_gate_kept_out_enters_through_another_runtime(tmp_path: Path) -> None:
    gate, agent = Gate(), _agent()
    async with hf.open(tmp_path / "s.db", agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, gate)
        async with hf.open(tmp_path / "s.db", agents=[_agent()]) as other:
            (notice,) = await told(other.store)
            assert notice.state == "acknowledged"


async def test_the_words_of_a_person_are_not_held_by_the_gate() -> None:
    gate, agent = Gate(), _agent()
    async with hf.open(None, agents=[agent], can_deliver=gate) as runtime:
        await _waiting(runtime, agent, gate)
        assert (await asked(runtime, agent, "hello again")).status == "completed"
        assert await notices(runtime) == []


async def test_a_gate_that_breaks_does_not_break_its_session() -> None:
    def broken(session: str) -> bool:
        raise LookupError(session)

    agent = _agent()
    async with hf.open(None, agents=[agent], can_deliver=broken) as runtime:
        await asked(runtime, agent)
        await runtime.notify(SESSION, "The parcel is here")
        await asyncio.sleep(A_MOMENT)
        assert context_of(runtime).sessions.stuck(SESSION) is None
        assert (await asked(runtime, agent, "hello again")).status == "completed"


async def test_a_gate_of_one_session_does_not_hold_another() -> None:
    agent = _agent()
    async with hf.open(None, agents=[agent], can_deliver=lambda session: session == "open") as runtime:
        for session in ("shut", "open"):
            await asked(runtime, agent, session=session)
            await runtime.notify(session, "The parcel is here")
        (notice,) = await told(runtime.store, "open")
        assert notice.state == "acknowledged"
        assert [found.state for found in await runtime.store.notifications("shut")] == ["queued"]


# ---- several hosts ---------------------------------------------------------------------------------------------------


async def test_a_notification_from_another_host_wakes_the_one_that_drives(tmp_path: Path) -> None:
    agent = _agent()
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await asked(runtime, agent)
        async with hf.open(tmp_path / "s.db", drive=False) as other:
            await other.notify(SESSION, "The parcel is here")
        (notice,) = await told(runtime.store)
        assert notice.state == "acknowledged"


async def test_two_runtimes_tell_each_notification_once(tmp_path: Path) -> None:
    first, second = _agent(), _agent()
    async with (
        hf.open(tmp_path / "s.db", agents=[first]) as one,
        hf.open(tmp_path / "s.db", agents=[second]) as two,
    ):
        await asked(one, first)
        for number in range(10):
            await (one, two)[number % 2].notify(SESSION, f"n{number}")
        found = await told(one.store, count=10)
        assert {notice.state for notice in found} == {"acknowledged"}
        assert {notice.attempts for notice in found} == {1}
        assert sum(words.count("<notification ") for words in await notices(one)) == 10


async def test_a_session_with_a_full_inbox_is_told_when_there_is_room() -> None:
    at_model, go = asyncio.Event(), asyncio.Event()

    async def thinks(request: Any) -> Any:
        at_model.set()
        await go.wait()
        return text("done")

    agent = agent_with(script=[thinks])
    async with hf.open(None, agents=[agent], limits=hf.StoreLimits(pending_inputs=2)) as runtime:
        session = runtime.session(SESSION, agent=agent)
        turns = [await session.send("one")]
        await at_model.wait()
        turns += [await session.send("two"), await session.send("three")]
        await runtime.notify(SESSION, "The parcel is here")
        await asyncio.sleep(A_MOMENT)
        go.set()
        assert [(await turn.outcome(timeout=SOON)).status for turn in turns] == ["completed"] * 3
        (notice,) = await told(runtime.store)
        assert notice.state == "acknowledged"


async def test_a_stop_request_reaches_a_turn_whose_inbox_is_full_of_other_things() -> None:
    at_model = asyncio.Event()

    async def thinks(request: Any) -> Any:
        at_model.set()
        await asyncio.Event().wait()

    agent = agent_with(script=[thinks])
    async with hf.open(None, agents=[agent], limits=hf.StoreLimits(pending_inputs=1)) as runtime:
        session = runtime.session(SESSION, agent=agent)
        turn = await session.send("one")
        await at_model.wait()
        await session.send("two")
        await runtime.notify(SESSION, "The parcel is here")
        await asyncio.sleep(A_MOMENT)
        await turn.cancel()
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
