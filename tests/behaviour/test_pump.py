"""A pump of the host's own: it takes the notifications of a session, and settles each itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest
from tests.behaviour.background import talkative
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast.errors import (
    ExportRefused,
    InvalidId,
    JournalMissing,
    JournalMoved,
    NotASession,
    PumpHeld,
    RuntimeStopped,
)
from holdfast.store import StoreLimits
from holdfast.store.notifications import pump_journal
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from holdfast.runtime.notifications import PumpedNotification

AGENT = "a"


def make_agent() -> hf.Agent:
    return hf.Agent(AGENT, model=talkative())


async def begun(runtime: hf.Runtime, session: str = "s") -> None:
    await runtime.run(AGENT, "hello", session=session)


async def item_of(pump: AsyncGenerator[PumpedNotification]) -> PumpedNotification:
    async with asyncio.timeout(SOON):
        return await anext(pump)


async def states(runtime: hf.Runtime, session: str = "s") -> dict[str, str]:
    return {found.title: found.state for found in await runtime.notifications.list(session)}


async def turns(runtime: hf.Runtime, session: str = "s") -> int:
    return sum(isinstance(message, hf.UserMessage) for message in await runtime.session(session).history())


async def pumping(
    runtime: hf.Runtime,
    session: str = "s",
    can_deliver: Callable[[str], bool | Awaitable[bool]] | None = None,
    interval: float = 5,
) -> Host:
    """A host that holds the session already."""
    host = Host(runtime.notifications.pump(session, can_deliver=can_deliver, interval=interval))
    await until(lambda: runtime.store.holder(pump_journal(session)))
    return host


class Host:
    """Takes items of a pump in a task of its own, one at a time, when the test asks for one."""

    def __init__(self, pump: AsyncGenerator[PumpedNotification]) -> None:
        self.pump = pump
        self._next = asyncio.ensure_future(anext(pump))

    async def item(self) -> PumpedNotification:
        async with asyncio.timeout(SOON):
            found = await self._next
        self._next = asyncio.ensure_future(anext(self.pump))
        return found

    async def gets_nothing(self) -> bool:
        await asyncio.sleep(0.1)
        return not self._next.done()

    async def ended(self) -> bool:
        async with asyncio.timeout(SOON):
            with suppress(StopAsyncIteration):
                await self._next
                return False
        return True

    async def close(self) -> None:
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)
        await self.pump.aclose()


async def test_a_pump_gets_what_waits_in_the_order_of_delivery() -> None:
    is_open = False
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime, can_deliver=lambda _: is_open)
        await runtime.notify("s", "first")
        await runtime.notify("s", "second")
        await runtime.notify("s", "urgent", "now!", priority=2, payload={"n": 1})
        is_open = True
        runtime.gate_changed()
        urgent = await host.item()
        assert (urgent.title, urgent.body, urgent.payload, urgent.attempts) == ("urgent", "now!", {"n": 1}, 1)
        assert "| now!" in urgent.text
        assert [await urgent.ack(), await urgent.ack()] == [True, True]  # the same answer once more
        for wanted in ("first", "second"):
            item = await host.item()
            assert (item.title, await item.ack()) == (wanted, True)
        assert await host.gets_nothing()
        await host.close()
        assert (await turns(runtime), await check(runtime.store)) == (1, [])


async def test_while_a_pump_holds_a_session_no_turn_begins_and_after_it_one_does() -> None:
    async with hf.open(None, agents=[make_agent()], gate_interval=0.05) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        await runtime.notify("s", "one")
        await runtime.notify("s", "two")
        item = await host.item()
        assert await host.gets_nothing()  # one at a time
        assert (await turns(runtime), await states(runtime)) == (1, {"one": "claimed", "two": "queued"})
        assert await item.ack()
        await host.close()  # the second one was on its way to the host: it goes back
        await until(lambda: all_are(runtime, "acknowledged"))
        assert await turns(runtime) == 2
        assert [found.attempts for found in await runtime.notifications.list("s")][1] == 1
        assert await check(runtime.store) == []


async def all_are(runtime: hf.Runtime, state: str) -> bool:
    return set((await states(runtime)).values()) == {state}


async def test_a_turn_of_a_person_does_not_take_what_the_pump_holds() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime, can_deliver=lambda _: False, interval=60)
        await runtime.notify("s", "one")
        await runtime.run(AGENT, "and?", session="s")
        assert await states(runtime) == {"one": "queued"}
        await host.close()
        await until(lambda: all_are(runtime, "acknowledged"))


async def test_the_one_in_flight_is_listed_with_its_pump() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        sent = await runtime.notify("s", "one")
        await host.item()
        (found,) = await runtime.notifications.list("s", "claimed")
        assert (found.id, found.attempts) == (sent.id, 1)
        assert f"process {os.getpid()}" in (found.reason or "")
        await host.close()


async def test_a_requeued_one_comes_again_after_its_delay_with_the_same_id_behind_the_others() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        await runtime.notify("s", "one")
        await runtime.notify("s", "two")
        one = await host.item()
        assert await one.requeue(0.2, reason="the line was busy")
        two = await host.item()
        (found,) = [each for each in await runtime.notifications.list("s") if each.title == "one"]
        assert (two.title, found.reason) == ("two", "the line was busy")
        assert await two.ack()
        again = await host.item()
        assert (again.id, again.attempts) == (one.id, 2)
        assert await one.ack() is False  # the delivery before is over
        assert await again.ack() is True
        await host.close()


async def test_one_that_is_never_acknowledged_is_dead_after_the_last_attempt() -> None:
    limits = StoreLimits(max_attempts=3)
    async with hf.open(None, agents=[make_agent()], limits=limits) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        await runtime.notify("s", "poison")
        await runtime.notify("s", "good")
        seen: list[str] = []
        for _ in range(4):
            item = await host.item()
            seen.append(item.title)
            await (item.ack() if item.title == "good" else item.requeue(0))
        assert sorted(seen) == ["good", *["poison"] * 3]
        assert await states(runtime) == {"poison": "dead", "good": "acknowledged"}
        dead = (await runtime.notifications.list("s", "dead"))[0]
        assert "carried 3 times" in (dead.reason or "")
        assert await runtime.notifications.settle(dead.id, "queued")  # by hand
        assert (await host.item()).attempts == 1
        await host.close()


async def test_what_was_settled_by_hand_in_flight_is_not_acknowledged_by_the_host() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        await runtime.notify("s", "one")
        item = await host.item()
        assert await runtime.notifications.settle(item.id, "cancelled")
        assert await item.ack() is False
        await runtime.notify("s", "two")
        assert (await host.item()).title == "two"
        await host.close()


async def test_a_second_pump_is_refused_with_the_holder_and_follows_the_first() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        with pytest.raises(PumpHeld) as refused:
            await item_of(runtime.notifications.pump("s"))
        assert refused.value.session == "s"
        assert str(os.getpid()) in refused.value.holder
        assert 0 < refused.value.expires_in_ms <= 10_000
        await host.close()
        other = await pumping(runtime)
        await runtime.notify("s", "one")
        assert (await other.item()).title == "one"
        await other.close()


async def test_pumps_of_several_sessions_do_not_get_in_each_others_way() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        names = [f"s{number}" for number in range(20)]
        for name in names:
            await begun(runtime, name)
        hosts = [await pumping(runtime, name) for name in names]
        for name in names:
            await runtime.notify(name, f"for {name}")
        for name, host in zip(names, hosts, strict=True):
            item = await host.item()
            assert item.title == f"for {name}"
            await item.ack()
        for host in hosts:
            await host.close()


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_the_gate_is_asked_again_when_it_changes(kind: str) -> None:
    is_open = False

    async def ask(session: str) -> bool:
        return is_open

    def answer(session: str) -> bool:
        return is_open

    gate = ask if kind == "async" else answer
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime, can_deliver=gate, interval=60)
        await runtime.notify("s", "one")
        assert await host.gets_nothing()
        is_open = True
        runtime.gate_changed("s")
        assert (await host.item()).title == "one"
        await host.close()


async def test_a_gate_that_fails_holds_back_and_the_interval_asks_again(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    def gate(session: str) -> bool:
        asked.append(session)
        if len(asked) < 3:
            raise ConnectionError("no line")
        return True

    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        await runtime.store.notify("s", kind="x", title="later", due=2**50)
        host = await pumping(runtime, can_deliver=gate, interval=0.05)
        await runtime.notify("s", "one")
        assert (await host.item()).title == "one"
        assert "can_deliver failed" in caplog.text
        await host.close()


async def test_one_that_is_due_later_comes_when_it_is_due() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime, interval=60)
        now = runtime.store.clock.read().wall
        await runtime.store.notify("s", kind="x", title="later", due=now + 300)
        item = await host.item()
        assert runtime.store.clock.read().wall >= now + 300
        assert item.title == "later"
        await host.close()


async def test_a_pump_that_has_nothing_to_deliver_rests(tmp_path: Path) -> None:
    asked: list[str] = []

    def gate(session: str) -> bool:
        asked.append(session)
        return True

    async with hf.open(tmp_path / "store.db", agents=[make_agent()]) as worker:
        await begun(worker)
    async with hf.open(tmp_path / "store.db", drive=False) as runtime:  # no engine sees that it expires
        now = runtime.store.clock.read().wall
        await runtime.store.notify("s", kind="x", title="too late", due=now - 10, expires=now + 20)
        await until(lambda: runtime.store.clock.read().wall > now + 20)
        host = await pumping(runtime, can_deliver=gate, interval=60)
        await host.gets_nothing()
        asked.clear()
        assert await host.gets_nothing()
        assert len(asked) <= 5
        await host.close()


async def test_a_pump_ends_when_the_runtime_closes_and_what_was_in_flight_goes_back(tmp_path: Path) -> None:
    got: list[str] = []

    async def host(runtime: hf.Runtime, ready: asyncio.Event) -> str:
        async for item in runtime.notifications.pump("s"):
            got.append(item.title)
            ready.set()
            await asyncio.sleep(0.2)  # meanwhile the runtime closes
            got.append(str(await item.ack()))
        return "ended"

    ready = asyncio.Event()
    async with hf.open(tmp_path / "store.db", agents=[make_agent()]) as runtime:
        await begun(runtime)
        task = asyncio.create_task(host(runtime, ready))
        await until(lambda: runtime.store.holder(pump_journal("s")))
        await runtime.notify("s", "one")
        await ready.wait()
    assert await asyncio.wait_for(task, SOON) == "ended"
    assert got == ["one", "False"]
    with pytest.raises(RuntimeStopped):
        runtime.notifications.pump("s")
    async with hf.open(tmp_path / "store.db", agents=[make_agent()], drive=False) as later:
        (found,) = await later.notifications.list("s")
        assert (found.state, found.attempts, found.reason) == ("queued", 1, "its pump was closed")
        assert await check(later.store) == []


async def test_a_loop_that_is_left_gives_the_session_back() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)

        async def first() -> str:
            async for item in runtime.notifications.pump("s"):
                return item.title
            return ""

        task = asyncio.create_task(first())
        await until(lambda: runtime.store.holder(pump_journal("s")))
        await runtime.notify("s", "one")
        assert await asyncio.wait_for(task, SOON) == "one"
        await until(lambda: all_are(runtime, "acknowledged"))  # by a turn
        assert await turns(runtime) == 2


async def test_what_has_no_pump_is_refused() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        with pytest.raises(JournalMissing):
            await item_of(runtime.notifications.pump("nobody"))
        item = await runtime.processes.external(title="t")
        with pytest.raises(NotASession):
            await item_of(runtime.notifications.pump(f"process/{item.id}"))
        with pytest.raises(InvalidId):
            runtime.notifications.pump("")
        with pytest.raises(hf.errors.GateInvalid):
            runtime.notifications.pump("s", can_deliver="yes")  # pyright: ignore[reportArgumentType]


async def test_a_session_that_is_forgotten_ends_its_pump_with_an_error() -> None:
    async with hf.open(None, agents=[make_agent()]) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        await runtime.notify("s", "one")
        item = await host.item()
        await runtime.forget("s")
        assert await item.ack() is False
        with pytest.raises(JournalMissing):
            await host.ended()


WORKER = """
import asyncio, sys
import holdfast as hf

async def main():
    async with hf.open(sys.argv[1], drive=False, lease_ms=int(sys.argv[2])) as runtime:
        async for item in runtime.notifications.pump("s"):
            print(item.id, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            print(await item.ack(), flush=True)

asyncio.run(main())
"""


class Worker:
    """A host in another process, which acknowledges what it has when it is told to."""

    def __init__(self, path: Path, lease_ms: int = 10_000) -> None:
        command = [sys.executable, "-c", WORKER, str(path), str(lease_ms)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(SOON):
            return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    async def acknowledges(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return await self.line()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


async def test_what_a_killed_host_had_in_flight_comes_back_at_once_and_the_driver_delivers_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[make_agent()]) as runtime:
        await begun(runtime)
        with Worker(path) as host:
            await until(lambda: runtime.store.holder(pump_journal("s")))
            good = await runtime.notify("s", "good")
            other = await runtime.notify("s", "other")
            assert (await host.line(), await host.acknowledges(), await host.line()) == (
                *(str(good.id), "True"),
                str(other.id),
            )
            with pytest.raises(PumpHeld):
                await item_of(runtime.notifications.pump("s"))
            assert await states(runtime) == {"good": "acknowledged", "other": "claimed"}
            host.process.send_signal(signal.SIGKILL)
            host.process.wait()
            began = time.monotonic()
            await until(lambda: all_are(runtime, "acknowledged"))
            assert time.monotonic() - began < 5  # its process is gone: nobody waits for the end of the lease, 10 s
        assert [found.attempts for found in await runtime.notifications.list("s")] == [2, 1]
        assert (await turns(runtime), await check(runtime.store)) == (2, [])


async def test_a_frozen_host_loses_its_hold_and_its_late_answer_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with hf.open(path, agents=[make_agent()], can_deliver=lambda _: False) as runtime:
        await begun(runtime)
        await runtime.notify("s", "one")
        with Worker(path, lease_ms=1_000) as frozen:
            assert await frozen.line() == "1"
            frozen.process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(SOON):
                while True:
                    taken = runtime.notifications.pump("s", can_deliver=lambda _: True)
                    with suppress(PumpHeld):
                        again = await anext(taken)
                        break
            frozen.process.send_signal(signal.SIGCONT)
            assert await frozen.acknowledges() == "False"
            assert (again.id, again.attempts, await again.ack()) == (1, 2, True)
            await taken.aclose()
        assert await states(runtime) == {"one": "acknowledged"}


async def test_a_session_that_is_moved_takes_what_its_pump_had_along(tmp_path: Path) -> None:
    path, file = tmp_path / "one.db", tmp_path / "s.jsonl"
    async with hf.open(path, agents=[make_agent()], mirror=False) as runtime:
        await begun(runtime)
        with Worker(path) as host:
            await until(lambda: runtime.store.holder(pump_journal("s")))
            await runtime.notify("s", "one")
            assert await host.line() == "1"
            assert (await runtime.export_session("s", file, move=True)).journals == ("s",)
            assert await check(runtime.store) == [], "while the host still has it"
            assert await host.acknowledges() == "False"
            assert (await states(runtime), await check(runtime.store)) == ({"one": "queued"}, [])
    async with hf.open(tmp_path / "two.db", agents=[make_agent()], mirror=False, drive=False) as runtime:
        await runtime.import_session(file, key=tmp_path / "one.db.key")
        pump = runtime.notifications.pump("s")
        again = await item_of(pump)
        assert (again.title, again.attempts, await again.ack()) == ("one", 2, True)
        await pump.aclose()
        assert (await states(runtime), await check(runtime.store)) == ({"one": "acknowledged"}, [])


async def test_without_a_pump_there_a_turn_carries_what_the_pump_had_before_the_move(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    async with hf.open(tmp_path / "one.db", agents=[make_agent()], mirror=False) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        await runtime.notify("s", "one")
        item = await host.item()
        await runtime.export_session("s", file, move=True)
        assert await item.ack() is False
        with pytest.raises(JournalMoved):
            await host.ended()
        with pytest.raises(JournalMoved):
            await item_of(runtime.notifications.pump("s"))
    async with hf.open(tmp_path / "two.db", agents=[make_agent()], mirror=False) as runtime:
        await runtime.import_session(file, key=tmp_path / "one.db.key")
        await until(lambda: all_are(runtime, "acknowledged"))
        assert (await turns(runtime), await check(runtime.store)) == (2, [])


async def test_a_copy_is_refused_while_a_pump_has_something_and_made_without_the_pump(tmp_path: Path) -> None:
    async with hf.open(tmp_path / "one.db", agents=[make_agent()], mirror=False) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        await runtime.notify("s", "one")
        item = await host.item()
        with pytest.raises(ExportRefused, match="has something in its inbox"):
            await runtime.export_session("s", tmp_path / "refused.jsonl")
        assert await item.ack()
        assert (await runtime.export_session("s", tmp_path / "s.jsonl")).journals == ("s",)
        await host.close()
    async with hf.open(tmp_path / "two.db", agents=[make_agent()], mirror=False) as runtime:
        await runtime.import_session(tmp_path / "s.jsonl", key=tmp_path / "one.db.key")
        with pytest.raises(JournalMissing):
            await runtime.store.journal(pump_journal("s"))
        assert await check(runtime.store) == []


@pytest.mark.parametrize("moved", [False, True])
async def test_the_journal_of_a_pump_is_forgotten_with_its_session(tmp_path: Path, *, moved: bool) -> None:
    async with hf.open(tmp_path / "one.db", agents=[make_agent()], mirror=False) as runtime:
        await begun(runtime)
        host = await pumping(runtime)
        await runtime.notify("s", "one")
        await host.item()
        if moved:
            await runtime.export_session("s", tmp_path / "s.jsonl", move=True)
        assert (await runtime.forget("s")).journals == ("s", pump_journal("s"))
        with pytest.raises(JournalMissing):
            await runtime.store.journal(pump_journal("s"))
        assert await check(runtime.store) == []


def test_a_plain_loop_pumps_too(tmp_path: Path) -> None:
    agent = make_agent()
    with hf.open_sync(tmp_path / "store.db", agents=[agent], can_deliver=lambda _: False) as runtime:
        runtime.run(agent, "hello", session="s")
        runtime.notify("s", "one", payload=[1])
        for item in runtime.notifications.pump("s", can_deliver=lambda _: True):
            assert (item.title, item.payload, item.ack()) == ("one", [1], True)
            break
        assert [found.state for found in runtime.notifications.list("s")] == ["acknowledged"]
