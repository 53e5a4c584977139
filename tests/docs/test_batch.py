"""The batch of `examples/batch.py` is killed, and reads each document once and pays for it once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE
from tests.programs import Program, run

import holdfast as hf
from holdfast.store import open_store
from holdfast.testing import check

if TYPE_CHECKING:
    from tests.programs import Done, Process, Programs

BATCH = Path(__file__).parents[2] / "examples" / "batch.py"
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """A folder with documents, and the program that reads them."""

    programs: Programs
    folder: Path

    def program(self, *words: object) -> Program:
        return Program(str(BATCH), (self.folder / "docs", "--concurrency", CONCURRENCY, *words), self.folder)

    def run(self, *words: object) -> Done:
        return run(self.programs, self.program(*words))

    def start(self, *words: object) -> Process:
        return self.programs.start(self.program(*words))

    def answers(self) -> Counter[str]:
        """How often the model was paid for each document."""
        bill = self.folder / "docs" / "bill.log"
        lines = bill.read_text(encoding="utf-8").splitlines() if bill.exists() else []
        return Counter(line.split()[0].removeprefix("2026-") for line in lines)

    def results(self) -> dict[str, dict[str, object]]:
        lines = (self.folder / "docs" / "results.jsonl").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines]
        assert len({each["document"] for each in found}) == len(found)
        return {each["document"].removesuffix(".txt"): each for each in found}

    async def recorded(self) -> set[str]:
        """The documents that are done, by the journal."""
        async with hf.open(self.folder / "docs" / "batch.db", drive=False) as runtime:
            done = await runtime.sessions(status="completed", limit=500)
        return {line.metadata["document"].removesuffix(".txt") for line in done}

    async def problems(self) -> list[str]:
        async with open_store(self.folder / "docs" / "batch.db") as store:
            return [str(each) for each in await check(store)]


@pytest.fixture
def batch(programs: Programs, tmp_path: Path) -> Batch:
    return Batch(programs, tmp_path)


async def _killed_again_and_again(batch: Batch, documents: int, kills: int, seed: int) -> None:
    """Kill the program at random moments and look at the journal each time; then let it end, and count."""
    choose = random.Random(seed)
    print(f"seed {seed}")
    process, dead = batch.start("--make", documents), 0
    paid_for: dict[str, int] = {}
    for answers in sorted(choose.sample(range(1, documents - CONCURRENCY), kills)):
        ends = time.monotonic() + PATIENCE
        while process.poll() is None and batch.answers().total() < answers:
            assert time.monotonic() < ends, f"{batch.answers().total()} of {answers} answers"
            await asyncio.sleep(0.002)
        await asyncio.sleep(choose.uniform(0, 0.05))
        process.kill()
        process.communicate(timeout=PATIENCE)
        dead += process.returncode == -signal.SIGKILL
        paid = batch.answers()
        paid_for |= {name: paid[name] for name in await batch.recorded() if name not in paid_for}
        process = batch.start("--retries", 8)
    out, err = process.communicate(timeout=PATIENCE)
    paid, results = batch.answers(), batch.results()
    unread = {name for name in results if int(name) % 100 == 0}
    assert dead == kills
    assert process.returncode == (1 if unread else 0), out + err
    assert {name for name, each in results.items() if each["status"] == "completed"} == set(results) - unread
    assert len(results) == documents
    assert {name: paid[name] for name in paid_for} == paid_for  # what was recorded was not asked again
    # An answer that came in the very moment of a kill was asked for again: one for each document at work.
    assert paid.total() <= documents - len(unread) + kills * CONCURRENCY
    assert await batch.problems() == []


async def test_a_killed_batch_goes_on_and_pays_for_no_recorded_document_again(batch: Batch) -> None:
    await _killed_again_and_again(batch, documents=40, kills=2, seed=7)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
async def test_a_batch_of_500_survives_many_kills(batch: Batch, seed: int) -> None:
    await _killed_again_and_again(batch, documents=500, kills=12, seed=seed)


def test_a_second_start_asks_the_model_nothing(batch: Batch) -> None:
    batch.run("--make", 30, "--retries", 8)
    before, first = batch.answers(), batch.results()
    done = batch.run()
    assert "30 of 30 documents read for $" in done.stdout
    assert (batch.answers(), batch.results()) == (before, first)


def test_a_document_that_was_corrected_is_read_and_the_others_are_not_read_again(batch: Batch) -> None:
    document = batch.folder / "docs" / "bad.txt"
    document.parent.mkdir()
    document.write_text("Invoice 2026-0099\nfor Ada\ntotal EUR ??.??\n", encoding="utf-8")
    failed = batch.run("--make", 5, "--retries", 8)
    assert failed.returncode == 1
    assert batch.results()["bad"]["status"] == "failed"
    document.write_text(document.read_text(encoding="utf-8").replace("??.??", "12.50"), encoding="utf-8")
    done = batch.run("--retries", 8)
    assert done.returncode == 0, done.stdout + done.stderr
    assert batch.results()["bad"]["cents"] == 1250
    assert max(batch.answers().values()) == 1


def test_a_batch_stops_at_its_budget_and_a_larger_one_goes_on_from_there(batch: Batch) -> None:
    batch.run("--make", 50, "--budget", 0.001, "--retries", 8)
    stopped = [each for each in batch.results().values() if each["status"] != "completed"]
    assert {each["code"] for each in stopped} == {"total_cost_usd"}
    assert 0 < len(stopped) < 50
    done = batch.run("--budget", 1, "--retries", 8)
    assert done.returncode == 0, done.stdout
    assert batch.answers() == Counter(batch.results().keys())


def test_the_next_start_tries_again_what_failed_and_only_that(batch: Batch) -> None:
    batch.run("--make", 60, "--retries", 0)
    read = {name for name, each in batch.results().items() if each["status"] == "completed"}
    done = batch.run("--retries", 8)
    assert done.returncode == 0, done.stdout
    assert {name: batch.answers()[name] for name in read} == dict.fromkeys(read, 1)
    assert batch.run("--retries", 0).returncode == 0  # a later try that succeeded counts


@pytest.mark.parametrize("words", [("--make", 1, "--model", "nobody:home"), ()], ids=["model", "no documents"])
def test_a_mistake_is_named_in_one_line(batch: Batch, words: tuple[object, ...]) -> None:
    done = batch.run(*words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert not (batch.folder / "docs" / "batch.db").exists()


def test_the_progress_bar_is_for_terminals_alone(batch: Batch) -> None:
    assert batch.run("--make", 3, "--retries", 8).stderr == ""
