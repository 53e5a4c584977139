"""What a hostile look at contexts, budgets and secrets has found: odd models and counters, answers in parts, files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.behaviour.talk import SOON
from tests.behaviour.window import SUMMARY, WINDOW, Writer, agent_of, compactions, marks

import holdfast as hf
from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.messages import ModelReply, StreamEnd, Text, ToolMessage, Usage
from holdfast.models.prices import Price
from holdfast.store.spending import model_spend
from holdfast.testing import ScriptedModel, call, check, error, reply, text
from holdfast.turns.compaction.budget import Estimator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.messages import Message, ModelRequest
    from holdfast.policy.hooks import Answer, Deny, HookRequest
    from holdfast.runtime.session import Session

CANARY = "CaNaRy7xQ4eC39HqLyjWDrjtT1zdp7dc"
PRICES = {"scripted:model": Price(input=1_000_000, output=1_000_000)}  # a dollar a token


async def answer(session: Session, words: str = "go") -> hf.TurnOutcome:
    return await (await session.send(words)).outcome(timeout=SOON)


# ---- odd models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        ModelReply((Text("x"),), "stop", Usage(input=-5), "m"),
        ModelReply((Text("x"),), "stop", Usage(input=5, output=-9), "m"),
        ModelReply((Text("x"),), "stop", Usage(input=1), "m", cost=-3.0),
    ],
    ids=["input", "output", "cost"],
)
async def test_a_model_that_counts_below_zero_does_not_keep_the_turn_from_ending(said: ModelReply) -> None:
    agent = hf.Agent("a", model=ScriptedModel([said]))
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await answer(runtime.session("s", agent=agent))).text == "x"
        assert await check(runtime.store) == []


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_any_cost_can_be_counted(cost: float) -> None:
    assert 0 <= model_spend(Usage(), cost).cost_micros <= 2**40


def _fraction(message: Message) -> float:
    return len(str(message)) / 4.1


class _Counter:
    def __init__(self, said: Any) -> None:
        self._said = said

    def tokens(self, message: Message) -> Any:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said(message) if callable(self._said) else self._said


@pytest.mark.parametrize(
    "said",
    [_fraction, ValueError("no vocabulary"), None, float("inf"), "9"],
    ids=["fractions", "raises", "nothing", "without end", "text"],
)
async def test_a_counter_of_the_host_never_fails_a_turn(said: Any) -> None:
    compaction = hf.Compaction(window=WINDOW, counter=_Counter(said))
    assert (await hf.run(agent_of(Writer(25), compaction=compaction), "go")).text == "done"


class _Odd:
    """A model of somebody's own, that answers with whatever it was given."""

    name = "odd:model"

    def __init__(self, said: Any) -> None:
        self._said = said

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEnd]:
        if isinstance(self._said, Exception):
            raise self._said
        yield StreamEnd(self._said)


def _summary(words: str = SUMMARY, usage: Any = Usage(), model: str = "m") -> ModelReply:  # noqa: B008  frozen
    return ModelReply((Text(words),), "stop", usage, model)


@pytest.mark.parametrize(
    "said",
    [
        _summary(SUMMARY.replace("7", "\ud800")),
        _summary(model="\ud800"),
        _summary(model="m" * 5_000_000),
        _summary(usage=Usage(input=cast("int", 1.5))),
    ],
    ids=["words", "name", "long name", "usage"],
)
async def test_whatever_a_summariser_says_the_turn_comes_to_its_end(said: Any) -> None:
    agent = agent_of(Writer(20), compaction=hf.Compaction(window=WINDOW, model=_Odd(said)))
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await answer(runtime.session("s", agent=agent))).text == "done"
        assert await compactions(runtime.store)
        assert await check(runtime.store) == []


async def test_a_secret_in_what_a_summariser_raised_is_not_cut_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CANARY", CANARY)
    failing = _Odd(hf.ModelError("x" * (490 - len("ModelError: ")) + CANARY))
    agent = agent_of(Writer(20), compaction=hf.Compaction(window=WINDOW, model=failing))
    async with hf.open(None, agents=[agent], secrets={"CANARY": "env:TEST_CANARY"}) as runtime:
        await answer(runtime.session("s", agent=agent))
        assert await check(runtime.store, canaries=[CANARY[:8].encode()]) == []


# ---- how it is set ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"reserve": "much"}, InvalidNumber),
        ({"window": 4_000, "reserve": 4_000}, InvalidNumber),
        ({"model": 5}, InvalidArgument),
        ({"counter": 5}, InvalidArgument),
    ],
    ids=["reserve", "no room", "model", "counter"],
)
def test_what_can_not_be_meant_is_refused_by_name(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        hf.Compaction(**given)


async def test_who_writes_summaries_may_be_given_by_name() -> None:
    agent = agent_of(Writer(20), compaction=hf.Compaction(window=WINDOW, model="nobody:knows"))
    async with hf.open(None, agents=[agent]) as runtime:
        await answer(runtime.session("s", agent=agent))
        failures = [made.failure for made in await compactions(runtime.store)]
        assert failures
        assert all("nobody" in failure for failure in failures)  # it was looked up, and nobody has that name


async def test_of_models_that_stand_in_for_one_another_the_smallest_window_counts() -> None:
    models = [Writer(60, name="anthropic:claude-sonnet-4-5"), Writer(60, name="openai:gpt-4")]
    await hf.run(agent_of(hf.model(models), compaction=hf.Compaction()), "go")
    assert max(len(request.messages) for request in models[0].asked) < 100
    assert models[0].summarised


# ---- no room to be had ----------------------------------------------------------------------------------------------


class _Tally(Estimator):
    def __init__(self) -> None:
        self.calls = 0

    def tokens(self, message: Message, /) -> int:
        self.calls += 1
        return super().tokens(message)


class _Never(hf.Hooks):
    async def before_compaction(self, turn: hf.TurnContext, messages: int, tokens: int) -> Deny | None:
        return turn.deny("no")


async def test_looking_for_room_in_vain_costs_each_step_the_same() -> None:
    counted: list[int] = []
    for steps in (60, 120):
        tally = _Tally()
        compaction = hf.Compaction(window=WINDOW, counter=tally)
        await hf.run(agent_of(Writer(steps), compaction=compaction, hooks=[_Never()]), "go")
        counted.append(tally.calls)
    assert counted[1] < 3 * counted[0]


async def test_what_may_go_goes_when_the_provider_says_so_though_the_estimate_says_that_it_is_too_little() -> None:
    question = "word " * 4_000  # estimated to be larger than the window; the provider knows better

    def say(asked: ModelRequest) -> Any:
        if len(asked.messages) > 8:
            return error("the prompt is too long", kind="context_overflow")
        return None

    model = Writer(12, say=say)
    outcome = await hf.run(agent_of(model), question)
    assert outcome.text == "done"
    assert any(isinstance(said, hf.UserMessage) and said.text == question for said in model.asked[-1].messages)


# ---- an answer in parts ----------------------------------------------------------------------------------------------

PARTS = ("first " * 800, "second " * 800, "end")


def _in_parts(asked: ModelRequest) -> Any:
    part = (asked.position or 0) - 5
    if part < 0:
        return None
    finish = "stop" if part == len(PARTS) - 1 else "output_limit"
    return reply(text(PARTS[part]), finish=finish, usage=Usage(output=1))


async def test_an_answer_that_is_continued_is_whole_though_room_was_made_meanwhile() -> None:
    model = Writer(say=_in_parts)
    agent = agent_of(model)
    async with hf.open(None, agents=[agent]) as runtime:
        outcome = await answer(runtime.session("s", agent=agent))
        assert marks(model.asked[-1].messages) == ["summary"]
        assert outcome.text == "".join(PARTS)


# ---- a reply that says that there was no room ------------------------------------------------------------------------


def _refused_once(at: int, refusal: Any) -> Callable[[ModelRequest], Any]:
    left = [refusal]

    def say(asked: ModelRequest) -> Any:
        return left.pop() if asked.position == at and left else None

    return say


async def test_a_reply_that_ran_out_of_room_is_paid_for() -> None:
    refusal = reply(text("half a"), finish="context_overflow", usage=Usage(input=777))
    model = Writer(12, say=_refused_once(10, refusal), summary=reply(text(SUMMARY), usage=Usage(input=1)))
    agent = agent_of(model, compaction=hf.Compaction(window=1_000_000))
    async with hf.open(None, agents=[agent], prices=PRICES) as runtime:
        outcome = await answer(runtime.session("s", agent=agent))
        assert (outcome.usage.input, outcome.cost) == (778, 778 + 13 * 5)
        assert (await runtime.store.spent("a")).input_tokens == 778
        assert await check(runtime.store) == []


async def test_whoever_watches_is_told_that_its_words_do_not_count() -> None:
    refusal = reply(text("half a"), finish="context_overflow", usage=Usage(input=7))
    model = Writer(12, say=_refused_once(12, refusal))
    agent = agent_of(model, compaction=hf.Compaction(window=1_000_000))
    shown: list[str] = []
    async with hf.open(None, agents=[agent]) as runtime:
        turn = await runtime.session("s", agent=agent).send("go")
        async for event in turn.events():
            if isinstance(event, hf.events.AttemptReset):
                shown.clear()
            elif isinstance(event, hf.TextDelta):
                shown.append(event.text)
    assert "".join(shown) == "done"


# ---- files -----------------------------------------------------------------------------------------------------------


async def test_files_that_left_the_context_are_not_held_in_memory() -> None:
    @hf.tool(read_only=True)
    async def see(at: int) -> list[Any]:
        return [f"picture {at}", hf.File(b"\x89PNG\r\n\x1a\n" + str(at).encode(), "image/png")]

    held: list[tuple[int, int]] = []

    def say(asked: ModelRequest) -> Any:
        at = asked.position or 0
        results = [result for said in asked.messages if isinstance(said, ToolMessage) for result in said.results]
        wanted = {digest for result in results for digest in result.files}
        held.append((len(wanted), len(wanted & set(asked.files))))
        assert len(asked.files) < 10
        return reply(call(see, at=at) if at < 30 else text("done"), usage=Usage(output=1))

    agent = agent_of(Writer(say=say), tools=[see], compaction=hf.Compaction(window=16_000))
    assert (await hf.run(agent, "go")).text == "done"
    assert all(wanted == there for wanted, there in held)


# ---- hooks -----------------------------------------------------------------------------------------------------------


async def test_what_a_hook_says_in_place_of_the_model_costs_nothing() -> None:
    class Says(hf.Hooks):
        async def before_model(self, asked: HookRequest) -> Answer | None:
            return asked.answer("from here")

    agent = hf.Agent("a", model=ScriptedModel([]), hooks=[Says()], limits=hf.Limits(cost_usd=1.0))
    outcome = await hf.run(agent, "go")
    assert (outcome.text, outcome.cost) == ("from here", 0.0)


async def test_a_hook_after_the_model_is_not_told_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CANARY", CANARY)
    seen: list[str] = []

    class Sees(hf.Hooks):
        async def after_model(self, asked: HookRequest, reply: ModelReply) -> None:
            seen.append(f"{asked!r} {reply!r}")

    agent = hf.Agent("a", model=ScriptedModel([text(f"it is {CANARY}")]), hooks=[Sees()])
    async with hf.open(None, agents=[agent], secrets={"CANARY": "env:TEST_CANARY"}) as runtime:
        await answer(runtime.session("s", agent=agent))
    assert "[secret CANARY]" in seen[0]
    assert CANARY not in seen[0]
