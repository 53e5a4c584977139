"""What went wrong can be seen: tracebacks are logged once and kept with the failure; the model reads the message."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.behaviour.talk import SOON, until

import holdfast as hf
from holdfast import logs
from holdfast.records import Admitted, Ended, Failed, Started
from holdfast.secrets.logs import MAX_TRACE
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.behaviour.shell import Shell

    from holdfast.records import Record
    from holdfast.runtime.runtime import Runtime

OPEN = (hf.allow("*"),)
SECRET = "hunter2-and-more"  # noqa: S105  what must not be seen


class NoStock(Exception):
    """An error of the shop, with data of its own."""

    def __init__(self, book: str) -> None:
        super().__init__(f"{book} is out of stock")
        self.book = book


def _search_the_shelves(book: str) -> str:
    raise NoStock(book)


@hf.tool
async def order(book: str) -> str:
    return _search_the_shelves(book)


@hf.tool(read_only=True)
def look_up(book: str) -> str:
    return _search_the_shelves(book)


def _agent(*tools: hf.Tool[..., Any], **options: Any) -> hf.Agent:
    script = [[call(tool.name, book="Emma") for tool in tools], text("Sorry.")]
    return hf.Agent("shop", model=ScriptedModel(script), tools=list(tools), policy=OPEN, **options)


async def _records(runtime: Runtime, journal: str) -> list[Record]:
    return [entry.record async for entry in runtime.store.read_all(journal)]


async def _failed(runtime: Runtime, journal: str = "s") -> list[Failed]:
    return [record for record in await _records(runtime, journal) if isinstance(record, Failed)]


def _tracebacks(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.exc_info or record.exc_text]


# ---- tools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", [order, look_up], ids=["async", "thread"])
async def test_the_traceback_of_a_tool_is_logged_once_with_its_place(
    tool: hf.Tool[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    agent = _agent(tool)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
    [logged] = _tracebacks(caplog)
    fields: Any = logged.__dict__["fields"]
    assert (logged.name, fields["session"], fields["turn"], fields["tool"]) == ("holdfast.tools", "s", "t1", tool.name)
    assert fields["call"] == f"t1/2.tools/1.{tool.name}"
    assert "session=s turn=t1" in logged.getMessage()
    assert "_search_the_shelves" in caplog.text


@pytest.mark.parametrize("tool", [order, look_up], ids=["async", "thread"])
async def test_the_traceback_is_kept_with_the_failure_from_the_first_line_of_the_users_code(
    tool: hf.Tool[..., Any],
) -> None:
    agent = _agent(tool)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        [failed] = await _failed(runtime)
    assert failed.trace.startswith("Traceback (most recent call last):\n")
    assert failed.trace.count('File "') == 2
    assert "in _search_the_shelves" in failed.trace
    assert failed.trace.endswith("NoStock: Emma is out of stock")


async def test_the_model_reads_only_the_message() -> None:
    agent = _agent(order)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        asked = [each.request for each in await runtime.requests("s")]
    said = str([each.messages for each in asked])
    assert "Emma is out of stock" in said
    assert "Traceback" not in said


async def test_a_kept_traceback_has_no_secrets_and_the_log_neither(caplog: pytest.LogCaptureFixture) -> None:
    @hf.tool
    async def leaks(ctx: hf.Context, book: str) -> str:
        raise RuntimeError(f"the password {ctx.secrets['PASSWORD']} is wrong")

    agent = _agent(leaks)
    async with hf.open(None, agents=[agent], secrets={"PASSWORD": lambda: SECRET}) as runtime:
        await runtime.run(agent, "go", session="s")
        [failed] = await _failed(runtime)
    assert "[secret:PASSWORD]" in failed.trace or "PASSWORD" in failed.trace
    assert SECRET not in failed.trace
    assert SECRET not in caplog.text


async def test_a_kept_traceback_is_bounded() -> None:
    @hf.tool
    async def deep(book: str) -> str:
        def down(n: int) -> str:
            return down(n - 1) if n else _search_the_shelves("x" * 50_000)

        return down(500)

    agent = _agent(deep)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        [failed] = await _failed(runtime)
    assert len(failed.trace) < MAX_TRACE + 100
    assert "in deep" in failed.trace


async def test_a_cause_is_part_of_the_traceback() -> None:
    @hf.tool
    async def wraps(book: str) -> str:
        try:
            return _search_the_shelves(book)
        except NoStock as error:
            raise RuntimeError("no order") from error

    agent = _agent(wraps)
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        [failed] = await _failed(runtime)
    assert "in _search_the_shelves" in failed.trace
    assert "direct cause" in failed.trace


async def test_a_call_that_is_denied_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    agent = hf.Agent(
        "shop", model=ScriptedModel([call("order", book="Emma"), text("No.")]), tools=[order], policy=[hf.deny("order")]
    )
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        [failed] = await _failed(runtime)
    assert failed.trace == ""
    assert _tracebacks(caplog) == []


@pytest.mark.parametrize("cause", [None, ValueError("the year")])
async def test_what_a_tool_asks_of_the_model_has_a_traceback_only_with_a_cause(
    caplog: pytest.LogCaptureFixture, cause: Exception | None
) -> None:
    @hf.tool(read_only=True)
    async def picky(book: str) -> str:
        raise hf.ToolRetry("Give the year with four digits.") from cause

    agent = _agent(picky)
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await runtime.run(agent, "go", session="s")).status == "completed"
        [failed] = await _failed(runtime)
    assert failed.error.message == "Give the year with four digits."
    assert ("ValueError: the year" in failed.trace, bool(failed.trace)) == (bool(cause), bool(cause))
    assert [bool(_tracebacks(caplog)), "four digits" in caplog.text] == [bool(cause), bool(cause)]


async def test_each_attempt_of_a_retried_call_is_kept_with_its_message(caplog: pytest.LogCaptureFixture) -> None:
    left = ["first", "second"]

    @hf.tool(read_only=True, retry=hf.ToolRetryPolicy(attempts=3, pause=0.001))
    async def flaky(book: str) -> str:
        if left:
            raise ConnectionError(f"the {left.pop(0)} line is dead")
        return "found"

    agent = _agent(flaky)
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await runtime.run(agent, "go", session="s")).status == "completed"
        failed = await _failed(runtime)
    assert [record.error.message for record in failed] == ["the first line is dead", "the second line is dead"]
    assert all("in flaky" in record.trace for record in failed)


# ---- hooks -----------------------------------------------------------------------------------------------------------


class Watches(hf.Hooks):
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    async def on_error(self, turn: hf.TurnContext, error: Exception) -> None:
        self.errors.append(error)


async def test_on_error_sees_the_error_itself() -> None:
    watches = Watches()
    agent = _agent(order, hooks=[watches])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go")
    [error] = watches.errors
    assert isinstance(error, NoStock)
    assert error.book == "Emma"
    assert error.__traceback__ is not None


async def test_on_error_does_not_see_an_error_that_holds_a_secret() -> None:
    @hf.tool
    async def leaks(ctx: hf.Context, book: str) -> str:
        raise RuntimeError(f"the password {ctx.secrets['PASSWORD']} is wrong")

    watches = Watches()
    agent = _agent(leaks, hooks=[watches])
    async with hf.open(None, agents=[agent], secrets={"PASSWORD": lambda: SECRET}) as runtime:
        await runtime.run(agent, "go")
    [error] = watches.errors
    assert isinstance(error, hf.errors.HiddenError)
    assert SECRET not in repr(error)


async def test_the_traceback_of_a_hook_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(hf.Hooks):
        async def after_tool(self, call: hf.HookCall, result: hf.ToolResult) -> None:
            _search_the_shelves("the hook's book")

    @hf.tool
    async def works(book: str) -> str:
        return book

    agent = _agent(works, hooks=[Breaks()])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
    [logged] = _tracebacks(caplog)
    assert logged.name == "holdfast.hooks"
    assert "hook=Breaks where=after_tool" in logged.getMessage()


# ---- durable functions -----------------------------------------------------------------------------------------------


@hf.process
async def ships(ctx: hf.ProcessContext) -> str:
    return await ctx.step("search", _search_the_shelves, "Emma")


@hf.process
async def stumbles(ctx: hf.ProcessContext) -> str:
    return _search_the_shelves(await ctx.step("name", lambda: "Emma"))


async def test_the_traceback_of_a_step_is_logged_once_and_kept_with_the_step(caplog: pytest.LogCaptureFixture) -> None:
    async with hf.open(None, processes=[ships]) as runtime:
        with pytest.raises(hf.ProcessFailed):
            await (await runtime.start(ships, id="p")).result(timeout=SOON)
        [failed] = await _failed(runtime, "process/p")
    [logged] = _tracebacks(caplog)
    assert "effect=process/search" in logged.getMessage()
    assert failed.trace.count('File "') == 1
    assert "in _search_the_shelves" in failed.trace


async def test_the_traceback_of_a_durable_function_is_kept_with_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async with hf.open(None, processes=[stumbles]) as runtime:
        with pytest.raises(hf.ProcessFailed):
            await (await runtime.start(stumbles, id="p")).result(timeout=SOON)
        ended = (await _records(runtime, "process/p"))[-1]
    assert isinstance(ended, Ended)
    assert "in stumbles" in ended.trace
    [logged] = _tracebacks(caplog)
    assert (logged.name, logged.__dict__["fields"]["process"]) == ("holdfast.processes", "p")


async def test_the_traceback_of_a_model_of_yours_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    def replies(request: hf.ModelRequest) -> Any:
        raise NoStock("the model's book")

    agent = hf.Agent("shop", model=ScriptedModel([replies]))
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await runtime.run(agent, "go", session="s")).status == "failed"
        [failed] = await _failed(runtime)
    assert "in replies" in failed.trace
    [logged] = _tracebacks(caplog)
    assert "journal=s effect=t1/1.model" in logged.getMessage()


# ---- the command line ------------------------------------------------------------------------------------------------

BROKEN = """
import holdfast as hf
from holdfast.testing import ScriptedModel, call, text


def dig(book):
    raise LookupError(f"no {book} here")


@hf.tool(read_only=True)
def find(book: str) -> str:
    return dig(book)


shop = hf.Agent("shop", model=ScriptedModel([call("find", book="Emma"), text("Sorry.")]), tools=[find])


@hf.process
async def digs(ctx: hf.ProcessContext) -> str:
    return await ctx.step("dig", dig, "Emma")
"""


@pytest.fixture
def broken(shell: Shell) -> Shell:
    (shell.folder / "broken.py").write_text(BROKEN)
    return shell


def test_show_errors_prints_the_failures_with_their_tracebacks(broken: Shell) -> None:
    broken("run", "broken.py:shop", "go", "--as", "s")
    shown = broken("show", "s", "--errors").stdout
    assert "find  t1/2.tools/1.find" in shown
    assert "LookupError: no Emma here" in shown
    assert "in dig" in shown


def test_show_errors_gives_json_for_scripts(broken: Shell) -> None:
    broken("run", "broken.py:shop", "go", "--as", "s")
    [failure] = broken.json("show", "s", "--errors")
    assert (failure["what"], failure["kind"], failure["message"]) == ("find", "LookupError", "no Emma here")
    assert "in dig" in failure["trace"]


def test_show_errors_knows_processes(broken: Shell) -> None:
    broken("processes", "start", "broken.py:digs", "--id", "p")
    step, whole = broken.json("show", "p", "--errors")
    assert (step["what"], step["kind"], whole["what"]) == ("dig", "LookupError", "process")
    assert "in dig" in step["trace"]


def test_show_errors_of_a_session_without_any_says_so(broken: Shell) -> None:
    broken("run", "agents.py:echo", "hello", "--as", "s")
    assert broken("show", "s", "--errors").stdout == "nothing failed\n"


def test_the_command_line_logs_what_it_is_asked_to(broken: Shell) -> None:
    done = broken("--log-level", "info", "--log-format", "json", "run", "broken.py:shop", "go", "--as", "s")
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    events = [line["event"] for line in lines]
    assert events[0] == "store opened"
    assert {"turn started", "tool failed", "turn ended", "shutdown ended"} <= set(events)
    assert "in dig" in next(line["trace"] for line in lines if line["event"] == "tool failed")


def test_an_unknown_log_level_is_refused(shell: Shell) -> None:
    done = shell("--log-level", "loud", "ps")
    assert done.returncode == 2
    assert "debug, info, warning" in done.stderr


# ---- the log of a service --------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Generator[io.StringIO]:
    """The log of Holdfast as text, as `configure` writes it; afterwards everything is as before."""
    logger = logging.getLogger("holdfast")
    before = logger.level, logger.propagate, logger.handlers[:]
    stream = io.StringIO()
    logs.configure(stream=stream)
    yield stream
    logger.level, logger.propagate, logger.handlers[:] = before
    logger.setLevel(before[0])


def _events(log: io.StringIO) -> list[str]:
    """The lines without their times and levels."""
    return [line.split(" ", 3)[3] for line in log.getvalue().splitlines()]


async def test_the_log_tells_the_life_of_a_runtime_and_a_turn(log: io.StringIO) -> None:
    agent = hf.Agent("shop", model=ScriptedModel([text("Hello.")]))
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
    events = _events(log)
    assert events[0] == "store opened store=:memory: drives=True agents=1 processes=0"
    assert events[1] == "recovered count=0 sessions=0 processes=0"
    assert events[2] == "turn started session=s turn=t1 agent=shop"
    assert events[3].startswith("turn ended session=s turn=t1 status=completed ms=")
    assert "tokens_in=" in events[3]
    assert [line.partition(" store=")[0].partition(" active=")[0] for line in events[4:]] == [
        "shutdown began",
        "shutdown ended",
    ]


async def test_the_log_tells_what_a_turn_waits_for(log: io.StringIO) -> None:
    @hf.tool
    async def asks(ctx: hf.Context) -> str:
        return str(await ctx.wait("editor"))

    agent = hf.Agent("shop", model=ScriptedModel([call("asks"), text("Done.")]), tools=[asks], policy=OPEN)
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")

        async def waits() -> bool:
            return await turn.status() == "waiting"

        await until(waits)
    assert any(line.startswith("turn waits session=s turn=t1 waits=2.tools/1.asks/editor") for line in _events(log))


async def test_the_log_tells_the_life_of_a_process(log: io.StringIO) -> None:
    async with hf.open(None, processes=[stumbles]) as runtime:
        process = await runtime.start(stumbles, id="p")
        with pytest.raises(hf.ProcessFailed):
            await process.result(timeout=SOON)
    told = [line.split(" ", 3)[3] for line in log.getvalue().splitlines() if " holdfast.processes " in line]
    assert told[0] == "process started process=p function=stumbles attempt=1"
    assert told[1].startswith('process failed process=p function=stumbles attempt=1 error="NoStock: Emma')
    assert told[2].startswith("process ended process=p function=stumbles status=failed ms=")


async def test_the_next_process_says_that_it_recovers_and_takes_over(log: io.StringIO, tmp_path: Path) -> None:
    agent = hf.Agent("shop", model=ScriptedModel([text("Hello.")]))
    async with hf.open(tmp_path / "s.db", agents=[agent], drive=False) as runtime:
        await runtime.session("s", agent=agent).send("go")
    async with hf.open_store(tmp_path / "s.db") as store:  # what a process that was killed here leaves
        lease = await store.claim("s", ttl_ms=60_000)
        [found] = await store.pending("s")
        admitted = Admitted(at=1, input=1, key=found.key, body=msgspec.Raw(found.body), run="t1")
        await store.append(lease, [Started(at=1, run="t1", by="pid 0"), admitted], head=lease.head)
        await store.release(lease)
    async with hf.open(tmp_path / "s.db", agents=[agent]) as runtime:
        await runtime.session("s").turn("t1").outcome(timeout=SOON)
    events = _events(log)
    assert "recovered count=1 sessions=1 processes=0" in events
    assert 'took over from a dead process session=s turn=t1 before="pid 0"' in events


async def test_fields_of_the_log_have_no_secrets(log: io.StringIO) -> None:
    @hf.tool
    async def leaks(ctx: hf.Context, book: str) -> str:
        raise RuntimeError(f"the password {ctx.secrets['PASSWORD']} is wrong")

    agent = _agent(leaks)
    async with hf.open(None, agents=[agent], secrets={"PASSWORD": lambda: SECRET}) as runtime:
        await runtime.run(agent, "go", session="s")
    assert "tool failed" in log.getvalue()
    assert SECRET not in log.getvalue()


def test_the_library_adds_no_handler_by_itself() -> None:
    assert [
        handler for handler in logging.getLogger("holdfast").handlers if type(handler) is logging.StreamHandler
    ] == []


def test_configuring_again_replaces_the_handler(log: io.StringIO) -> None:
    second = io.StringIO()
    logs.configure("warning", json=True, stream=second)
    logs.log_event(logging.getLogger("holdfast.runtime"), logging.WARNING, "store opened", store="x y", none=None)
    assert log.getvalue() == ""
    line = json.loads(second.getvalue())
    assert (line["level"], line["logger"], line["event"], line["store"]) == (
        *("warning", "holdfast.runtime", "store opened", "x y"),
    )
    assert "none" not in line


def test_a_field_can_not_forge_a_line_nor_move_the_cursor(log: io.StringIO) -> None:
    forged = "x\n2026-01-01T00:00:00.000Z info holdfast.runtime store opened \x1b[2J"
    logs.log_event(logging.getLogger("holdfast.runtime"), logging.INFO, "turn ended", error=forged)
    logging.getLogger("holdfast.runtime").info("plain %s", forged)
    assert len(log.getvalue().splitlines()) == 2
    assert "\x1b" not in log.getvalue()


def test_an_unknown_level_is_a_named_error() -> None:
    with pytest.raises(hf.errors.InvalidArgument, match="debug, info"):
        logs.configure("loud")
