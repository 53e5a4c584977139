"""The refund desk, over HTTP and killed: no message is lost, no refund is made twice, and only staff decide."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from tests.examples_apps.servers import KILLED, Client, Server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

    from tests.programs import Programs

TOKENS = "t-ada=customer:ada@example.org t-bob=customer:bob@example.org t-grace=staff:grace"
HEAVY, OTHER, SMALL = (
    "Please refund o-2, it is too heavy.",
    "Please refund o-4, it is no first edition.",
    "Please refund o-3.",
)
EDITED = 40_000


class Desk:
    """A server, and those who write to it."""

    def __init__(self, server: Server, shop: Path, http: aiohttp.ClientSession) -> None:
        self.ada, self.bob, self.grace = (Client(http, f"t-{name}", server) for name in ("ada", "bob", "grace"))
        self._shop = shop

    async def write(self, customer: Client, key: str, words: str) -> str:
        """Write a message; returns where its answer will be."""
        status, body = await customer.ask("POST", "/messages", key=key, json={"text": words})
        assert status == 202, body
        return body["status"]

    async def decide(self, words: str, verb: str, **body: Any) -> None:
        """Approve or deny the refund that the customer asked for with these words."""
        asked = [one for one in await self.grace.until("/approvals", bool) if one["arguments"]["reason"] == words]
        body |= {"digest": asked[0]["digest"]} if verb == "approve" else {}
        status, _ = await self.grace.ask("POST", f"/approvals/{asked[0]['id']}/{verb}", json=body)
        assert status in {200, 409}  # 409: it was decided, and the server was killed before it could say so

    async def answer(self, customer: Client, path: str) -> dict[str, Any]:
        done = await customer.until(path, lambda found: "answer" in found)
        assert done["status"] == "completed", done
        return done["answer"]

    def refunds(self) -> list[tuple[str, int]]:
        """All refunds that the shop ever made."""
        with closing(sqlite3.connect(self._shop)) as db:
            return db.execute("SELECT order_id, cents FROM refunds ORDER BY order_id").fetchall()


@asynccontextmanager
async def _desk(server: Server, folder: Path) -> AsyncGenerator[Desk]:
    async with aiohttp.ClientSession() as http:
        yield Desk(server, folder / "shop.db", http)


async def _play(server: Server, folder: Path) -> None:
    """Two customers write, one large refund is approved with another amount, and another one is denied."""
    async with _desk(server, folder) as desk:
        small, large = await desk.write(desk.bob, "b1", SMALL), await desk.write(desk.ada, "a1", HEAVY)
        await desk.decide(HEAVY, "approve", cents=EDITED)
        assert (await desk.answer(desk.ada, large))["refunded_cents"] == EDITED
        other = await desk.write(desk.ada, "a2", OTHER)
        await desk.decide(OTHER, "deny", reason="You have read it.")
        denied = await desk.answer(desk.ada, other)
        assert denied["refunded_cents"] == 0
        assert "You have read it." in denied["reply"]
        assert (await desk.answer(desk.bob, small))["refunded_cents"] == 990
        assert await desk.write(desk.ada, "a1", HEAVY) == large  # sent again: the same turn
        assert await desk.grace.ask("GET", "/approvals") == (200, [])
        assert desk.refunds() == [("o-2", EDITED), ("o-3", 990)]


async def _play_killed(programs: Programs, folder: Path, kills: list[str | float]) -> int:
    """Play while the server is killed: at crash points, or so many seconds after it began to serve."""
    server = Server(programs, "refund_desk.py", folder, DESK_TOKENS=TOKENS)

    def run() -> None:
        for kill in kills:
            if isinstance(kill, str):
                server.start(kill)
                assert server.wait() == KILLED, f"{kill}: {server.log}"
            else:
                server.start()
                server.kill_after(kill)
        server.start()

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(run))
            await _play(server, folder)
    finally:
        server.kill()
    return server.kills


async def test_a_desk_that_is_killed_at_named_moments_loses_and_doubles_nothing(
    programs: Programs, tmp_path: Path
) -> None:
    assert await _play_killed(programs, tmp_path, ["tool.after_run:2", "turn.before_park:1"]) == 3  # and at the end


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_a_desk_that_is_killed_at_random_moments_loses_and_doubles_nothing(
    programs: Programs, tmp_path: Path
) -> None:
    seed = int(os.environ.get("TORTURE_SEED") or random.randrange(1 << 30))
    print(f"repeat with: TORTURE_SEED={seed} python -m pytest -s {__file__} -m torture -k random")
    chance = random.Random(seed)
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        await _play_killed(programs, folder, [chance.uniform(0, 0.12) for _ in range(6)])


@pytest.fixture(scope="module")
def server(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("desk")
    running = Server(programs, "refund_desk.py", folder, DESK_TOKENS=TOKENS)
    running.start()
    yield running, folder
    assert running.stop() == -signal.SIGTERM, running.log
    assert "Traceback" not in running.log


@pytest.fixture
async def desk(server: tuple[Server, Path]) -> AsyncGenerator[Desk]:
    async with _desk(*server) as made:
        yield made


async def test_who_decides_comes_from_the_token_alone(desk: Desk) -> None:
    await desk.write(desk.ada, "a1", HEAVY)
    (asked,) = await desk.grace.until("/approvals", bool)
    path, digest = f"/approvals/{asked['id']}/approve", asked["digest"]
    assert (await desk.ada.ask("GET", "/approvals"))[0] == 403
    assert (await desk.ada.ask("POST", path, json={"digest": digest}))[0] == 403
    assert (await desk.grace.ask("POST", path, json={"digest": digest, "by": "boss"}))[0] == 400
    assert await desk.grace.ask("GET", "/approvals") == (200, [asked])


async def test_a_person_approves_only_what_they_saw(desk: Desk) -> None:
    await desk.write(desk.ada, "a1", HEAVY)
    (asked,) = await desk.grace.until("/approvals", bool)
    path = f"/approvals/{asked['id']}/approve"
    assert (await desk.grace.ask("POST", path, json={"digest": "0" * 64}))[0] == 409
    assert (await desk.grace.ask("POST", path, json={}))[0] == 400
    assert (await desk.grace.ask("POST", path, json={"digest": asked["digest"], "cents": -5}))[0] == 400
    assert (await desk.grace.ask("POST", "/approvals/a-0/approve", json={"digest": "", "cents": 5}))[0] == 409
    assert await desk.grace.ask("GET", "/approvals") == (200, [asked])


async def test_a_customer_gets_only_what_is_theirs(desk: Desk) -> None:
    path = await desk.write(desk.bob, "b1", "Please refund o-1.")  # an order of Ada
    assert (await desk.answer(desk.bob, path))["refunded_cents"] == 0
    assert desk.refunds() == []
    assert (await desk.grace.ask("GET", path))[0] == 403


async def test_no_order_is_refunded_twice_to_get_a_large_refund_in_small_pieces(desk: Desk) -> None:
    for key, cents in (("1", 990), ("2", 0)):
        path = await desk.write(desk.bob, key, "Please refund o-3.")
        assert (await desk.answer(desk.bob, path))["refunded_cents"] == cents
    assert desk.refunds() == [("o-3", 990)]


async def test_bad_requests_are_refused_by_name(desk: Desk) -> None:
    ask = desk.bob.ask
    assert (await ask("POST", "/messages", json={"text": "Hello"}))[0] == 400  # no key
    assert (await ask("POST", "/messages", key="k", json={"text": 5}))[0] == 400
    assert (await ask("POST", "/messages", key="k", data=b"{" * 100_000))[0] == 413
    assert (await ask("POST", "/messages", key="k", json={"text": ""}))[1]["error"] == "EmptyInput"
    assert (await ask("POST", "/messages", key="k" * 300, json={"text": "Hello"}))[1]["error"] == "InvalidId"
    await desk.write(desk.bob, "k", "Hello")
    assert (await ask("POST", "/messages", key="k", json={"text": "Other words"}))[0] == 409
    assert (await ask("GET", "/messages/t99"))[0] == 404
