"""Tracing: the spans that a runtime exports, their names, their ids, and what happens if nobody takes them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from tests.behaviour.collector import Collector, Received, collecting
from tests.behaviour.talk import until
from tests.patience import PATIENCE

import holdfast as hf
from holdfast.errors import InvalidArgument, InvalidNumber, TelemetryMissing, TelemetryUnconfigured
from holdfast.messages import Attempt
from holdfast.store import open_store
from holdfast.telemetry import Telemetry
from holdfast.telemetry.journals import read_trace
from holdfast.testing import ScriptedModel, call, text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from holdfast.telemetry.spans import Span

# The names of the GenAI conventions that a span may have; others must begin with "holdfast." or be "error.type".
CONVENTIONS = frozenset(
    {
        *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.conversation.id", "gen_ai.system_instructions"),
        *("gen_ai.agent.name", "gen_ai.agent.version", "gen_ai.workflow.name"),
        *("gen_ai.request.model", "gen_ai.request.temperature", "gen_ai.request.max_tokens", "gen_ai.request.top_p"),
        *("gen_ai.request.seed", "gen_ai.response.id", "gen_ai.response.model", "gen_ai.response.finish_reasons"),
        *("gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.tool.call.id"),
        *("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
        *("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.reasoning.output_tokens"),
        *("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_creation.input_tokens"),
        *("gen_ai.input.messages", "gen_ai.output.messages", "error.type"),
    }
)
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@hf.tool(read_only=True)
async def look(item: int) -> dict[str, int]:
    """How many there are."""
    return {"stock": item}


def agent(*script: Any, tools: tuple[Any, ...] = (look,), name: str = "clerk", **options: Any) -> hf.Agent:
    return hf.Agent(name, model=ScriptedModel([*script], keep=0), tools=tools, policy=[hf.allow("*")], **options)


def to(collector: Collector, **options: Any) -> Telemetry:
    return Telemetry(endpoint=collector.url, **options)


async def traced(collector: Collector, made: hf.Agent, prompt: str = "Go.", **options: Any) -> hf.TurnOutcome:
    """One turn, whose spans the collector has when this returns."""
    async with hf.open(None, agents=[made], telemetry=to(collector, **options)) as runtime:
        return await runtime.run(made, prompt, session="s")


@contextmanager
def provider(**options: Any) -> Generator[tuple[TracerProvider, InMemorySpanExporter]]:
    """The tracer provider of an application."""
    made, exporter = TracerProvider(shutdown_on_exit=False, **options), InMemorySpanExporter()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    try:
        yield made, exporter
    finally:
        made.shutdown()


def as_received(span: Span) -> Received:
    """A span from the journal as it must come over the wire."""
    attributes = {name: list(value) if isinstance(value, tuple) else value for name, value in span.attributes.items()}
    return Received(
        *(span.name, span.trace, span.id, span.parent, 3 if span.operation == "chat" else 1),
        *(span.start * 1_000_000, span.end * 1_000_000, attributes),
        *(tuple((link.trace, link.span, link.reason) for link in span.links), bool(span.error), span.message),
        "holdfast",
    )


# ---- the spans of a turn ---------------------------------------------------------------------------------------------


async def test_a_turn_is_one_trace_of_an_agent_its_model_calls_and_its_tool_calls(collector: Collector) -> None:
    await traced(collector, agent([call(look, item=1), call(look, item=2)], text("Two.")))
    root = collector.one("invoke_agent clerk")
    below = [span for span in collector.spans if span is not root]
    assert sorted(span.name for span in below) == [*["chat model"] * 2, *["execute_tool look"] * 2]
    assert {(span.trace, span.parent) for span in below} == {(root.trace, root.id)}
    assert root.parent == ""


async def test_a_direct_completion_is_a_trace_of_its_own(collector: Collector) -> None:
    async with hf.open(None, telemetry=to(collector)) as runtime:
        await runtime.complete(ScriptedModel([text("Yes.")]), "Is it so?")
    chat = collector.one("chat model")
    assert chat.attributes["gen_ai.operation.name"] == "chat"


async def test_spans_lie_inside_the_span_above_them(collector: Collector) -> None:
    @hf.tool
    async def book(ctx: hf.Context, item: int) -> str:
        return await ctx.step("reserve", lambda: f"booked {item}")

    await traced(collector, agent(call(book, item=1), call(book, item=2), text("Done."), tools=(book,)))
    spans = {span.id: span for span in collector.spans}
    inside = [
        (spans[span.parent].start <= span.start <= span.end <= spans[span.parent].end)
        for span in spans.values()
        if span.parent
    ]
    assert len(inside) == 7
    assert all(inside)


async def test_a_model_call_shows_model_tokens_and_reason_of_its_end(collector: Collector) -> None:
    usage = hf.Usage(input=5, output=7, cache_read=11, cache_write=13, reasoning=2)
    reply = hf.ModelReply((hf.Text("Hi."),), "output_limit", usage, "openai:gpt-5-2026", response_id="r-1", cost=0.25)
    made = hf.Agent("a", model=ScriptedModel([reply, text("more")], name="openai:gpt-5"), settings=hf.Settings(seed=7))
    await traced(collector, made)
    found = collector.named("chat gpt-5")[0].attributes
    assert found["gen_ai.provider.name"] == "openai"
    assert (found["gen_ai.request.model"], found["gen_ai.response.model"]) == ("gpt-5", "gpt-5-2026")
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (29, 7)
    assert found["gen_ai.usage.cache_read.input_tokens"] == 11
    assert found["gen_ai.usage.cache_creation.input_tokens"] == 13
    assert found["gen_ai.usage.reasoning.output_tokens"] == 2
    assert found["gen_ai.response.finish_reasons"] == ["length"]
    assert (found["gen_ai.response.id"], found["holdfast.cost_usd"], found["gen_ai.request.seed"]) == ("r-1", 0.25, 7)


async def test_a_tool_call_names_tool_call_id_and_session(collector: Collector) -> None:
    await traced(collector, agent(call(look, item=1), text("One.")))
    found = collector.one("execute_tool").attributes
    assert (found["gen_ai.tool.name"], found["gen_ai.tool.call.id"]) == ("look", "call_0_0")
    assert (found["gen_ai.conversation.id"], found["holdfast.turn"], found["gen_ai.agent.name"]) == ("s", "t1", "clerk")


async def test_a_failed_tool_is_an_error_of_its_kind(collector: Collector) -> None:
    @hf.tool(read_only=True)
    async def broken() -> str:
        raise OSError("the disk is gone")

    await traced(collector, agent(call(broken), text("Sorry."), tools=(broken,)))
    found = collector.one("execute_tool broken")
    assert found.error
    assert (found["error.type"], found["holdfast.state"]) == ("OSError", "error")


async def test_a_failed_turn_is_an_error_of_its_kind(collector: Collector) -> None:
    await traced(collector, agent(call(look, item=1), limits=hf.Limits(steps=1)))
    root = collector.one("invoke_agent")
    assert root.error
    assert (root["error.type"], root["holdfast.status"]) == ("steps", "limit")


async def test_the_attempts_of_a_model_call_are_counted(collector: Collector) -> None:
    tried = (Attempt("x:one", "overloaded", 529), Attempt("x:two"))
    reply = hf.ModelReply((hf.Text("Hi."),), model="x:two", attempts=tried)
    await traced(collector, hf.Agent("a", model=ScriptedModel([reply])))
    found = collector.one("chat two").attributes
    assert (found["holdfast.attempts"], found["holdfast.attempt.outcomes"]) == (2, ["overloaded", "completed"])


async def test_the_attempts_of_a_tool_are_counted(collector: Collector) -> None:
    failed = list[int]()

    @hf.tool(idempotent=True, retry=hf.ToolRetryPolicy(attempts=3, pause=0.001))
    async def shaky() -> str:
        failed.append(1)
        if len(failed) < 3:
            raise OSError("again")
        return "ok"

    await traced(collector, agent(call(shaky), text("Done."), tools=(shaky,)))
    assert collector.one("execute_tool shaky")["holdfast.attempts"] == 3


async def test_a_handoff_shows_the_agent_of_each_call(collector: Collector) -> None:
    expert = agent(text("Solved."), name="expert")
    desk = agent(call("transfer_to_expert", reason="hard"), name="desk", tools=(hf.handoff(expert),))
    await traced(collector, desk)
    assert [span["gen_ai.agent.name"] for span in collector.named("chat")] == ["desk", "expert"]
    assert collector.one("invoke_agent desk")["holdfast.handoffs"] == 1


# ---- waits, other agents, processes ----------------------------------------------------------------------------------


async def approved(runtime: hf.Runtime) -> None:
    await until(runtime.approvals)
    for approval in await runtime.approvals():
        await runtime.approve(approval.id)


async def test_an_approval_is_a_wait_inside_its_call(collector: Collector) -> None:
    made = hf.Agent("a", model=ScriptedModel([call(look, item=1), text("ok")]), tools=[look], policy=[hf.ask("look")])
    async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
        turn = await runtime.session("s", agent=made).send("Go.")
        await approved(runtime)
        await turn.outcome()
    wait, of = collector.one("wait approval look"), collector.one("execute_tool look")
    assert (wait.parent, wait["holdfast.wait.kind"], wait["holdfast.parked"]) == (of.id, "approval", True)
    assert of.start <= wait.start <= wait.end <= of.end


async def test_a_turn_that_another_runtime_goes_on_with_is_one_trace_exported_once(
    collector: Collector, tmp_path: Path
) -> None:
    def made() -> hf.Agent:
        script = [call(look, item=1), text("ok")]
        return hf.Agent("a", model=ScriptedModel(script, keep=0), tools=[look], policy=[hf.ask("look")])

    async with hf.open(tmp_path / "s.db", agents=[first := made()], telemetry=to(collector)) as runtime:
        await runtime.session("s", agent=first).send("Go.")
        await until(runtime.approvals)
        await until(lambda: runtime.active == 0)
    async with hf.open(tmp_path / "s.db", agents=[made()], telemetry=to(collector)) as runtime:
        await approved(runtime)
        await runtime.session("s").turn("t1").outcome()
    assert sorted(span.name for span in collector.spans) == [
        *("chat model", "chat model", "execute_tool look", "invoke_agent a", "wait approval look")
    ]
    assert len({span.trace for span in collector.spans}) == 1
    assert collector.one("invoke_agent a")["holdfast.resumed"] == 1


async def test_a_sub_agent_belongs_to_the_trace_of_its_caller(collector: Collector) -> None:
    helper = agent(call(look, item=1), text("helped"), name="helper")
    await traced(collector, agent(call("helper", prompt="Help."), text("Done."), tools=(hf.agent_tool(helper),)))
    assert {span.trace for span in collector.spans} == {collector.one("invoke_agent clerk").trace}
    assert collector.one("invoke_agent helper").parent == collector.one("execute_tool helper").id


async def test_a_call_in_the_background_belongs_to_the_trace_of_its_turn(collector: Collector) -> None:
    @hf.tool(background=True)
    async def long() -> str:
        return "done at last"

    made = agent(call(long), text("It goes on."), text("It is done."), tools=(long,))
    async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
        turn = await runtime.session("s", agent=made).send("Go.")
        await turn.outcome()
        await until(lambda: print([s.name for s in collector.spans]) or collector.named("process long"))
    task = collector.one("process long")
    first = next(
        span
        for span in collector.named("execute_tool long")
        if span["gen_ai.conversation.id"] == "s" and "holdfast.turn" in span.attributes
    )
    assert (task.trace, task.parent) == (first.trace, first.id)


@hf.process
async def child(ctx: hf.ProcessContext) -> int:
    return await ctx.step("count", lambda: 3)


async def test_a_process_its_children_and_its_agents_are_one_trace(collector: Collector) -> None:
    helper = agent(text("helped"), name="helper")

    @hf.process
    async def parent(ctx: hf.ProcessContext) -> Any:
        await ctx.sleep(timedelta(milliseconds=1))
        await ctx.run_agent(helper, "Help.")
        return await (await ctx.start(child)).result()

    async with hf.open(None, agents=[helper], processes=[parent, child], telemetry=to(collector)) as runtime:
        await (await runtime.start(parent, id="p")).result()
    root = collector.one("process parent")
    assert {span.trace for span in collector.spans} == {root.trace}
    assert collector.one("invoke_agent helper").parent == collector.one("start agent helper").id
    assert collector.one("process child").parent == collector.one("start child").id
    assert collector.one("wait sleep").parent == root.id
    assert collector.one("step count").parent == collector.one("process child").id


async def test_a_fork_is_a_trace_of_its_own_with_the_model_of_its_ancestor(collector: Collector) -> None:
    made = agent(text("one"), text("two"))
    async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
        await runtime.run(made, "Go.", session="s")
        fork = await runtime.session("s").fork(id="f")
        await (await fork.send("And now?")).outcome()
    first, second = collector.named("invoke_agent")
    assert first.trace != second.trace
    assert [span["gen_ai.request.model"] for span in collector.named("chat")] == ["model", "model"]


# ---- the same spans from the journal ---------------------------------------------------------------------------------


async def everything(runtime: hf.Runtime, made: hf.Agent) -> None:
    """A turn with an approval, a sub-agent, a failure and a task."""
    turn = await runtime.session("s", agent=made).send("Go.", metadata={"traceparent": CALLER})
    await approved(runtime)
    await turn.outcome()


def everyone() -> hf.Agent:
    @hf.tool
    async def book(ctx: hf.Context, item: int) -> str:
        return await ctx.step("reserve", lambda: f"booked {item}")

    @hf.tool(read_only=True)
    async def broken() -> str:
        raise OSError("gone")

    @hf.tool(background=True)
    async def long() -> str:
        return "long"

    helper = agent(call(look, item=1), text("helped"), name="helper")
    script = [
        [call(look, item=1), call(broken)],
        call(book, item=1),
        [call("helper", prompt="Help."), call(long)],
        text("Done."),
    ]
    tools = [look, book, broken, long, hf.agent_tool(helper)]
    model = ScriptedModel([*script, *[text("I see.")] * 3], keep=0)
    return hf.Agent("clerk", model=model, tools=tools, policy=[hf.ask("book"), hf.allow("*")], instructions="Be kind.")


@pytest.mark.parametrize("content", [False, True])
async def test_the_journal_gives_the_same_spans_later(collector: Collector, tmp_path: Path, content: bool) -> None:
    made = everyone()
    async with hf.open(tmp_path / "s.db", agents=[made], telemetry=to(collector, content=content)) as runtime:
        await everything(runtime, made)
    async with open_store(tmp_path / "s.db") as store:
        later = [as_received(span) for span in await read_trace(store, "s", content=content)]
    assert len(later) > 12
    live = {span.id: span for span in collector.spans}
    assert live == {span.id: span for span in later}
    assert len(collector.spans) == len(later)


async def test_all_names_are_those_of_the_conventions_or_our_own(collector: Collector) -> None:
    made = everyone()
    async with hf.open(None, agents=[made], telemetry=to(collector, content=True)) as runtime:
        await everything(runtime, made)
    names = {name for span in collector.spans for name in span.attributes}
    assert not [name for name in names if name not in CONVENTIONS and not name.startswith("holdfast.")]
    operations = {span.name.partition(" ")[0] for span in collector.spans}
    assert operations == {"invoke_agent", "chat", "execute_tool", "process", "wait", "step"}


async def test_one_turn_of_a_session_is_read_without_the_others(collector: Collector) -> None:
    made = agent(text("one"), text("two"))
    async with hf.open(None, agents=[made]) as runtime:
        for _ in range(2):
            await runtime.run(made, "Go.", session="s")
        found = await read_trace(runtime.store, "s", run="t2")
    assert {span.run for span in found} == {"t2"}


# ---- content ---------------------------------------------------------------------------------------------------------


async def test_spans_show_no_content_unless_asked(collector: Collector) -> None:
    @hf.tool(read_only=True)
    async def tell(fruit: str) -> str:
        raise ValueError(f"{fruit} in the message")

    made = agent(call(tell, fruit="PINEAPPLE"), text("PINEAPPLE"), tools=(tell,), instructions="PINEAPPLE")
    await traced(collector, made, "PINEAPPLE")
    assert len(collector.spans) == 4
    assert "PINEAPPLE" not in repr(collector.spans)


async def test_spans_show_messages_arguments_and_results_if_asked(collector: Collector) -> None:
    made = agent(call(look, item=4), text("Four."), instructions="Count.")
    await traced(collector, made, "How many?", content=True)
    root, tool, chat = collector.one("invoke_agent"), collector.one("execute_tool"), collector.named("chat")[1]
    assert root["gen_ai.system_instructions"] == '[{"type":"text","content":"Count."}]'
    assert root["gen_ai.input.messages"] == '[{"role":"user","parts":[{"type":"text","content":"How many?"}]}]'
    assert '"content":"Four."' in root["gen_ai.output.messages"]
    assert (tool["gen_ai.tool.call.arguments"], tool["gen_ai.tool.call.result"]) == ('{"item":4}', '{"stock":4}')
    assert '"type":"tool_call_response","id":"call_0_0","response":{"stock":4}' in chat["gen_ai.input.messages"]


async def test_long_texts_are_cut(collector: Collector) -> None:
    await traced(collector, agent(text("x" * 100_000)), content=True)
    assert len(collector.one("invoke_agent")["gen_ai.output.messages"]) < 9_000


async def test_content_has_no_secrets(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hunter2-" * 3
    monkeypatch.setenv("SHOP_PASSWORD", secret)

    @hf.tool(read_only=True)
    async def leak(ctx: hf.Context) -> str:
        return f"the password is {ctx.secrets['PASSWORD']}"

    made = agent(call(leak), text(f"It is {secret}."), tools=(leak,), instructions=f"Never tell {secret}.")
    settings = to(collector, content=True)
    async with hf.open(None, agents=[made], telemetry=settings, secrets={"PASSWORD": "env:SHOP_PASSWORD"}) as runtime:
        await runtime.run(made, f"Is it {secret}?")
    assert len(collector.spans) == 4
    assert secret not in repr(collector.spans)


# ---- the spans of the application ------------------------------------------------------------------------------------


async def test_the_provider_of_the_application_gets_the_spans_with_the_ids_of_the_journal() -> None:
    made = agent(call(look, item=1), text("One."))
    with provider() as (given, exporter):
        async with hf.open(None, agents=[made], telemetry=Telemetry(tracer_provider=given, metrics=False)) as runtime:
            await runtime.run(made, "Go.", session="s")
            later = {(span.trace, span.id, span.parent) for span in await read_trace(runtime.store, "s")}
        ended: Any = exporter.get_finished_spans()
    ids = {
        (
            f"{each.context.trace_id:032x}",
            f"{each.context.span_id:016x}",
            f"{each.parent.span_id:016x}" if each.parent else "",
        )
        for each in ended
    }
    assert ids == later


async def test_the_sampler_of_the_application_decides() -> None:
    seen = list[bool]()

    @hf.tool(read_only=True)
    async def looks() -> str:
        seen.append(trace.get_current_span().get_span_context().trace_flags.sampled)
        return "ok"

    made = agent(call(looks), text("Done."), tools=(looks,))
    with provider(sampler=ALWAYS_OFF) as (given, exporter):
        async with hf.open(None, agents=[made], telemetry=Telemetry(tracer_provider=given, metrics=False)) as runtime:
            await runtime.run(made, "Go.")
        assert exporter.get_finished_spans() == ()
    assert seen == [False]


async def test_what_a_tool_does_belongs_to_the_span_of_its_call(collector: Collector) -> None:
    seen = dict[str, str]()

    def note(name: str) -> str:
        seen[name] = f"{trace.get_current_span().get_span_context().span_id:016x}"
        return name

    @hf.tool(read_only=True)
    async def plain() -> str:
        return note("plain")

    @hf.tool(read_only=True)
    def threaded() -> str:
        return note("threaded")

    @hf.tool(read_only=True)
    async def stepping(ctx: hf.Context) -> str:
        note("stepping")
        return await ctx.step("deep", lambda: note("deep"))

    def says(request: hf.ModelRequest) -> Any:
        note("chat")
        return [call(plain), call(threaded), call(stepping)] if len(request.messages) == 1 else text("Done.")

    made = hf.Agent("a", model=ScriptedModel(says), tools=[plain, threaded, stepping])
    await traced(collector, made)
    ids = {span.id: span.name for span in collector.spans}
    assert {name: ids.get(id) for name, id in seen.items()} == {
        "chat": "chat model",
        "plain": "execute_tool plain",
        "threaded": "execute_tool threaded",
        "stepping": "execute_tool stepping",
        "deep": "step deep",
    }


async def test_the_span_of_the_caller_is_linked(collector: Collector) -> None:
    made = agent(text("Hi."))
    with provider() as (given, _):
        async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
            with given.get_tracer("app").start_as_current_span("request") as request:
                turn = await runtime.session("s", agent=made).send("Go.")
            await turn.outcome()
            context = request.get_span_context()
    assert collector.one("invoke_agent").links == ((f"{context.trace_id:032x}", f"{context.span_id:016x}", "caller"),)


async def test_a_traceparent_in_the_metadata_of_an_input_is_linked(collector: Collector) -> None:
    made = agent(text("Hi."), text("Hi."))
    async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
        await runtime.run(made, "Go.", metadata={"traceparent": CALLER})
        await runtime.run(made, "Go.", metadata={"traceparent": "00-nonsense"})
    links = [span.links for span in collector.named("invoke_agent")]
    assert links == [(("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "caller"),), ()]


async def test_an_input_that_another_span_sends_again_is_the_same_input(collector: Collector) -> None:
    made = agent(text("Hi."))
    with provider() as (given, _):
        async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
            turns = list[str]()
            for name in ("first", "again"):
                with given.get_tracer("app").start_as_current_span(name):
                    turns.append((await runtime.session("s", agent=made).send("Go.", key="k")).id)
            turns.append((await runtime.session("s", agent=made).send("Go.", key="k")).id)
    assert turns == ["t1", "t1", "t1"]


# ---- measurements ----------------------------------------------------------------------------------------------------


async def test_tokens_durations_and_turns_are_measured(collector: Collector) -> None:
    await traced(collector, agent(call(look, item=1), text("One.")))
    tokens = {point["gen_ai.token.type"]: point["value"] for point in collector.measured["gen_ai.client.token.usage"]}
    assert tokens == {"input": 30, "output": 14}
    durations = {point["gen_ai.operation.name"] for point in collector.measured["gen_ai.client.operation.duration"]}
    assert durations == {"chat", "invoke_agent"}
    [turns] = collector.measured["holdfast.turns"]
    assert (turns["value"], turns["holdfast.status"], turns["gen_ai.agent.name"]) == (1, "completed", "clerk")


async def test_sessions_that_wait_are_measured(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    made = hf.Agent("a", model=ScriptedModel([call(look, item=1)]), tools=[look], policy=[hf.ask("look")])

    def waiting() -> object:
        found: Any = reader.get_metrics_data()
        scopes: list[Any] = [] if found is None else found.resource_metrics[0].scope_metrics
        every: list[Any] = [metric for scope in scopes for metric in scope.metrics]
        return next((metric.data.data_points[0].value for metric in every if metric.name == "holdfast.waiting"), None)

    async with hf.open(tmp_path / "s.db", agents=[made]) as runtime:
        await runtime.session("s", agent=made).send("Go.")
        await until(runtime.approvals)
    with provider() as (given, _):
        settings = Telemetry(tracer_provider=given, meter_provider=meters)
        async with hf.open(tmp_path / "s.db", agents=[made], telemetry=settings):
            await until(lambda: waiting() == 1)
    meters.shutdown()


async def test_measurements_can_be_turned_off(collector: Collector) -> None:
    await traced(collector, agent(text("Hi.")), metrics=False)
    assert collector.spans
    assert collector.measured == {}


# ---- a collector that does not take them -----------------------------------------------------------------------------


async def test_headers_are_sent(collector: Collector) -> None:
    await traced(collector, agent(text("Hi.")), headers={"x-api-key": "k-1"})
    assert collector.headers[0]["x-api-key"] == "k-1"


def test_headers_are_not_in_the_repr() -> None:
    assert "k-1" not in repr(Telemetry(headers={"x-api-key": "k-1"}))


async def test_the_environment_names_the_collector(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=a%20b")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    made = agent(text("Hi."))
    async with hf.open(None, agents=[made], telemetry=Telemetry()) as runtime:
        await runtime.run(made, "Go.")
    assert collector.one("chat").service == "shop"
    assert collector.headers[0]["x-api-key"] == "a b"


async def test_a_collector_that_is_busy_gets_the_spans_later(collector: Collector) -> None:
    made = agent(text("Hi."))
    collector.status = 503
    async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
        await runtime.run(made, "Go.")
        await collector.until(lambda found: found.refused)
        collector.status = 200
        await collector.until(lambda found: found.spans)
    assert len(collector.spans) == 2


async def test_a_collector_that_refuses_spans_loses_them_with_a_warning(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 400
    assert (await traced(collector, agent(text("Hi.")), metrics=False)).text == "Hi."
    assert "2 spans are dropped so far" in caplog.text


async def test_a_turn_does_not_wait_for_a_collector_that_hangs(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.gate.clear()
    made = agent(*[call(look, item=n) for n in range(5)], text("Done."))
    async with hf.open(None, agents=[made], telemetry=to(collector, queue=4, metrics=False)) as runtime:
        async with asyncio.timeout(PATIENCE):
            outcome = await runtime.run(made, "Go.")
            await until(lambda: "takes them too slowly" in caplog.text)
    assert outcome.text == "Done."
    assert "12 spans are dropped so far" in caplog.text  # the queue of 4 is lost as well when the runtime is closed


async def test_a_runtime_closes_in_time_without_its_collector(collector: Collector) -> None:
    collector.gate.clear()
    made = agent(text("Done."))
    async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
        await runtime.run(made, "Go.")
        begun = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - begun < 5


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["", "collector", "ftp://host", "http://", "http://host:99999", 7])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: Any) -> None:
    with pytest.raises(InvalidArgument, match="http"):
        Telemetry(endpoint=endpoint)


def test_a_queue_without_room_is_refused() -> None:
    with pytest.raises(InvalidNumber):
        Telemetry(queue=0)


async def test_telemetry_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="Telemetry"):
        async with hf.open(None, telemetry=True):  # pyright: ignore[reportArgumentType]
            pass


async def test_tracing_without_a_place_for_spans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with pytest.raises(TelemetryUnconfigured, match="endpoint"):
        async with hf.open(None, telemetry=Telemetry()):
            pass


async def test_tracing_without_opentelemetry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.telemetry.export", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(TelemetryMissing, match=r"holdfast\[otel\]"):
        async with hf.open(None, telemetry=Telemetry(endpoint="http://127.0.0.1:4318")):
            pass


def test_a_runtime_without_telemetry_does_not_load_opentelemetry() -> None:
    program = (
        "import asyncio, sys, holdfast as hf\n"
        "from holdfast.testing import ScriptedModel, text\n"
        "asyncio.run(hf.run(hf.Agent('a', model=ScriptedModel([text('hi')])), 'hello'))\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'google', 'holdfast.telemetry'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout == "[]\n"


async def test_a_damaged_journal_ends_its_trace_and_nothing_else(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.telemetry.spans import SpanFold

    add = SpanFold.add

    def fail(fold: SpanFold, seq: int, record: Any) -> Any:
        if fold.journal == "bad":
            message = "it can't be read"
            raise ValueError(message)
        return add(fold, seq, record)

    monkeypatch.setattr(SpanFold, "add", fail)
    made = agent(text("Hi."), text("Hi."))
    caplog.set_level(logging.ERROR)
    async with hf.open(None, agents=[made], telemetry=to(collector)) as runtime:
        outcomes = [await runtime.run(made, "Go.", session=name) for name in ("bad", "good")]
    assert [outcome.text for outcome in outcomes] == ["Hi.", "Hi."]
    assert {span["gen_ai.conversation.id"] for span in collector.spans} == {"good"}
    assert "the trace of 'bad' ends here" in caplog.text


async def test_a_trace_that_can_not_be_found_harms_no_turn(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        message = "no origin"
        raise ValueError(message)

    monkeypatch.setattr("holdfast.telemetry.journals.find_origin", fail)
    outcome = await traced(collector, agent(text("Hi.")))
    assert outcome.text == "Hi."
    assert "the trace of 's' can't be found: no origin" in caplog.text
