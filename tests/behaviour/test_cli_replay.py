"""`holdfast replay --check`: recorded turns are driven again without doing anything, and a difference is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import holdfast as hf
from holdfast.runtime.replay_check import check_turns
from holdfast.runtime.runtime import context_of
from holdfast.testing import ScriptedModel, call, delayed, error, reply, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.behaviour.shell import Shell

    from holdfast.store import Store


@pytest.fixture
def ran(shell: Shell) -> Shell:
    """A shell with one session."""
    shell("run", "agents.py:looks", "hello", "--as", "s")
    return shell


def change(shell: Shell, line: str) -> None:
    with (shell.folder / "agents.py").open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


# ---- the command -----------------------------------------------------------------------------------------------------


def test_code_that_has_not_changed_is_ok(ran: Shell) -> None:
    done = ran("replay", "s", "--check")
    assert (done.returncode, done.stdout) == (0, "t1  ok (completed)\n")


def test_a_changed_prompt_is_drift_and_keeps_exit_code_0(ran: Shell) -> None:
    change(ran, "looks = hf.Agent('looks', model=looks.model, tools=[look], instructions='Be brief.')")
    done = ran("replay", "s", "--check")
    assert done.returncode == 0
    assert "t1  drift (completed)" in done.stdout


def test_replay_prints_what_has_changed_in_a_prompt(ran: Shell) -> None:
    change(ran, "looks = hf.Agent('looks', model=looks.model, tools=[look], instructions='Be brief.')")
    shown = ran("replay", "s", "--check").stdout
    assert "instructions:" in shown
    assert "+Be brief." in shown
    assert "sha256" not in shown


def test_replay_prints_what_has_changed_in_a_tool(ran: Shell) -> None:
    words = "async def look(word: str) -> str:\n    'Look up one word.'\n    return word.upper()"
    change(ran, f"@hf.tool(read_only=True)\n{words}")
    change(ran, "looks = hf.Agent('looks', model=looks.model, tools=[look])")
    shown = ran("replay", "s", "--check").stdout
    assert "tool look, description:" in shown
    assert "-Look a word up." in shown


def test_show_prints_what_has_changed_between_two_turns(ran: Shell) -> None:
    change(ran, "looks = hf.Agent('looks', model=looks.model, tools=[look], instructions='Be brief.')")
    assert "changed" not in ran("show", "s").stdout
    ran("run", "agents.py:looks", "hello", "--as", "s")
    shown = ran("show", "s").stdout
    assert "environment changed" in " ".join(shown.split())
    assert "+Be brief." in shown


def test_show_prints_a_request_without_the_code(ran: Shell) -> None:
    (ran.folder / "agents.py").unlink()
    shown = ran("show", "s", "--request", "2").stdout
    assert "Look a word up." in shown
    assert "hello" in shown
    told = ran.json("show", "s", "--request", "2")
    assert told["exact"]
    assert [tool["name"] for tool in told["request"]["tools"]] == ["look"]


def test_a_request_that_is_not_there_is_refused(ran: Shell) -> None:
    assert ran("show", "s", "--request", "9").returncode == 2


def test_a_changed_way_is_a_divergence_with_a_diff_and_exit_code_1(ran: Shell) -> None:
    change(ran, "looks = hf.Agent('looks', model=looks.model, tools=[look], limits=hf.Limits(steps=1))")
    done = ran("replay", "s", "--check")
    assert done.returncode == 1
    assert "t1  divergence (completed)" in done.stdout
    assert "    - effect: " in done.stdout
    assert "    + effect: " in done.stdout


def test_the_report_as_json_names_the_first_difference(ran: Shell) -> None:
    change(ran, "looks = hf.Agent('looks', model=looks.model, tools=[look], limits=hf.Limits(steps=1))")
    (found,) = json.loads(ran("replay", "s", "--check", "--json").stdout)
    assert found["verdict"] == "divergence"
    assert found["findings"][0]["divergence"]["first"]


def test_another_agent_may_be_named(ran: Shell) -> None:
    change(ran, "other = hf.Agent('looks', model=looks.model, tools=[look], instructions='Be brief.')")
    assert "drift" in ran("replay", "s", "--check", "--agent", "agents.py:other").stdout


def test_an_agent_of_another_name_is_refused(ran: Shell) -> None:
    assert ran("replay", "s", "--check", "--agent", "agents.py:echo").returncode == 2


def test_nothing_is_written(ran: Shell) -> None:
    before = ran("show", "s", "--raw").stdout
    ran("replay", "s", "--check")
    assert ran("show", "s", "--raw").stdout == before


def test_without_check_nothing_is_done(ran: Shell) -> None:
    assert ran("replay", "s").returncode == 2


async def test_a_session_that_was_not_begun_from_the_shell_needs_the_agent(ran: Shell) -> None:
    echo = hf.Agent("echo", model=ScriptedModel([text("hi")]))
    async with hf.open(ran.folder / ".holdfast" / "holdfast.db", agents=[echo]) as runtime:
        await runtime.run(echo, "hello", session="other")
    done = ran("replay", "other", "--check")
    assert done.returncode == 2
    assert "--agent" in done.stderr


# ---- the check -------------------------------------------------------------------------------------------------------


@hf.tool(read_only=True)
async def look(word: str) -> str:
    """Look a word up."""
    return word.upper()


@hf.tool
async def ask(ctx: hf.Context) -> str:
    """Ask a person."""
    return str(await ctx.wait("approval"))


class Counted:
    """A model that counts how often it is asked."""

    name = "counted:model"

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model
        self.asked = 0

    async def stream(self, request: hf.ModelRequest) -> AsyncIterator[object]:
        self.asked += 1
        async for event in self._model.stream(request):
            yield event


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with hf.open_store(None) as store:
        yield store


def agent(*script: object, output: type[Any] | None = None, limits: hf.Limits | None = None) -> hf.Agent:
    model = ScriptedModel(script)  # pyright: ignore[reportArgumentType]  # any item of a script
    return hf.Agent("a", model=model, tools=[look, ask], policy=[hf.allow("*")], output=output, limits=limits)


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (agent([call("look", word="a"), call("look", word="b")], text("done")), "completed"),
        (agent(call("nothing"), text("done")), "completed"),
        (agent(error("no credit", kind="billing")), "failed"),
        (agent(reply("no", finish="refusal")), "failed"),
        (agent(call("look", word="a"), limits=hf.Limits(steps=1)), "limit"),
        (agent(reply("one ", finish="output_limit"), text("two")), "completed"),
        (agent(text("nonsense"), text("7"), output=int), "completed"),
        (agent(text("nonsense"), output=int, limits=hf.Limits(repairs=0)), "failed"),
        (agent(call("look", word="x" * 100_000), text("done")), "completed"),
    ],
    ids=["tools", "no such tool", "model error", "refusal", "steps", "cut off", "repaired", "not repaired", "large"],
)
async def test_a_turn_that_ended_by_itself_ends_the_same_way_again(store: Store, made: hf.Agent, status: str) -> None:
    async with hf.Runtime(store, [made]) as runtime:
        assert (await runtime.run(made, "hello", session="s")).status == status
    (check,) = await check_turns(store, "s", made)
    assert (check.verdict, check.status) == ("ok", status)


async def test_every_turn_of_a_session_is_checked(store: Store) -> None:
    made = agent(text("one"), text("two"), text("three"))
    async with hf.Runtime(store, [made]) as runtime:
        for _ in range(3):
            await runtime.run(made, "hello", session="s")
    assert [(check.turn, check.verdict) for check in await check_turns(store, "s", made)] == [
        ("t1", "ok"),
        ("t2", "ok"),
        ("t3", "ok"),
    ]


async def test_a_turn_past_its_deadline_ends_where_its_records_end(store: Store) -> None:
    made = agent(call("look", word="a"), delayed(60, text("late")))
    async with hf.Runtime(store, [made]) as runtime:
        assert (await runtime.run(made, "hello", session="s", deadline=0.2)).status == "limit"
    (check,) = await check_turns(store, "s", made)
    assert (check.verdict, check.status) == ("ok", "limit")


async def test_a_cancelled_turn_ends_where_its_records_end(store: Store) -> None:
    made = agent([call("look", word="a"), call("ask")], text("done"))
    async with hf.Runtime(store, [made]) as runtime:
        turn = await runtime.session("s", agent=made).send("hello")
        async for event in turn.events():
            if isinstance(event, hf.TurnWaiting):
                break
        await turn.cancel()
        assert (await turn.outcome()).status == "cancelled"
    (check,) = await check_turns(store, "s", made)
    assert (check.verdict, check.status) == ("ok", "cancelled")


async def test_a_turn_that_is_under_way_is_checked_as_far_as_it_came(store: Store) -> None:
    made = agent(call("ask"), text("done"))
    async with hf.Runtime(store, [made]) as runtime:
        turn = await runtime.session("s", agent=made).send("hello")
        async for event in turn.events():
            if isinstance(event, hf.TurnWaiting):
                break
    (check,) = await check_turns(store, "s", made)
    assert (check.verdict, check.status) == ("ok", None)


async def test_a_queued_turn_that_was_cancelled_is_ok(store: Store) -> None:
    made = agent(call("ask"), text("done"))
    async with hf.Runtime(store, [made], drive=False) as runtime:
        turn = await runtime.session("s", agent=made).send("hello")
        await turn.cancel()
        await context_of(runtime).sessions.settle("s")
    (check,) = await check_turns(store, "s", made)
    assert (check.verdict, check.status) == ("ok", "cancelled")


async def test_a_fork_is_checked_after_what_was_said_before(store: Store) -> None:
    made = agent(text("one"), text("two"))
    async with hf.Runtime(store, [made]) as runtime:
        await runtime.run(made, "hello", session="s")
        branch = await runtime.session("s").fork()
        await runtime.run(made, "again", session=branch.id)
    (check,) = await check_turns(store, branch.id, made)
    assert check.verdict == "ok"


async def test_an_ending_that_would_be_another_one_is_a_divergence(store: Store) -> None:
    made = agent(text("words"))
    async with hf.Runtime(store, [made]) as runtime:
        await runtime.run(made, "hello", session="s")
    (check,) = await check_turns(store, "s", agent(text("words"), output=int, limits=hf.Limits(repairs=0)))
    assert check.verdict == "divergence"
    assert {found.path: (found.recorded, found.asked) for found in check.findings[0].divergence.first}["status"] == (
        '"completed"',
        '"failed"',
    )


async def test_an_effect_that_was_never_recorded_is_a_divergence(store: Store) -> None:
    made = agent(text("words"))
    async with hf.Runtime(store, [made]) as runtime:
        await runtime.run(made, "hello", session="s")
    (check,) = await check_turns(store, "s", agent(text("words"), output=int))
    assert check.verdict == "divergence"
    assert check.findings[0].key == "t1/3.model"


async def test_a_check_asks_no_model(store: Store) -> None:
    model = Counted(ScriptedModel([call("look", word="a"), text("done")]))
    made = hf.Agent("a", model=model, tools=[look], policy=[hf.allow("*")])  # pyright: ignore[reportArgumentType]  # its events are plain
    async with hf.Runtime(store, [made]) as runtime:
        await runtime.run(made, "hello", session="s")
    asked = model.asked
    await check_turns(store, "s", made)
    assert model.asked == asked == 2
