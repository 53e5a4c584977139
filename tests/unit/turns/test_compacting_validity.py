"""Any conversation, compacted: every provider takes it, it fits, and nothing that must stay is missing."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from holdfast.messages import (
    AssistantMessage,
    Attachment,
    Message,
    ModelRequest,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    encode,
)
from holdfast.models.dialect import Endpoint
from holdfast.models.registry import load_dialect
from holdfast.turns.compaction.budget import ContextBudget, Estimator, Reported, Why, measure_messages, text_tokens
from holdfast.turns.compaction.plan import Plan, View, apply, fallback, mark_of, plan, summary_message
from holdfast.turns.compaction.summary import prior_of
from holdfast.turns.state import Thread

COUNTER = Estimator()
IMAGE = Attachment("d1", "image/png", 40_000, "picture.png")
PAPER = Attachment("d2", "application/pdf", 9_000, "paper.pdf")
FILES = {"d1": b"png", "d2": b"pdf"}
ROUTE = Endpoint(provider="here", dialect="anthropic", base_url="https://here").route("m")
WORDS = "The quick brown fox jumps over the lazy dog. "


def said(size: int) -> str:
    return (WORDS * (size // len(WORDS) + 1))[: max(size, 1)]


# ---- random histories ------------------------------------------------------------------------------------------------

SIZES = st.sampled_from((5, 60, 400, 1_500, 6_000))
SMALL = st.sampled_from((5, 60, 400))


@st.composite
def results(draw: st.DrawFn, call: ToolCall) -> ToolResult:
    kind = draw(st.sampled_from(("text", "text", "json", "file", "error", "unknown")))
    size = draw(SIZES)
    match kind:
        case "json":
            return ToolResult(call.id, call.name, {"rows": [said(size)], "n": 1})
        case "file":
            return ToolResult(call.id, call.name, ["see", json.loads(encode(IMAGE))], files=("d1",))
        case "error":
            return ToolResult(call.id, call.name, said(size), "error")
        case "unknown":
            return ToolResult(call.id, call.name, "It is not known.", "unknown")
        case _:
            return ToolResult(call.id, call.name, said(size))


@st.composite
def steps(draw: st.DrawFn, run: str, number: int) -> list[Message]:
    """What the model did and what came of it; sometimes a note of ours, or more words of the user."""
    calls = [ToolCall(f"c{run}-{number}-{n}", "find", {"q": said(draw(SMALL))}) for n in range(draw(st.integers(1, 3)))]
    parts: list[Any] = []
    if draw(st.booleans()):
        parts.append(Reasoning("I think", {"signature": "s" * 40}, ROUTE))
    if draw(st.booleans()):
        parts.append(Text(said(draw(SMALL))))
    made: list[Message] = [
        AssistantMessage(f"{run}.{number}", (*parts, *calls), "tool_calls"),
        ToolMessage(f"{run}.{number + 1}", tuple(draw(results(call)) for call in calls)),
    ]
    match draw(st.sampled_from(("", "", "", "note", "steer", "told"))):
        case "note":
            made.append(UserMessage(f"{run}.{number + 2}", (Text("Go on."),), "holdfast"))
        case "steer":
            made.append(UserMessage(f"{run}.i9{number}", (Text(said(draw(SMALL))),)))
        case "told":
            made.append(UserMessage(f"{run}.i9{number}", (Text(said(draw(SMALL))),), "holdfast"))
        case _:
            pass
    return made


@st.composite
def turns(draw: st.DrawFn, n: int, *, last: bool) -> list[Message]:
    run = f"t{n}"
    parts: list[Any] = [Text(said(draw(SMALL)))]
    if draw(st.sampled_from((False, False, True))):
        parts.append(draw(st.sampled_from((IMAGE, PAPER))))
    made: list[Message] = [UserMessage(f"{run}.i{n}", tuple(parts))]
    for number in range(draw(st.integers(0, 8 if last else 3))):
        made += draw(steps(run, 1 + 3 * number))
    if not last:
        made.append(AssistantMessage(f"{run}.99", (Text(said(draw(SIZES))),)))
    return made


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Message], str]:
    count = draw(st.integers(1, 4))
    made: list[Message] = []
    for n in range(1, count + 1):
        made += draw(turns(n, last=n == count))
    return made, f"t{count}.i{count}"


windows = st.sampled_from((3_000, 6_000, 9_000, 16_000))
ends = st.sampled_from(("summary", "drop"))
whys: st.SearchStrategy[Why] = st.sampled_from(("full", "full", "overflow", "asked"))


def summary_of(cap: int) -> str:
    """A summary as long as it may be."""
    text = "## Goal\nG\n## Decisions\nD\n## Facts\nF\n## Files\nF\n## Open points\n"
    while text_tokens(text + WORDS) + 6 <= cap:
        text += WORDS
    return text


# ---- what a provider would refuse ------------------------------------------------------------------------------------


END: dict[str, Any] = {"role": "nobody", "content": [], "parts": []}


def sent(name: str, messages: tuple[Message, ...]) -> dict[str, Any]:
    endpoint = Endpoint(provider="here", dialect=name, base_url="https://here")
    return json.loads(
        load_dialect(name).encode_request(endpoint, "m", ModelRequest(messages=messages, files=FILES)).body
    )


def of_kind(items: list[dict[str, Any]], kind: str, field: str) -> list[str]:
    return [item[field] for item in items if item.get("type") == kind]


def anthropic(body: dict[str, Any]) -> None:
    said: list[dict[str, Any]] = body["messages"]
    assert said[0]["role"] == "user"
    assert of_kind(said[0]["content"], "tool_result", "tool_use_id") == []
    assert all(one["role"] != two["role"] for one, two in pairwise(said))
    assert all(message["content"] for message in said)
    for one, two in pairwise([*said, END]):
        asked = of_kind(one["content"], "tool_use", "id")
        assert of_kind(two["content"], "tool_result", "tool_use_id") == asked
        if one["role"] == "assistant":
            kinds = [block["type"] for block in one["content"]]
            assert "thinking" not in kinds[1:], "thoughts come first"


def chat(body: dict[str, Any]) -> None:
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            assert waiting.pop(0) == message["tool_call_id"]
        else:
            assert waiting == []
            waiting = [call["id"] for call in message.get("tool_calls", [])]
    assert waiting == []


def responses(body: dict[str, Any]) -> None:
    open_calls: list[str] = []
    for item in body["input"]:
        if item.get("type") == "function_call":
            open_calls.append(item["call_id"])
        elif item.get("type") == "function_call_output":
            open_calls.remove(item["call_id"])
        else:
            assert open_calls == [] or item.get("type") in {"reasoning", "message"}
    assert open_calls == []


def google(body: dict[str, Any]) -> None:
    contents: list[dict[str, Any]] = body["contents"]
    assert contents[0]["role"] == "user"
    assert not any("functionResponse" in part for part in contents[0]["parts"])
    for one, two in pairwise([*contents, END]):
        assert not (one["role"] == two["role"] == "model"), "a call comes after the user or a result"
        asked = sum("functionCall" in part for part in one["parts"])
        assert sum("functionResponse" in part for part in two["parts"]) == asked


CHECKS = {"anthropic": anthropic, "chat": chat, "responses": responses, "google": google}


def check(thread: Thread) -> None:
    for name, valid in CHECKS.items():
        valid(sent(name, thread.messages))


def tokens(thread: Thread, fixed: int = 0) -> int:
    return fixed + sum(map(COUNTER.tokens, thread.messages))


def pins_of(messages: list[Message]) -> frozenset[str]:
    return frozenset(m.id for m in messages[:6] if type(m) is UserMessage and len(m.text) < 100 and len(m.parts) == 1)


def least_of(messages: list[Message], first: str, pinned: frozenset[str]) -> int:
    """Tokens of what must stay whatever happens: the input, the last word of the user, the pins, and a mark."""
    last = next(m.id for m in reversed(messages) if type(m) is UserMessage and m.origin == "user")
    return 200 + sum(COUNTER.tokens(m) for m in messages if m.id in {first, last, *pinned})


def needs_no_plan(
    thread: Thread,
    budget: ContextBudget,
    first: str,
    pinned: frozenset[str] = frozenset(),
    known: Reported | None = None,
) -> bool:
    """True if the conversation fits, or nothing that may go makes it fit: then no plan is needed, or possible."""
    measure = measure_messages(thread.messages, budget, COUNTER, known, "full")
    if measure.total <= budget.room:
        return True
    most = plan(thread, budget, COUNTER, known, first, pinned=pinned, reader="read_result", why="overflow")
    if most is None:
        return not gainful(thread, budget, first, pinned, known)
    # After an overflow the summary is shorter where the provider counts more.
    shorter = 0 if most.span is None else measure.correct(budget.cap) - measure.correct(most.cap)
    return most.after + shorter > budget.room


def gainful(
    thread: Thread, budget: ContextBudget, first: str, pinned: frozenset[str], known: Reported | None = None
) -> bool:
    """True if the messages that may go take more room than a summary of them."""
    measure = measure_messages(thread.messages, budget, COUNTER, known, "overflow")
    begun = next(n for n, message in enumerate(thread.messages) if message.id == first)
    marked = [n for n, message in enumerate(thread.messages) if mark_of(message) is not None]
    stays = {first, *pinned, *(m.id for m in thread.messages[begun:] if type(m) is UserMessage and m.origin == "user")}
    going = [n for n, message in enumerate(thread.messages) if message.id not in stays]
    if not set(going) - set(marked):
        return False
    mark = measure.of(summary_message("", "", 10**9)) + measure.correct(budget.cap)
    return sum(measure.weights[n] for n in going) > mark


def compacted(thread: Thread, made: Plan, *, drop: bool = False) -> Thread:
    if drop:
        return apply(thread, fallback(thread, made))
    return apply(thread, made, summary_of(made.cap) if made.way == "summary" else None)


quick = settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


# ---- every one of them -----------------------------------------------------------------------------------------------


@quick
@given(histories())
def test_what_goes_in_is_what_providers_take(history: tuple[list[Message], str]) -> None:
    check(Thread().add(*history[0]))


@quick
@given(histories(), windows, whys, ends)
def test_a_compacted_conversation_is_valid_fits_and_keeps_what_must_stay(
    history: tuple[list[Message], str], window: int, why: Why, end: str
) -> None:
    messages, first = history
    thread = Thread().add(*messages)
    budget = ContextBudget(window=window, reserve=window // 8, fixed=200)
    pinned = pins_of(messages)
    made = plan(thread, budget, COUNTER, None, first, pinned=pinned, reader="read_result", why=why)
    if made is None:
        if why == "overflow":
            assert not gainful(thread, budget, first, pinned)
        elif tokens(thread, 200) > budget.room:
            assert least_of(messages, first, pinned) + 200 + budget.cap > budget.room
            assert needs_no_plan(thread, budget, first, pinned)
        return
    after = compacted(thread, made, drop=end == "drop")
    check(after)
    # After an overflow all that may go goes, even if the estimate says that it is not enough.
    assert tokens(after, 200) <= (max(budget.room, made.after) if why == "overflow" else budget.room)
    assert tokens(after) < tokens(thread)
    ids = [message.id for message in after.messages]
    assert len(set(ids)) == len(ids)
    assert [m for m in messages if m.id == first or m.id in pinned] == [
        m for m in after.messages if m.id == first or m.id in pinned
    ]


@quick
@given(histories(), windows)
def test_a_plan_read_from_its_record_gives_the_same_conversation(
    history: tuple[list[Message], str], window: int
) -> None:
    thread = Thread().add(*history[0])
    budget = ContextBudget(window=window, reserve=window // 8)
    made = plan(thread, budget, COUNTER, None, history[1])
    assume(isinstance(made, Plan))
    assert isinstance(made, Plan)
    again = plan(Thread().add(*history[0]), budget, COUNTER, None, history[1])
    assert made == again == msgspec.json.decode(encode(made), type=Plan)
    assert compacted(thread, made) == compacted(thread, msgspec.json.decode(encode(made), type=Plan))


@quick
@given(histories(), windows, ends, st.data())
def test_what_was_said_since_only_comes_after_it(
    history: tuple[list[Message], str], window: int, end: str, data: st.DataObject
) -> None:
    thread = Thread().add(*history[0])
    made = plan(thread, ContextBudget(window=window, reserve=window // 8), COUNTER, None, history[1])
    assume(isinstance(made, Plan))
    assert isinstance(made, Plan)
    more = data.draw(steps("t9", 1))
    before, later = compacted(thread, made, drop=end == "drop"), compacted(thread.add(*more), made, drop=end == "drop")
    assert later == before.add(*more)


@quick
@given(histories(), windows, ends)
def test_a_plan_that_was_carried_out_changes_nothing_more(
    history: tuple[list[Message], str], window: int, end: str
) -> None:
    thread = Thread().add(*history[0])
    made = plan(thread, ContextBudget(window=window, reserve=window // 8), COUNTER, None, history[1])
    assume(isinstance(made, Plan))
    assert isinstance(made, Plan)
    used = fallback(thread, made) if end == "drop" else made
    summary = summary_of(used.cap) if used.way == "summary" else None
    once = apply(thread, used, summary)
    assert apply(once, used, summary) == once


@quick
@given(histories(), windows, st.integers(0, 3), st.data())
def test_plans_stack_with_one_summary_in_front(
    history: tuple[list[Message], str], window: int, dropping: int, data: st.DataObject
) -> None:
    """Several compactions of a turn that goes on: the oldest that failed to be summarised are told once, in a note."""
    messages, first = history
    budget = ContextBudget(window=window, reserve=window // 8)
    whole = Thread().add(*messages)
    view = View().follow(whole)
    for n in range(4):
        made = plan(view.thread, budget, COUNTER, None, first)
        if made is None and tokens(view.thread) > budget.room:
            assert needs_no_plan(view.thread, budget, first)
            return
        if made is not None:
            prior = prior_of(view.thread, made)
            used = fallback(view.thread, made) if n == dropping else made
            summary = summary_of(used.cap) if used.way == "summary" else None
            view = View(apply(view.thread, used, summary), view.told)
            check(view.thread)
            assert tokens(view.thread) <= budget.room
            marks = [mark.kind for m in view.thread.messages if (mark := mark_of(m)) is not None]
            assert marks in ([], ["summary"], ["dropped"], ["summary", "dropped"])
            assert [mark_of(m) is not None for m in view.thread.messages[: len(marks)]] == [True] * len(marks)
            if used.way == "drop":
                assert ("summary" in marks) is (prior is not None)
        whole = whole.add(*data.draw(steps("t5", 1 + 30 * n)), *data.draw(steps("t5", 10 + 30 * n)))
        view = view.follow(whole)


@quick
@given(histories(), windows, st.integers(1, 3), st.integers(1, 3))
def test_the_providers_count_is_kept_to(history: tuple[list[Message], str], window: int, top: int, bottom: int) -> None:
    """A provider that counts up to three times more, or fewer, than we do: what is left fits by its count."""
    messages, first = history
    thread = Thread().add(*messages)
    last = messages[-1].id

    def really(some: Thread) -> int:
        return 300 + tokens(some) * top // bottom

    budget = ContextBudget(window=window, reserve=window // 8, fixed=300)
    known = Reported(last, really(thread))
    made = plan(thread, budget, COUNTER, known, first)
    if made is None:
        assert really(thread) <= budget.room or needs_no_plan(thread, budget, first, known=known)
        return
    if 2 * bottom >= top:
        after = apply(thread, fallback(thread, made))
        assert really(after) <= budget.room


@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_find_a_result_without_its_call(name: str) -> None:
    broken = (
        UserMessage("u", (Text("hi"),)),
        ToolMessage("t", (ToolResult("c1", "find", "x"),)),
        UserMessage("v", (Text("hi"),)),
    )
    with pytest.raises((AssertionError, ValueError, IndexError)):
        CHECKS[name](sent(name, broken))


@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_find_a_call_without_its_result(name: str) -> None:
    broken = (
        UserMessage("u", (Text("hi"),)),
        AssistantMessage("a", (ToolCall("c1", "find", {}),), "tool_calls"),
        UserMessage("v", (Text("hi"),)),
    )
    with pytest.raises((AssertionError, ValueError)):
        CHECKS[name](sent(name, broken))
