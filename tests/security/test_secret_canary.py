"""A secret that was used everywhere is found nowhere: not in the store, its mirror, events, logs, errors, or requests.

One story is told once: an agent whose tools give the secret away in every way there is. Then each place is searched.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from tests.behaviour.talk import SOON, until
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.testing import ScriptedModel, call, stream, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.runtime.runtime import Runtime
    from holdfast.testing.scripted import ScriptItem

CANARY = 'CaNaRy7xQ/4eC39+HqLyj"WDärjtT1zdp7dc'
"""It has what JSON, addresses and base64 each write in their own way."""
SESSION = "story"
LOG = logging.getLogger("holdfast.tools")
ASK = [hf.ask("pays")]


def _inner(shift: int) -> str:
    """The digits of base64 that tell of the secret alone, when so many bytes stand before it."""
    return b64encode(bytes(shift) + CANARY.encode()).decode()[shift + 2 : -4]


TRACES: dict[str, bytes] = {
    name: trace.encode()
    for name, trace in {
        "as it is": CANARY,
        "its first half": CANARY[:14],
        "its second half": CANARY[-14:],
        "in JSON": json.dumps(CANARY, ensure_ascii=False)[1:-1],
        "in JSON of ASCII": json.dumps(CANARY)[1:-1],
        "in a path": quote(CANARY),
        "in a query": quote(CANARY, safe=""),
        "in a form": quote_plus(CANARY),
        "in hex": CANARY.encode().hex(),
        "in hex with capitals": CANARY.encode().hex().upper(),
        **{f"in base64, {shift} bytes on": _inner(shift) for shift in range(3)},
        **{f"in base64 of addresses, {n} bytes on": _inner(n).replace("+", "-").replace("/", "_") for n in range(3)},
    }.items()
}


def traces_in(found: bytes) -> list[str]:
    """The forms of the secret that stand in these bytes."""
    return [name for name, trace in TRACES.items() if trace in found]


# ---- the tools: each gives the secret away in its own way ----


@dataclass(frozen=True)
class Account:
    """Something with the secret in it."""

    key: str


class Held:
    """Where the tool in the background waits."""

    def __init__(self) -> None:
        self.go = asyncio.Event()


def plain_tools() -> list[hf.Tool[..., Any]]:
    @hf.tool(read_only=True)
    async def gives(ctx: hf.Context) -> str:
        """Give it as it is."""
        return ctx.secrets["CANARY"]

    @hf.tool(read_only=True)
    def gives_in_a_thread(ctx: hf.Context) -> dict[str, Any]:
        """Give it deep inside of something, and as a name."""
        key = ctx.secrets["CANARY"]
        return {"headers": [{"Authorization": f"Bearer {key}"}], key: 1, "as json": json.dumps({"key": key})}

    @hf.tool(read_only=True)
    async def gives_coded(ctx: hf.Context) -> list[str]:
        """Give it in all the forms that are not it."""
        key = ctx.secrets["CANARY"]
        basic = [f"{user}:{key}".encode() for user in ("", "u", "us", "user")]
        coded = [*(b64encode(one).decode() for one in basic), *(urlsafe_b64encode(one).decode() for one in basic)]
        address = f"https://api.example/v1?key={quote(key, safe='')}&k={quote_plus(key)}#{quote(key)}"
        return [*coded, address, key.encode().hex(), key.encode().hex().upper(), repr(key)]

    @hf.tool(read_only=True)
    async def gives_much(ctx: hf.Context) -> str:
        """Give more than the model may see: wherever it is cut, it is cut inside of the secret."""
        return ctx.secrets["CANARY"] * 3_000

    @hf.tool(read_only=True)
    async def gives_many(ctx: hf.Context) -> list[str]:
        """Give more than the model may see, and not as one text."""
        return [ctx.secrets["CANARY"] * 100] * 30

    @hf.tool(read_only=True)
    async def gives_an_object(ctx: hf.Context) -> Account:
        """Give more than the model may see, in an object."""
        return Account(ctx.secrets["CANARY"] * 3_000)

    @hf.tool(read_only=True)
    async def gives_a_file(ctx: hf.Context) -> list[hf.File]:
        """Give files: one of text, and one that is none."""
        key = ctx.secrets["CANARY"].encode()
        return [hf.File(b"key=" + key, "text/plain"), hf.File(b"\x89\xff\x00" + key + b"\xfe", "image/png")]

    return [gives, gives_in_a_thread, gives_coded, gives_much, gives_many, gives_an_object, gives_a_file]


def failing_tools() -> list[hf.Tool[..., Any]]:
    @hf.tool(read_only=True)
    async def fails(ctx: hf.Context) -> str:
        """Raise with it."""
        raise ValueError(f"401 for key {ctx.secrets['CANARY']}")

    @hf.tool(read_only=True)
    async def fails_at_length(ctx: hf.Context) -> str:
        """Raise with so many words that they are cut."""
        raise ValueError(ctx.secrets["CANARY"] * 1_000)

    @hf.tool(read_only=True)
    async def fails_with_a_cause(ctx: hf.Context) -> str:
        """Raise because of it."""
        raise RuntimeError("it failed") from KeyError(ctx.secrets["CANARY"])

    @hf.tool(read_only=True)
    async def fails_in_a_group(ctx: hf.Context) -> str:
        """Raise several at once."""
        raise ExceptionGroup(ctx.secrets["CANARY"], [ValueError(ctx.secrets["CANARY"]), KeyError("x")])

    return [fails, fails_at_length, fails_with_a_cause, fails_in_a_group]


def telling_tools(held: Held) -> list[hf.Tool[..., Any]]:
    @hf.tool(read_only=True)
    async def logs(ctx: hf.Context) -> str:
        """Log it, with and without an error."""
        key = ctx.secrets["CANARY"]
        LOG.warning("using %s", key, extra={"headers": {"authorization": key}})
        try:
            raise ValueError(key)
        except ValueError:
            LOG.exception("it failed")
        return "logged"

    @hf.tool(read_only=True)
    async def reports(ctx: hf.Context) -> str:
        """Tell how far it is, with it."""
        ctx.progress(f"signed in with {ctx.secrets['CANARY']}", fraction=0.5)
        return "reported"

    @hf.tool(read_only=True)
    async def steps(ctx: hf.Context) -> str:
        """Hand it to a step of its own, which gives it back."""
        key = ctx.secrets["CANARY"]
        return await ctx.step("sign", "signed with {}".format, key)

    @hf.tool(read_only=True)
    async def waits(ctx: hf.Context, why: str) -> str:
        """Ask somebody, who answers with it."""
        return f"{why} {await ctx.wait('somebody')}"

    @hf.tool(read_only=True, inline_budget=0.02)
    async def works_on(ctx: hf.Context, note: str) -> str:
        """Go on in the background, and give it there."""
        key = ctx.secrets["CANARY"]
        await held.go.wait()
        ctx.progress(f"{note} {key * 100}")
        return f"worked with {key}"

    @hf.tool(read_only=True, inline_budget=0.02)
    async def fails_later(ctx: hf.Context) -> str:
        """Go on in the background, and fail there."""
        await held.go.wait()
        raise ValueError(f"401 for key {ctx.secrets['CANARY']}")

    return [logs, reports, steps, waits, works_on, fails_later]


# ---- the story ----


@dataclass
class Story:
    """Everything that was seen of the story from outside."""

    store: Path
    events: list[hf.Event] = field(default_factory=list[hf.Event])
    logged: list[str] = field(default_factory=list[str])
    outcomes: list[hf.TurnOutcome] = field(default_factory=list[hf.TurnOutcome])
    requests: list[hf.ModelRequest] = field(default_factory=list[hf.ModelRequest])
    told: list[str] = field(default_factory=list[str])
    """What the API answered: notifications, memory, waits, tasks, history."""
    lent: list[str] = field(default_factory=list[str])
    """What the tools got: the secret itself, or nothing here means anything."""
    on_disk: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The files while the runtime was still open."""


class _Keeper(logging.Handler):
    """A handler of the host: keeps what a formatter makes of each line, and all of its fields."""

    def __init__(self, kept: list[str]) -> None:
        super().__init__()
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(f"{self.format(record)} {vars(record)!r}")


def agent_of(held: Held, lent: list[str]) -> hf.Agent:
    @hf.tool(read_only=True)
    async def proves(ctx: hf.Context) -> str:
        """Tell nobody but the test."""
        lent.append(ctx.secrets["CANARY"])
        return "proved"

    tools = [proves, *plain_tools(), *failing_tools(), *telling_tools(held)]
    with_words = {"waits": {"why": CANARY}, "works_on": {"note": CANARY}}
    each = [call(tool.name, **with_words.get(tool.name, {})) for tool in tools]
    half = len(CANARY) // 2
    words = stream("The key is ", CANARY[:half], CANARY[half:], " and in base64 ", b64encode(CANARY.encode()).decode())
    script: list[ScriptItem] = [*each, words]
    said = [text(f"Heard {n}.") for n in range(20)]
    return hf.Agent("a", model=ScriptedModel([*script, *said]), tools=tools, instructions=f"Your key is {CANARY}.")


async def _tell_story(story: Story) -> None:
    held = Held()
    agent = agent_of(held, story.lent)
    async with hf.open(story.store, agents=[agent], secrets={"CANARY": "env:CANARY"}) as runtime:
        watching = asyncio.ensure_future(_watch(runtime, story))
        turn = await runtime.session(SESSION, agent=agent).send(f"Use {CANARY}, please.", key="first")
        await _answer(runtime)
        story.outcomes.append(await turn.outcome(timeout=SOON))
        held.go.set()
        await _tell_more(runtime, agent, story)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        story.on_disk.update(files_of(story.store))
    model = agent.model
    assert isinstance(model, ScriptedModel)
    story.requests += model.requests


async def _watch(runtime: Runtime, story: Story) -> None:
    async for event in runtime.events(0):
        story.events.append(event)


async def _answer(runtime: Runtime) -> None:
    """Answer what a tool waits for, with the secret."""
    await until(lambda: _is_waiting(runtime))
    (wait,) = await runtime.waits(SESSION)
    await runtime.resolve(runtime.wait_token(SESSION, wait.name), {"answer": CANARY})


async def _is_waiting(runtime: Runtime) -> bool:
    return bool(await runtime.sessions(status="waiting"))


async def _tell_more(runtime: Runtime, agent: hf.Agent, story: Story) -> None:
    """What a host does with the secret while and after the tools had it."""
    session = runtime.session(SESSION, agent=agent)
    await runtime.memory("notes").put("keys", f"the key is {CANARY}\nin a form: {quote_plus(CANARY)}")
    json_and_more: dict[str, Any] = {"summary": f"the key {CANARY}", "metadata": {"key": [CANARY]}}
    await runtime.memory("notes").put("json", {"key": [f"the key is\n{CANARY}"]}, **json_and_more)
    told = await runtime.notify(SESSION, f"rotate {CANARY}", f"old key: {CANARY}", key="rotate")
    story.told.append(repr(told))

    async def all_is_over() -> bool:
        tasks = [await runtime.tasks.task(line.id) for line in await runtime.tasks.list(session=SESSION)]
        return len(tasks) == 2 and all(task.over for task in tasks)

    await until(all_is_over)
    story.outcomes.append(await (await session.send("And now?")).outcome(timeout=SOON))
    queued = await session.send("Never mind.")
    await queued.cancel(f"{CANARY} was revoked")
    story.outcomes.append(await queued.outcome(timeout=SOON))
    story.told.append(repr(await session.history()))
    story.told += [repr(await runtime.memory("notes").get(key)) for key in ("keys", "json")]
    for line in await runtime.tasks.list(session=SESSION):
        state = await runtime.tasks.task(line.id)
        story.told += [repr(state), repr(await runtime.tasks.result(state))]


def files_of(store: Path) -> dict[str, bytes]:
    """The store, what SQLite keeps beside it, and the mirror of memory."""
    return {
        str(path.relative_to(store.parent)): path.read_bytes()
        for path in store.parent.rglob("*")
        if path.is_file() and path.name != "log"
    }


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY", CANARY)
        told = Story(tmp_path_factory.mktemp("canary") / "holdfast.db")
        keeper = _Keeper(told.logged)
        logging.getLogger().addHandler(keeper)
        try:
            asyncio.run(_tell_story(told))
        finally:
            logging.getLogger().removeHandler(keeper)
        yield told


# ---- that it was used at all ----


def test_the_tools_had_the_secret(story: Story) -> None:
    assert story.lent == [CANARY]


def test_every_call_of_the_story_was_made(story: Story) -> None:
    finished = {event.tool for event in story.events if isinstance(event, hf.ToolCallFinished)}
    assert {"gives", "gives_coded", "gives_much", "gives_a_file", "fails", "logs", "reports", "steps"} <= finished
    assert story.outcomes[0].status == "completed"


def test_what_stands_in_its_place_is_its_name(story: Story) -> None:
    assert story.outcomes[0].text == "The key is [secret CANARY] and in base64 [secret CANARY]"


# ---- where it must not be ----


def test_the_files_of_the_store_hold_no_trace_while_it_is_open(story: Story) -> None:
    assert "holdfast.db" in story.on_disk
    assert {name: found for name, body in story.on_disk.items() if (found := traces_in(body))} == {}


def test_the_files_of_the_store_and_the_mirror_hold_no_trace(story: Story) -> None:
    files = files_of(story.store)
    assert any(b"[secret CANARY]" in body for name, body in files.items() if ".memory" in name)
    assert {name: found for name, body in files.items() if (found := traces_in(body))} == {}


def test_no_event_tells_it(story: Story) -> None:
    leaks = {type(event).__name__: found for event in story.events if (found := traces_in(repr(event).encode()))}
    assert len(story.events) > 50
    assert leaks == {}


def test_the_words_that_were_streamed_do_not_tell_it_together(story: Story) -> None:
    streamed = "".join(event.text for event in story.events if isinstance(event, hf.TextDelta))
    assert "[secret CANARY]" in streamed
    assert traces_in(streamed.encode()) == []


def test_the_arguments_that_were_streamed_do_not_tell_it_together(story: Story) -> None:
    streamed = "".join(event.arguments for event in story.events if isinstance(event, hf.events.ToolCallDelta))
    assert traces_in(streamed.encode()) == []


def test_no_line_of_the_log_tells_it(story: Story) -> None:
    assert any("using [secret CANARY]" in line for line in story.logged)
    assert [line for line in story.logged if traces_in(line.encode())] == []


def test_no_outcome_tells_it(story: Story) -> None:
    assert traces_in(repr(story.outcomes).encode()) == []


def test_nothing_that_the_host_was_answered_tells_it(story: Story) -> None:
    assert [told for told in story.told if traces_in(told.encode())] == []


def test_the_model_was_never_told(story: Story) -> None:
    asked = [
        msgspec.json.encode([request.messages, request.instructions, request.tools]) + b"".join(request.files.values())
        for request in story.requests
    ]
    assert len(asked) > 10
    assert [found for body in asked if (found := traces_in(body))] == []


@pytest.mark.parametrize(
    "command",
    [
        ("show", SESSION),
        ("show", SESSION, "--json"),
        ("logs", SESSION),
        ("logs", SESSION, "--json"),
        ("ps", "-a", "--json"),
        ("tasks", "--json"),
        ("notifications", "--json"),
        ("inbox", "--json"),
        ("inbox", "--refused", "--json"),
        ("memory", "get", "notes", "keys"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_the_command_line_does_not_tell_it(
    story: Story, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(story.store))
    done = CliRunner().invoke(app, [*command])
    assert done.output
    assert traces_in(done.output.encode()) == []


def test_the_command_line_does_not_tell_what_a_task_gave(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(story.store))
    tasks = json.loads(CliRunner().invoke(app, ["tasks", "--json"]).output)
    shown = "".join(CliRunner().invoke(app, ["tasks", task["id"]]).output for task in tasks)
    assert "[secret CANARY]" in shown
    assert traces_in(shown.encode()) == []


# ---- names, errors and changes ----


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("CANARY", CANARY)
    return {"secrets": {"CANARY": "env:CANARY"}}


def _echoes(*words: str) -> hf.Agent:
    return hf.Agent("echo", model=ScriptedModel([text(word) for word in words] or [text("Heard.")]))


async def test_a_key_of_an_input_that_holds_it_is_refused(opened: dict[str, Any]) -> None:
    agent = _echoes()
    async with hf.open(None, agents=[agent], **opened) as runtime:
        with pytest.raises(hf.UsageError) as caught:
            await runtime.session("s", agent=agent).send("hello", key=f"order-{CANARY}")
    assert traces_in(str(caught.value).encode()) == []


def _told_in(folder: Path) -> list[str]:
    """The files that hold it."""
    return [file.name for file in folder.rglob("*") if file.is_file() and traces_in(file.read_bytes())]


async def test_an_input_that_is_refused_leaves_no_trace_of_it(
    opened: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    agent = hf.Agent("echo", model=ScriptedModel([]), admission=hf.Admission(max_chars=9))
    async with hf.open(tmp_path / "s.db", agents=[agent], **opened) as runtime:
        with pytest.raises(hf.UsageError):
            await runtime.session("s", agent=agent).send(f"it is {CANARY}")
        assert [found.error for found in await runtime.refusals("s")] == ["InputTooLarge"]
    assert _told_in(tmp_path) == []
    assert traces_in(caplog.text.encode()) == []


async def test_a_session_whose_name_holds_it_is_refused(opened: dict[str, Any]) -> None:
    agent = _echoes()
    async with hf.open(None, agents=[agent], **opened) as runtime:
        with pytest.raises(hf.UsageError) as caught:
            await runtime.session(f"for {CANARY}", agent=agent).send("hello")
    assert traces_in(str(caught.value).encode()) == []


async def test_a_secret_that_nobody_gave_is_an_error_that_names_those_there_are(opened: dict[str, Any]) -> None:
    @hf.tool(read_only=True)
    async def asks(ctx: hf.Context) -> str:
        """Ask for another one."""
        return ctx.secrets["OTHER"]

    agent = hf.Agent("a", model=ScriptedModel([call("asks"), text("Done.")]), tools=[asks])
    async with hf.open(None, agents=[agent], **opened) as runtime:
        await runtime.run(agent, "go", session="s")
        history = repr(await runtime.session("s").history())
    assert "there is no secret 'OTHER' here: there are CANARY" in history


async def test_a_secret_that_was_changed_is_hidden_in_both_forms(
    opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lent: list[str] = []

    @hf.tool(read_only=True)
    async def uses(ctx: hf.Context) -> str:
        """Use it as it is now."""
        lent.append(ctx.secrets["CANARY"])
        monkeypatch.setenv("CANARY", "another-value-of-it")
        return " ".join(lent)

    agent = hf.Agent("a", model=ScriptedModel([call("uses"), call("uses"), text("Done.")]), tools=[uses])
    async with hf.open(None, agents=[agent], **opened) as runtime:
        await runtime.run(agent, "go", session="s")
        history = repr(await runtime.session("s").history())
    assert lent == [CANARY, "another-value-of-it"]
    assert "[secret CANARY] [secret CANARY]" in history
    assert not any(value in history for value in lent)


async def test_a_step_that_was_given_it_is_the_same_step_after_it_was_changed(
    opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[str] = []

    @hf.tool(read_only=True)
    async def signs(ctx: hf.Context) -> str:
        """Sign, then ask somebody."""
        await ctx.step("sign", signed.append, ctx.secrets["CANARY"])
        return str(await ctx.wait("somebody"))

    agent = hf.Agent("a", model=ScriptedModel([call("signs"), text("Done.")]), tools=[signs])
    async with hf.open(None, agents=[agent], **opened) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await until(lambda: _is_waiting(runtime))
        monkeypatch.setenv("CANARY", "another-value-of-it")
        await _answer(runtime)
        outcome = await turn.outcome(timeout=SOON)
    assert (outcome.status, signed) == ("completed", [CANARY])


async def test_a_step_that_gives_it_gives_its_name_also_the_first_time(opened: dict[str, Any]) -> None:
    given: list[str] = []

    @hf.tool(read_only=True)
    async def signs_in(ctx: hf.Context) -> str:
        """Ask a step for what can't be recorded."""
        key = ctx.secrets["CANARY"]
        given.append(await ctx.step("sign in", lambda: key))
        return "done"

    agent = hf.Agent("a", model=ScriptedModel([call("signs_in"), text("Done.")]), tools=[signs_in])
    async with hf.open(None, agents=[agent], **opened) as runtime:
        await runtime.run(agent, "go")
    assert given == ["[secret CANARY]"]


async def test_an_approval_neither_shows_it_nor_keeps_it(opened: dict[str, Any], tmp_path: Path) -> None:
    made: list[str] = []

    @hf.tool
    async def pays(key: str) -> str:
        """Pay with a key that the model knows."""
        made.append(key)
        return key

    script: list[ScriptItem] = [call("pays", key=CANARY), text("Done.")]
    agent = hf.Agent("a", model=ScriptedModel(script), tools=[pays], policy=ASK)
    store = tmp_path / "s.db"
    async with hf.open(store, agents=[agent], **opened) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send("go")
        await until(lambda: _is_waiting(runtime))
        (approval,) = await runtime.approvals()
        await runtime.approve(approval.id, by="ops")
        outcome = await turn.outcome(timeout=SOON)
    files = b"".join(files_of(store).values())
    assert (outcome.status, made) == ("completed", ["[secret CANARY]"])
    assert traces_in(repr(approval).encode() + files) == []


async def test_a_person_can_not_put_it_into_the_arguments_of_a_call(opened: dict[str, Any]) -> None:
    @hf.tool
    async def pays(key: str) -> str:
        """Pay with a key."""
        return key

    agent = hf.Agent("a", model=ScriptedModel([call("pays", key="x"), text("Done.")]), tools=[pays], policy=ASK)
    async with hf.open(None, agents=[agent], **opened) as runtime:
        await runtime.session(SESSION, agent=agent).send("go")
        await until(lambda: _is_waiting(runtime))
        (approval,) = await runtime.approvals()
        with pytest.raises(hf.UsageError) as caught:
            await runtime.approve(approval.id, arguments={"key": CANARY})
        assert [each.id for each in await runtime.approvals()] == [approval.id]
    assert traces_in(str(caught.value).encode()) == []


async def test_what_a_turn_was_told_is_what_its_replay_is_told(opened: dict[str, Any], tmp_path: Path) -> None:
    @hf.tool(read_only=True)
    async def gives(ctx: hf.Context) -> dict[str, str]:
        """Give it."""
        return {"key": ctx.secrets["CANARY"]}

    first = hf.Agent("a", model=ScriptedModel([call("gives"), text("One."), text("Two.")]), tools=[gives])
    async with hf.open(tmp_path / "s.db", agents=[first], **opened) as runtime:
        await runtime.run(first, "go", session="s")
    again = hf.Agent("a", model=ScriptedModel([call("gives"), text("One."), text("Two.")]), tools=[gives])
    async with hf.open(tmp_path / "s.db", agents=[again], **opened) as runtime:
        await runtime.run(again, "on", session="s")
    live, replayed = first.model, again.model
    assert isinstance(live, ScriptedModel)
    assert isinstance(replayed, ScriptedModel)
    assert replayed.requests[0].messages[: len(live.requests[1].messages)] == live.requests[1].messages


async def test_without_secrets_nothing_is_changed() -> None:
    agent = _echoes(CANARY)
    async with hf.open(None, agents=[agent]) as runtime:
        assert (await runtime.run(agent, "go")).text == CANARY
