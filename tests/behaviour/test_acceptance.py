"""Acknowledged is durable, and an input is taken once: what a host application may rely on when a call returns."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast import open_store
from holdfast.errors import InputTaken, KeyConflict
from holdfast.records import Admitted
from holdfast.testing import check

if TYPE_CHECKING:
    from pathlib import Path


async def test_an_accepted_input_is_there_after_the_store_was_closed(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("customer-42")
        receipt = await store.accept("customer-42", {"text": "Where is my order?"}, key="msg-881")
    async with open_store(tmp_path / "store.db") as store:
        (pending,) = await store.pending("customer-42")
        assert (pending.input, pending.key) == (receipt.input, "msg-881")
        assert msgspec.json.decode(pending.body) == {"text": "Where is my order?"}


_WORKER = """
import asyncio, sys
from holdfast import open_store

async def main():
    async with open_store(sys.argv[1]) as store:
        await store.open_journal("customer-42")
        for n in range(1_000_000):
            await store.accept("customer-42", n, key=f"msg-{n}")
            print(n, flush=True)  # only after it was acknowledged

asyncio.run(main())
"""


async def test_every_input_that_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    worker = subprocess.Popen(  # noqa: ASYNC220  the worker is to be killed, not awaited
        [sys.executable, "-c", _WORKER, str(tmp_path / "store.db")], stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    acknowledged = [int(worker.stdout.readline()) for _ in range(20)]
    os.kill(worker.pid, signal.SIGKILL)
    acknowledged += [int(line) for line in worker.stdout.read().splitlines() if line]
    worker.wait(timeout=30)
    worker.stdout.close()
    async with open_store(tmp_path / "store.db") as store:
        kept = {msgspec.json.decode(found.body) for found in await store.pending("customer-42")}
        assert kept >= set(acknowledged)
        assert await check(store) == []


async def test_a_sender_that_tries_again_is_answered_with_its_first_receipt(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("customer-42")
        first = await store.accept("customer-42", "hello", key="msg-1")
    async with open_store(tmp_path / "store.db") as store:
        again = await store.accept("customer-42", "hello", key="msg-1")
        assert (again.input, again.at) == (first.input, first.at)
        assert (first.fresh, again.fresh) == (True, False)
        assert len(await store.pending("customer-42")) == 1


async def test_a_key_that_is_used_for_other_content_is_a_conflict(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("customer-42")
        await store.accept("customer-42", "hello", key="msg-1")
        with pytest.raises(KeyConflict, match="a new input needs a new key"):
            await store.accept("customer-42", "goodbye", key="msg-1")


async def test_a_hundred_senders_of_one_message_send_it_once(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("customer-42")
        receipts = await asyncio.gather(*(store.accept("customer-42", "hello", key="msg-1") for _ in range(100)))
        assert sum(receipt.fresh for receipt in receipts) == 1
        assert len(await store.pending("customer-42")) == 1


async def test_an_input_enters_its_journal_once(tmp_path: Path) -> None:
    async with open_store(tmp_path / "store.db") as store:
        await store.open_journal("customer-42")
        receipt = await store.accept("customer-42", "hello", key="msg-1")
        lease = await store.claim("customer-42")
        admitted = Admitted(at=1, input=receipt.input, key="msg-1")
        head = await store.append(lease, [admitted], head=lease.head)
        assert await store.pending("customer-42") == []
        with pytest.raises(InputTaken):
            await store.append(lease, [admitted], head=head)
        assert await check(store) == []
