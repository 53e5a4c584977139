"""What hooks decide about a question to a model is on record before anything else happens, and is decided once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.behaviour.hooking import Models
from tests.behaviour.talk import SOON
from tests.behaviour.window import SUMMARY, Writer, agent_of, compactions

import holdfast as hf
from holdfast.messages import Attempt, Usage, decode_reply
from holdfast.records import Cancelled, Done, Failed
from holdfast.runtime.replay_check import check_turns
from holdfast.testing import ScriptedModel, call, check, error, reply, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.messages import ModelReply
    from holdfast.policy.hooks import Deny, ModelDecision
    from holdfast.runtime.runtime import Runtime


class Hanging:
    """Answers `said`, but not to the first request: who made that waits until the process is gone."""

    def __init__(self, said: Any = None) -> None:
        self.reached = asyncio.Event()
        self._said = text("hello") if said is None else said

    async def __call__(self, request: hf.ModelRequest) -> Any:
        if not self.reached.is_set():
            self.reached.set()
            await asyncio.Event().wait()
        return self._said


async def left(path: Path, agent: hf.Agent, reached: asyncio.Event) -> None:
    """A process that is gone in the middle of the first turn."""
    async with hf.open(path, agents=[agent], mirror=False) as runtime:
        await runtime.session("s", agent=agent).send("go", key="1")
        await asyncio.wait_for(reached.wait(), SOON)
        await runtime.close(grace=0)


async def went_on(path: Path, agent: hf.Agent) -> hf.TurnOutcome:
    """How the turn ends in the next process."""
    async with hf.open(path, agents=[agent], mirror=False) as runtime:
        return await (await runtime.session("s", agent=agent).send("go", key="1")).outcome(timeout=SOON)


async def recorded(runtime: Runtime) -> list[str]:
    """The keys of what is recorded, in order, without the turn."""
    entries = await runtime.store.read("s")
    return [record.key for entry in entries if isinstance(record := entry.record, Done | Failed | Cancelled)]


# ---- steps -----------------------------------------------------------------------------------------------------------


async def test_what_a_hook_let_pass_is_not_asked_again_when_the_process_dies_in_the_call(tmp_path: Path) -> None:
    seen: list[str] = []
    model = Hanging()
    agent = hf.Agent("a", model=ScriptedModel([model, model]), hooks=[Models(lambda asked: seen.append(asked.kind))])
    await left(tmp_path / "s.db", agent, model.reached)
    assert ((await went_on(tmp_path / "s.db", agent)).text, seen) == ("hello", ["turn"])


async def test_a_hook_of_today_has_no_say_about_a_question_that_was_let_pass(tmp_path: Path) -> None:
    model = Hanging()
    before = hf.Agent("a", model=ScriptedModel([model, model]), hooks=[Models()])
    await left(tmp_path / "s.db", before, model.reached)
    after = hf.Agent("a", model=ScriptedModel([text("hello")]), hooks=[Models(lambda asked: asked.deny("no"))])
    assert (await went_on(tmp_path / "s.db", after)).text == "hello"


async def test_a_question_that_has_changed_is_decided_anew(tmp_path: Path) -> None:
    model = Hanging()
    before = hf.Agent("a", model=ScriptedModel([model, model]), hooks=[Models()])
    await left(tmp_path / "s.db", before, model.reached)
    hooks = [Models(lambda asked: asked.deny("not so"))]
    after = hf.Agent("a", model=ScriptedModel([text("hello")]), instructions="Be bold.", hooks=hooks)
    assert (await went_on(tmp_path / "s.db", after)).message == "not so"


@pytest.mark.parametrize("decided", ["deny", "answer"])
async def test_a_decision_is_recorded_before_what_comes_of_it(decided: str) -> None:
    agent = hf.Agent("a", model=ScriptedModel([]), hooks=[Models(lambda asked: getattr(asked, decided)("so be it"))])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        assert await recorded(runtime) == ["t1/1.model/%environment-1", "t1/1.model/%hook-1", "t1/1.model"]
        assert [found.verdict for found in await check_turns(runtime.store, "s", agent)] == ["ok"]
        assert await check(runtime.store) == []


async def test_without_hooks_before_the_model_nothing_is_recorded_of_them() -> None:
    agent = hf.Agent("a", model=ScriptedModel([text("hello")]), hooks=[hf.Hooks()])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        assert await recorded(runtime) == ["t1/1.model/%environment-1", "t1/1.model"]


async def test_after_a_context_was_refused_the_shorter_question_is_decided_about_too() -> None:
    def refuses(request: hf.ModelRequest) -> Any:
        return error("too long", kind="context_overflow") if len(request.messages) > 20 else None

    seen: list[int] = []
    hooks = Models(lambda asked: seen.append(len(asked.request.messages)) if asked.kind == "turn" else None)
    agent = agent_of(Writer(12, say=refuses), compaction=hf.Compaction(window=100_000), hooks=[hooks])
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await runtime.run(agent, "go", session="s")).status == "completed"
        assert sum(count > 20 for count in seen) == 1
        assert [found.verdict for found in await check_turns(runtime.store, "s", agent)] == ["ok"]


# ---- making room -----------------------------------------------------------------------------------------------------


class Once(hf.Hooks):
    """Decides about making room, and notes how often it was asked."""

    def __init__(self, reached: asyncio.Event | None = None) -> None:
        self.summaries = self.compactions = 0
        self._reached = reached

    async def before_model(self, asked: hf.HookRequest) -> ModelDecision | None:
        self.summaries += asked.kind == "summary"

    async def before_compaction(self, turn: hf.TurnContext, messages: int, tokens: int) -> Deny | None:
        self.compactions += 1


async def test_what_a_hook_let_pass_of_making_room_is_not_asked_again(tmp_path: Path) -> None:
    model = Hanging(SUMMARY)
    hooks = Once()
    agent = agent_of(Writer(12, summary=model), hooks=[hooks])
    await left(tmp_path / "s.db", agent, model.reached)
    assert (hooks.summaries, hooks.compactions) == (1, 1)
    assert (await went_on(tmp_path / "s.db", agent)).status == "completed"
    assert (hooks.summaries, hooks.compactions) == (1, 1)


async def test_the_tries_of_a_summary_are_in_its_record() -> None:
    def busy(_: hf.ModelRequest) -> Any:
        return error("too busy", kind="overloaded")

    models = [Writer(summary=busy, name="one:busy"), Writer(summary=SUMMARY, name="two:free")]
    agent = agent_of(Writer(12), compaction=hf.Compaction(window=4_000, model=hf.Fallback(models)))
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        (made,) = await compactions(runtime.store)
        assert [(line.model, line.outcome) for line in made.attempts] == [
            ("one:busy", "overloaded"),
            ("two:free", "completed"),
        ]


async def test_the_tries_of_a_summary_that_nobody_could_give_are_in_its_record() -> None:
    busy = Writer(summary=error("too busy", kind="overloaded"), name="one:busy")
    agent = agent_of(Writer(12), compaction=hf.Compaction(window=4_000, model=hf.Fallback([busy])))
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        made = await compactions(runtime.store)
        assert [line.outcome for line in made[0].attempts] == ["overloaded"]


async def test_the_tries_of_a_summary_that_was_cancelled_are_in_the_journal() -> None:
    hanging = Hanging()
    busy = Writer(summary=error("too busy", kind="overloaded"), name="one:busy")
    slow = Writer(summary=hanging, name="two:slow")
    agent = agent_of(Writer(12), compaction=hf.Compaction(window=4_000, model=hf.Fallback([busy, slow])))
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        await asyncio.wait_for(hanging.reached.wait(), SOON)
        await turn.cancel("enough")
        assert (await turn.outcome(timeout=SOON)).status == "cancelled"
        entries = await runtime.store.read("s", limit=200)
        (line,) = [entry.record for entry in entries if isinstance(entry.record, Cancelled)]
        tries = msgspec.json.decode(bytes(line.detail), type=tuple[Attempt, ...])
        assert [(tried.model, tried.outcome) for tried in tries] == [("one:busy", "overloaded")]
        assert [found.verdict for found in await check_turns(runtime.store, "s", agent)] == ["ok"]
        assert await check(runtime.store) == []


# ---- replies that nobody has let pass --------------------------------------------------------------------------------


def denying(used: Usage = Usage(input=40, output=2), **options: Any) -> hf.Agent:  # noqa: B008  frozen
    hooks = Models(after=lambda asked, _: asked.deny("it tells too much"))
    model = ScriptedModel(lambda _: reply(text("a secret plan"), usage=used))
    return hf.Agent("a", model=model, hooks=[hooks], **options)


async def test_a_reply_that_a_hook_denies_counts_as_paid() -> None:
    agent = denying()
    prices = {"scripted:model": hf.Price(input=1.0, output=1.0)}
    async with hf.open(None, agents=[agent], prices=prices) as runtime:
        outcome = await runtime.run(agent, "go", session="s")
        assert (outcome.code, outcome.usage.total, outcome.cost) == ("denied", 42, pytest.approx(0.000042))
        assert (await runtime.session("s").total_usage()).usage.total == 42
        assert (await runtime.store.spent("a")).cost_micros == 42
        assert [found.verdict for found in await check_turns(runtime.store, "s", agent)] == ["ok"]
        assert await check(runtime.store) == []


async def test_a_hook_may_put_other_words_in_the_place_of_a_reply() -> None:
    hooks = Models(after=lambda asked, reply: asked.answer(f"({len(reply.text)} letters)"))
    agent = hf.Agent("a", model=ScriptedModel([reply(text("a plan"), usage=Usage(input=40))]), hooks=[hooks])
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await runtime.run(agent, "go", session="s")
        assert (outcome.status, outcome.text, outcome.usage.input) == ("completed", "(6 letters)", 40)
        assert "a plan" not in str(await runtime.session("s").history())
        assert [found.verdict for found in await check_turns(runtime.store, "s", agent)] == ["ok"]


async def test_a_hook_that_puts_words_in_the_place_of_a_call_keeps_it_from_being_made() -> None:
    agent = agent_of(ScriptedModel([call("look", at=1)]), hooks=[Models(after=lambda asked, _: asked.answer("no"))])
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await runtime.run(agent, "go", session="s")).text == "no"
        assert len(await runtime.session("s").history()) == 2


async def test_the_next_hook_sees_the_words_that_the_one_before_has_put_there() -> None:
    hooks = [Models(after=lambda asked, reply: asked.answer(f"({reply.text})")) for _ in range(2)]
    outcome = await hf.run(hf.Agent("a", model=ScriptedModel([text("x")]), hooks=hooks), "go")
    assert outcome.text == "((x))"


@pytest.mark.parametrize("decide", ["answer", "deny"])
async def test_observers_hear_that_what_a_hook_took_back_does_not_count(decide: str) -> None:
    hooks = Models(after=lambda asked, _: getattr(asked, decide)("something else"))
    agent = hf.Agent("a", model=ScriptedModel([text("a plan")]), hooks=[hooks])
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        seen = [event async for event in turn.events()]
        kinds = [type(event) for event in seen if isinstance(event, hf.TextDelta | hf.events.AttemptReset)]
        assert kinds == [hf.TextDelta, hf.events.AttemptReset]


async def test_a_hook_may_put_another_summary_in_the_place_of_one() -> None:
    other = SUMMARY.replace("the key is 7", "the key is 8")
    hooks = Models(after=lambda asked, _: asked.answer(other) if asked.kind == "summary" else None)
    agent = agent_of(Writer(12), hooks=[hooks])
    async with hf.open(None, agents=[agent]) as runtime:
        await runtime.run(agent, "go", session="s")
        assert [made.summary for made in await compactions(runtime.store)] == [other]


@pytest.mark.parametrize("scope", ["session", "daily", "total"])
async def test_replies_that_hooks_deny_use_up_budgets(scope: str) -> None:
    limits: dict[str, Any] = {scope: hf.Budget(tokens=50)}
    agent = denying(limits=hf.Limits(**limits))
    async with hf.open(None, agents=[agent]) as runtime:
        codes = [(await runtime.run(agent, "go", session="s")).code for _ in range(3)]
        assert codes == ["denied", "denied", f"{scope}_tokens"]


async def test_nothing_of_a_reply_that_a_hook_denies_is_recorded_but_what_it_took(tmp_path: Path) -> None:
    agent = denying()
    async with hf.open(tmp_path / "s.db", agents=[agent], mirror=False) as runtime:
        await runtime.run(agent, "go", session="s")
        assert await check(runtime.store, canaries=[b"a secret plan"]) == []


class Slow(hf.Hooks):
    """Takes its time about a reply."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def after_model(self, asked: hf.HookRequest, reply: ModelReply) -> Deny | None:
        self.reached.set()
        await asyncio.Event().wait()


async def cancelled_in_a_hook(runtime: Runtime, agent: hf.Agent, hooks: Slow) -> hf.TurnOutcome:
    turn = await runtime.session("s", agent=agent).send("go")
    await asyncio.wait_for(hooks.reached.wait(), SOON)
    await turn.cancel("enough")
    return await turn.outcome(timeout=SOON)


def paying(hooks: Slow, said: Callable[..., Any] = lambda: text("a secret plan")) -> hf.Agent:
    used = Usage(input=40, output=2)
    return hf.Agent("a", model=ScriptedModel([reply(said(), usage=used)]), hooks=[hooks])


async def test_a_reply_that_a_hook_looks_at_when_the_turn_is_cancelled_was_paid_for() -> None:
    hooks = Slow()
    agent = paying(hooks)
    prices = {"scripted:model": hf.Price(input=1.0, output=1.0)}
    async with hf.open(None, agents=[agent], prices=prices) as runtime:
        outcome = await cancelled_in_a_hook(runtime, agent, hooks)
        assert (outcome.status, outcome.usage.total, outcome.cost) == ("cancelled", 42, pytest.approx(0.000042))
        assert (await runtime.session("s").total_usage()).usage.total == 42
        assert (await runtime.store.spent("a")).input_tokens == 40
        assert await check(runtime.store) == []


async def test_a_reply_that_no_hook_has_let_pass_is_not_told_when_the_turn_is_cancelled() -> None:
    hooks = Slow()
    agent = paying(hooks)
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await cancelled_in_a_hook(runtime, agent, hooks)
        assert outcome.text == ""
        assert [type(message) for message in await runtime.session("s").history()] == [hf.UserMessage]
        (_, line) = [entry.record for entry in await runtime.store.read("s") if isinstance(entry.record, Done)]
        assert decode_reply(bytes(line.value)).parts == ()


async def test_calls_that_no_hook_has_let_pass_are_not_made_when_the_turn_is_cancelled() -> None:
    hooks = Slow()
    agent = paying(hooks, lambda: call("look", at=1))
    async with hf.open(None, agents=[agent]) as runtime:
        await cancelled_in_a_hook(runtime, agent, hooks)
        assert [found.verdict for found in await check_turns(runtime.store, "s", agent)] == ["ok"]
        assert await check(runtime.store) == []


async def test_what_a_reply_took_that_is_too_large_to_be_kept_counts() -> None:
    model = ScriptedModel([reply(text("y" * 200_000), usage=Usage(input=3, output=1))])
    agent = hf.Agent("a", model=model)
    async with hf.open(None, agents=[agent], limits=hf.StoreLimits(blob_bytes=100_000)) as runtime:
        outcome = await (await runtime.session("s", agent=agent).send("go")).outcome(timeout=SOON)
        assert (outcome.status, outcome.usage.total) == ("failed", 4)
        assert (await runtime.store.spent("a")).input_tokens == 3
        assert await check(runtime.store) == []
