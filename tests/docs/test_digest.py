"""The digest of `examples/digest.py`: nights pass at once, editors answer or do not, kills publish nothing twice."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from tests.applications import EXAMPLES, application
from tests.patience import PATIENCE
from tests.programs import Program, run

import holdfast as hf
from holdfast.store import open_store
from holdfast.testing import check

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.programs import Done, Process, Programs

    from holdfast.testing import CrashRunner, CrashStage, RuntimeFactory, VirtualClock

app = application("digest")
ROME = ZoneInfo("Europe/Rome")
UNSEEN = "(No editor has seen this digest.)"


# ---- days that pass at once ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    app.make_desk(tmp_path / "desk")
    return tmp_path / "desk"


@pytest.fixture
def opened(
    holdfast_runtime: RuntimeFactory, holdfast_clock: VirtualClock, folder: Path
) -> Callable[..., AbstractAsyncContextManager[hf.Runtime]]:
    @asynccontextmanager
    async def opened(at: datetime | None = None) -> AsyncGenerator[hf.Runtime]:
        """A runtime with the trigger; at noon, so that no night begins while a test looks at a digest that it fired."""
        noon = holdfast_clock.now.replace(hour=12) + timedelta(days=1)
        await holdfast_clock.advance(to=at or noon)
        agents, desk = [app.writer(app.scripted())], partial(app.open_desk, folder)
        async with holdfast_runtime(agents=agents, processes=[app.digest], deps=desk) as runtime:
            await declare(runtime, app.DIGEST_TIME)
            yield runtime

    return opened


async def declare(runtime: hf.Runtime, schedule: str) -> None:
    await runtime.every("nightly", hf.cron(schedule, tz="Europe/Rome"), app.digest, day="{date}")


def key_of(folder: Path, day: str) -> str:
    return (folder / "drafts" / f"{day}.md").read_text().rpartition("[key]: ")[2].strip()


def published(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted((folder / "published").glob("*.md"))}


def before_summer_time(now: datetime) -> datetime:
    """Noon of the Friday before the clocks of Rome go forward."""
    for year in (now.year, now.year + 1):
        sunday = next(
            day for day in (datetime(year, 3, 31 - n, 12, tzinfo=UTC) for n in range(7)) if day.weekday() == 6
        )
        if sunday - timedelta(days=2) > now:
            return sunday - timedelta(days=2)
    raise AssertionError


async def test_every_night_has_one_digest_at_six_in_rome_also_when_the_clocks_change(
    holdfast_clock: VirtualClock, opened: Callable[..., AbstractAsyncContextManager[hf.Runtime]], folder: Path
) -> None:
    friday = before_summer_time(holdfast_clock.now)
    async with opened(friday) as runtime:
        await holdfast_clock.advance(days=4)
        started = [line.created for line in await runtime.processes.list(name="digest")]
    assert list(published(folder)) == [str((friday + timedelta(days=n)).date()) for n in range(1, 5)]
    assert {datetime.fromtimestamp(at / 1000, ROME).hour for at in started} == {6}
    assert len(started) == 4


async def test_a_digest_that_no_editor_answers_says_so_and_goes_out_after_three_hours(
    holdfast_clock: VirtualClock, opened: Callable[..., AbstractAsyncContextManager[hf.Runtime]], folder: Path
) -> None:
    async with opened() as runtime:
        await runtime.triggers.fire("nightly", key="now")
        await holdfast_clock.advance(hours=2, minutes=59)
        assert published(folder) == {}
        await holdfast_clock.advance(minutes=2)
        (words,) = published(folder).values()
    assert words.endswith(f"{UNSEEN}\n")


async def test_an_editor_who_wants_another_text_gets_a_new_draft_with_a_key_of_its_own(
    holdfast_clock: VirtualClock, opened: Callable[..., AbstractAsyncContextManager[hf.Runtime]], folder: Path
) -> None:
    async with opened() as runtime:
        await runtime.triggers.fire("nightly", key="now")
        await holdfast_clock.advance(minutes=1)
        (draft,) = (folder / "drafts").glob("*.md")
        first = key_of(folder, draft.stem)
        await runtime.resolve(first, {"verdict": "revise", "note": "Shorter."})
        await holdfast_clock.advance(minutes=1)
        assert not (await runtime.resolve(first, {"verdict": "publish"})).won  # it was about the first draft
        await runtime.resolve(key_of(folder, draft.stem), {"verdict": "publish"})
        await holdfast_clock.advance(minutes=1)
    (words,) = published(folder).values()
    assert words.endswith("Revised: Shorter.\n")


async def test_a_dropped_digest_is_not_published(
    holdfast_clock: VirtualClock, opened: Callable[..., AbstractAsyncContextManager[hf.Runtime]], folder: Path
) -> None:
    async with opened() as runtime:
        await runtime.triggers.fire("nightly", key="now")
        await holdfast_clock.advance(minutes=1)
        (draft,) = (folder / "drafts").glob("*.md")
        await runtime.resolve(key_of(folder, draft.stem), {"verdict": "drop"})
        await holdfast_clock.advance(hours=4)
        (line,) = await runtime.processes.list(name="digest", status="completed")
        assert await (await runtime.processes.get(line.id)).result() == "dropped"


async def test_readers_see_the_first_of_two_digests_of_a_day(
    holdfast_clock: VirtualClock, opened: Callable[..., AbstractAsyncContextManager[hf.Runtime]], folder: Path
) -> None:
    async with opened() as runtime:
        for key, feeds in {"one": "python.json", "two": "databases.json"}.items():
            (folder / "feeds.txt").write_text(feeds)
            await runtime.triggers.fire("nightly", key=key)
            await holdfast_clock.advance(minutes=1)
        await holdfast_clock.advance(hours=4)
        ids = [line.id for line in await runtime.processes.list(name="digest")]
        ends = [await (await runtime.processes.get(id)).result() for id in reversed(ids)]
    assert [end.partition(":")[0] for end in ends] == ["published", "there was one already"]
    (words,) = published(folder).values()
    assert "Free threading" in words


# ---- kills -----------------------------------------------------------------------------------------------------------


async def night(stage: CrashStage) -> None:
    """A digest that an editor has rewritten once; it runs again after each kill."""
    folder = stage.folder / "desk"
    app.make_desk(folder)
    agents, desk = [app.writer(app.scripted())], partial(app.open_desk, folder)
    async with hf.open(stage.path, agents=agents, processes=[app.digest], deps=desk, lease_ms=1_000) as runtime:
        await declare(runtime, "0 6 29 2 *")
        await runtime.triggers.fire("nightly", key="now")
        while not (lines := await runtime.processes.list(name="digest")):
            await asyncio.sleep(0.005)
        process = await runtime.processes.get(lines[0].id)
        result = asyncio.create_task(process.result(timeout=PATIENCE))
        while not result.done():
            await asyncio.wait({result}, timeout=0.02)
            for draft in (folder / "drafts").glob("2*.md"):
                verdict = "publish" if "Revised" in draft.read_text() else "revise"
                await runtime.resolve(key_of(folder, draft.stem), {"verdict": verdict, "note": "Shorter."})
        assert len(lines) == 1
        assert result.result().startswith("published: ")
        (words,) = published(folder).values()
        assert words.endswith("Revised: Shorter.\n")
        assert UNSEEN not in words


def test_a_digest_survives_kills_at_crash_points(holdfast_crash: CrashRunner) -> None:
    assert holdfast_crash(night, most=4).killed


@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_a_digest_survives_a_kill_at_a_hundred_crash_points(holdfast_crash: CrashRunner) -> None:
    report = holdfast_crash(night, most=100)
    assert report.killed > len(report.points) / 2


@dataclass(frozen=True, slots=True)
class Served:
    """The program in processes of its own."""

    programs: Programs
    folder: Path

    def run(self, *words: object) -> Done:
        return run(self.programs, self._program(*words))

    def start(self) -> Process:
        hour = datetime.now(UTC).hour  # in this zone it is noon, so no night begins meanwhile
        return self.programs.start(self._program("--zone", f"Etc/GMT{hour - 12:+d}"))

    def _program(self, *words: object) -> Program:
        return Program(str(EXAMPLES / "digest.py"), (self.folder, *words), self.folder.parent)

    def draft(self) -> str | None:
        """The day of the draft."""
        return next((path.stem for path in (self.folder / "drafts").glob("2*.md")), None)


@pytest.fixture
def served(programs: Programs, folder: Path) -> Served:
    return Served(programs, folder)


def stop(process: Process, how: signal.Signals) -> int:
    process.send_signal(how)
    process.communicate(timeout=PATIENCE)
    return process.returncode or 0


def wait_until(condition: Callable[[], object]) -> Any:  # the first truth
    ends = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < ends
        time.sleep(0.01)
    return found


def start_and_fire(served: Served) -> Process:
    process = served.start()
    assert process.stdout is not None
    assert process.stdout.readline().startswith("every night at six")  # the trigger is declared
    assert served.run("fire", "--key", "now").stdout == "fire/now\n"
    return process


def test_an_answer_that_comes_while_no_process_runs_counts_at_the_next_start(served: Served) -> None:
    process = start_and_fire(served)
    day = wait_until(served.draft)
    assert stop(process, signal.SIGKILL) == -signal.SIGKILL
    assert served.run("answer", day, "publish").stdout == "publish\n"
    assert served.run("answer", day, "drop").stdout == "too late: it is resolved\n"
    process = served.start()
    wait_until(lambda: published(served.folder))
    stop(process, signal.SIGKILL)
    assert "* JIT https://example.org/python/1" in published(served.folder)[day]


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
async def test_a_digest_survives_random_kills_of_the_program(served: Served, seed: int) -> None:
    choose = random.Random(seed)
    print(f"seed {seed}")
    process, answered = start_and_fire(served), False
    for _ in range(12):
        time.sleep(choose.uniform(0, 0.6))  # noqa: ASYNC251  nothing else runs here
        assert stop(process, signal.SIGKILL) == -signal.SIGKILL
        if not answered and (day := served.draft()) is not None and choose.random() < 0.3:
            answered = served.run("answer", day, "publish").stdout == "publish\n"
        process = served.start()
    day = wait_until(served.draft)
    assert answered or served.run("answer", day, "publish").stdout == "publish\n"
    wait_until(lambda: published(served.folder))
    stop(process, signal.SIGKILL)
    assert list(published(served.folder)) == [day]
    async with open_store(served.folder / "digest.db") as store:
        assert await check(store) == []


# ---- feeds and mistakes ----------------------------------------------------------------------------------------------


@contextmanager
def web_server(folder: Path) -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_feeds_come_over_http_and_one_that_is_down_is_named(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "web").mkdir()
    items = [{"title": "Over HTTP", "url": "https://example.org/7"}]
    (tmp_path / "web" / "feed.json").write_text(json.dumps({"items": items}))
    agents, desk = [app.writer(app.scripted())], partial(app.open_desk, folder)
    with web_server(tmp_path / "web") as url:
        (folder / "feeds.txt").write_text(f"{url}/feed.json\n{url}/gone.json\nmissing.json\n")
        async with hf.open(None, agents=agents, processes=[app.digest], deps=desk) as runtime:
            process = await runtime.start(app.digest, "2026-11-19")
            while not (folder / "drafts" / "2026-11-19.md").exists():
                await asyncio.sleep(0.01)
            await process.cancel()
    draft = (folder / "drafts" / "2026-11-19.md").read_text()
    assert "* Over HTTP https://example.org/7\n" in draft
    assert f"* {url}/gone.json could not be read: " in draft
    assert "* missing.json could not be read: " in draft


@pytest.mark.parametrize(
    ("words", "error"),
    [(("fire",), "TriggerUnknown"), (("answer", "2026-11-19", "publish"), "FileNotFoundError")],
    ids=["fire", "answer"],
)
def test_a_mistake_is_named_in_one_line(served: Served, words: tuple[str, ...], error: str) -> None:
    done = served.run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{error}: ")
    assert len(done.stderr.splitlines()) == 1
