"""`holdfast trace`: where the time of a session went, for people, scripts and collectors."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

import pytest
from tests.behaviour.collector import Collector, collecting

import holdfast as hf
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.behaviour.shell import Shell

STORE = ".holdfast/holdfast.db"


@hf.tool(read_only=True)
async def look(item: int) -> str:
    """Look."""
    return "PINEAPPLE"


@pytest.fixture
async def played(shell: Shell) -> Shell:
    """A store with two turns, the first with a sub-agent, and a process."""
    helper = hf.Agent("helper", model=ScriptedModel([call(look, item=1), text("helped")], keep=0), tools=[look])
    script = [call(look, item=1), call("helper", prompt="Help."), text("Done."), text("Again.")]
    chief = hf.Agent("chief", model=ScriptedModel(script), tools=[look, hf.agent_tool(helper)], policy=[hf.allow("*")])

    @hf.process
    async def nightly(ctx: hf.ProcessContext) -> str:
        return await ctx.step("fetch", lambda: "rows")

    (shell.folder / ".holdfast").mkdir(mode=0o700)
    async with hf.open(shell.folder / STORE, agents=[chief], processes=[nightly]) as runtime:
        for _ in range(2):
            await runtime.run(chief, "Go.", session="s1")
        await (await runtime.start(nightly, id="p1")).result()
    return shell


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def test_a_session_is_a_tree_of_its_turns(played: Shell) -> None:
    lines = played("trace", "s1").stdout.splitlines()
    shown = [line.split("ms  ", 1)[1].split("  s1")[0] if "ms  " in line else line[:6] for line in lines]
    assert shown == [
        "trace ",
        "invoke_agent chief",
        "  chat model  10 + 12 tokens",
        "  execute_tool look",
        "  chat model  20 + 14 tokens",
        "  execute_tool helper",
        "    invoke_agent helper",
        "      chat model  10 + 12 tokens",
        "      execute_tool look",
        "      chat model  20 + 2 tokens",
        "  chat model  30 + 2 tokens",
        "",
        "trace ",
        "invoke_agent chief",
        "  chat model  40 + 2 tokens",
    ]


def test_one_turn_is_shown_without_the_others(played: Shell) -> None:
    assert {span["run"] for span in played.json("trace", "s1/t2")} == {"t2"}


def test_a_process_is_shown_by_its_id(played: Shell) -> None:
    assert [span["name"] for span in played.json("trace", "p1")] == ["step fetch", "process nightly"]


def test_a_turn_that_is_not_there_is_an_error(played: Shell) -> None:
    done = played("trace", "s1/t9")
    assert done.returncode == 2
    assert "no turn 't9'" in done.stderr


def test_spans_are_sent_to_a_collector(played: Shell, collector: Collector) -> None:
    assert played("trace", "s1/t1", "--otlp", collector.url).stdout == f"sent 10 spans to {collector.url}\n"
    assert {span.id for span in collector.spans} == {span["id"] for span in played.json("trace", "s1/t1")}


def test_the_address_of_the_signal_itself_will_do(played: Shell, collector: Collector) -> None:
    played("trace", "p1", "--otlp", f"{collector.url}/v1/traces")
    assert len(collector.spans) == 2


def test_a_collector_that_refuses_is_an_error(played: Shell, collector: Collector) -> None:
    collector.status = 400
    done = played("trace", "s1", "--otlp", collector.url)
    assert done.returncode == 1
    assert "did not take the 12 spans" in done.stderr


def test_an_address_of_another_kind_is_refused(played: Shell) -> None:
    done = played("trace", "s1", "--otlp", "grpc://127.0.0.1:4317")
    assert done.returncode == 2
    assert "http://127.0.0.1:4318" in done.stderr


def test_spans_are_written_as_lines_of_otlp(played: Shell) -> None:
    played("trace", "s1", "--otlp", "spans.jsonl")
    path = played.folder / "spans.jsonl"
    [line] = path.read_text().splitlines()
    [resource] = json.loads(line)["resourceSpans"]
    spans: list[dict[str, Any]] = resource["scopeSpans"][0]["spans"]
    known = {(span["trace"], span["id"], span.get("parent")) for span in played.json("trace", "s1")}
    assert {(span["traceId"], span["spanId"], span.get("parentSpanId")) for span in spans} == known
    assert {span["kind"] for span in spans} == {1, 3}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_can_not_be_written_is_an_error(played: Shell) -> None:
    done = played("trace", "s1", "--otlp", "nowhere/spans.jsonl")
    assert done.returncode == 1
    assert "nowhere" in done.stderr


def test_content_is_shown_only_if_asked(played: Shell) -> None:
    assert "PINEAPPLE" not in played("trace", "s1", "--json").stdout
    assert "PINEAPPLE" in played("trace", "s1", "--json", "--content").stdout


def test_nothing_is_changed(played: Shell) -> None:
    before = played("show", "s1", "--raw").stdout
    played("trace", "s1")
    assert played("show", "s1", "--raw").stdout == before
