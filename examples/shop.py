"""The promise, to look at: an agent is killed three times in the middle of an order, and does nothing twice.

A shop agent works through an order with six tools. This program runs it in a process of its own, kills that process
with SIGKILL at random moments, starts another one, and in the end compares what the outside world saw with what the
journal says. The world is a file that the tools write to, one line for every request, beside the store.

    python examples/shop.py [--seed N] [--model provider:name]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import holdfast as hf
from holdfast.messages import StreamEnd
from holdfast.runtime.changes import events_of
from holdfast.testing import ScriptedModel, call, check, delayed, stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.messages import StreamEvent
    from holdfast.store import Store

SESSION: Final = "order-1042"
PROMPT: Final = "Order 1042 has come in. Please handle it."
INSTRUCTIONS: Final = (
    "You work in a bookshop. For each order: look up the customer and the stock of every title, reserve the books, "
    "charge the card, book a courier, send the receipt, and say in one sentence what you did."
)
BOOKS: Final = ["Emma", "Dracula", "Ulysses"]
MODEL: Final = "the model"
KEYED: Final = frozenset(("reserve_book", "send_receipt"))
"""Tools of which the other side does the same thing once, however often it is asked under the same key."""
SIDE_EFFECTS: Final = KEYED | {"charge_card", "book_courier"}
KILLS: Final = 3
WIDTH: Final = 96
SIGNS: Final = 18
"""The scripted agent gives 21 signs of progress: answers, results, and things done to the world. Whoever is to be
killed three times must be killed for the first time before the last few of them."""
LINGER: Final = 0.12
"""How long after a sign of progress the kill comes at the most, in seconds: less than any step takes."""
PATIENCE: Final = 60.0
"""The longest that one process may take, in seconds."""


# ---- the world: a file beside the store ------------------------------------------------------------------------------


class Request(NamedTuple):
    """One request that reached the world: which tool, for which call, under which key, from which process."""

    tool: str
    call: str
    key: str
    pid: int
    answer: dict[str, Any]


class World:
    """Warehouse, card company, courier and mail server. It knows nothing of journals."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, tool: str, call: str, key: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Do something to the world. One write: a kill leaves a whole line or none."""
        line = json.dumps(Request(tool, call, key, os.getpid(), answer)) + "\n"
        handle = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        return answer

    def requests(self) -> list[Request]:
        """Everything that ever reached it."""
        if not self._path.exists():
            return []
        return [Request(*json.loads(line)) for line in self._path.read_text(encoding="utf-8").splitlines()]

    def find(self, key: str) -> dict[str, Any] | None:
        """What it answered under this key before, if it was asked."""
        return next((request.answer for request in self.requests() if request.key == key), None)


async def think() -> None:
    """The time that real systems take."""
    await asyncio.sleep(random.uniform(0.1, 0.25))


# ---- the agent: six tools, and a model -------------------------------------------------------------------------------


def shop_agent(world: World, model: hf.Model) -> hf.Agent:
    """The agent of the shop. Its tools say what may happen to a call that a crash interrupted."""

    async def acted(ctx: hf.Context, **answer: Any) -> dict[str, Any]:  # any JSON
        await think()
        done = world.take(ctx.tool, ctx.call_id, ctx.idempotency_key, answer)
        await think()  # whoever is killed here has acted, and has told nobody
        return done

    async def look(ctx: hf.Context, **_: Any) -> dict[str, Any]:  # the arguments of the call
        """After a crash: ask the other side whether the interrupted call took effect."""
        await think()
        done = world.find(ctx.idempotency_key)
        if done is None:
            raise hf.NotDone
        return done

    # These only read. They run side by side, and may run again.
    @hf.tool(read_only=True)
    async def find_customer(order: int) -> dict[str, Any]:
        """Who ordered, what, and how it is paid."""
        await think()
        return {"order": order, "name": "Ada", "card": "card-7", "books": BOOKS, "cents": 3720}

    @hf.tool(read_only=True)
    async def check_stock(title: str) -> dict[str, Any]:
        """How many copies of a book there are."""
        await think()
        return {"title": title, "copies": len(title)}

    # The warehouse and the mail server honour idempotency keys: asking again with the same key is safe.
    @hf.tool(idempotent=True)
    async def reserve_book(ctx: hf.Context, title: str) -> dict[str, Any]:
        """Put a copy of a book aside."""
        return await acted(ctx, reserved=title)

    @hf.tool(idempotent=True)
    async def send_receipt(ctx: hf.Context, to: str) -> dict[str, Any]:
        """Send the receipt by mail."""
        return await acted(ctx, sent_to=to)

    # These do not: a second request would be a second charge, a second courier. So nobody repeats them; after a crash
    # `look` finds out first.
    @hf.tool(reconcile=look)
    async def charge_card(ctx: hf.Context, card: str, cents: int) -> dict[str, Any]:
        """Charge a card."""
        return await acted(ctx, charged=cents, card=card)

    @hf.tool(reconcile=look)
    async def book_courier(ctx: hf.Context, order: int) -> dict[str, Any]:
        """Have the parcel picked up."""
        return await acted(ctx, tracking=f"HF-{order}-1")

    return hf.Agent(
        "shop",
        model=Metered(model, world),
        instructions=INSTRUCTIONS,
        tools=[find_customer, check_stock, reserve_book, charge_card, book_courier, send_receipt],
        policy=[hf.allow("*")],
    )


class Metered:
    """A model, and a meter: each whole answer that it gave is paid for, so the world counts it."""

    def __init__(self, model: hf.Model, world: World) -> None:
        self.name = model.name
        self._model = model
        self._world = world

    async def stream(self, request: hf.ModelRequest) -> AsyncIterator[StreamEvent]:
        """What the model says."""
        async for event in self._model.stream(request):
            if isinstance(event, StreamEnd):
                self._world.take(MODEL, f"answer {request.position}", "", {})
            yield event


def scripted() -> ScriptedModel:
    """A model that needs no key. It answers by the place in the conversation, so a restart does not confuse it."""

    def goodbye(request: hf.ModelRequest) -> Any:  # what a script may say
        messages = [message for message in request.messages if isinstance(message, hf.ToolMessage)]
        results = {result.name: result.content for message in messages for result in message.results}
        tracking = results["book_courier"]["tracking"]
        return stream("Order 1042 is paid ", "and on its way: ", f"{tracking}.")

    answers: list[Any] = [
        [call("find_customer", order=1042), *[call("check_stock", title=title) for title in BOOKS]],
        [call("reserve_book", title=title) for title in BOOKS],
        call("charge_card", card="card-7", cents=3720),
        [call("book_courier", order=1042), call("send_receipt", to="Ada")],
        goodbye,
    ]
    return ScriptedModel([delayed(0.25, answer) for answer in answers], name="scripted:shop")


async def work(folder: Path, model: hf.Model) -> None:
    """What the killed process does, and the one after it. There is no code for recovery."""
    agent = shop_agent(World(folder / "world"), model)
    async with hf.open(folder / "shop.db", agents=[agent]) as runtime:
        turn = await runtime.session(SESSION, agent=agent).send(PROMPT, key="order-1042")  # the same key: the same turn
        await turn.outcome()


# ---- what happened: the journal beside the world ---------------------------------------------------------------------


@dataclass(slots=True)
class Step:
    """One line of the timeline."""

    what: str
    ms: int
    process: str
    tokens: str = ""
    saw: str = ""


@dataclass(slots=True)
class Story:
    """The turn as the journal tells it so far, compared with what the world saw."""

    lines: list[Step | str] = field(default_factory=list["Step | str"])
    processes: dict[str, str] = field(default_factory=dict[str, str])
    asked: dict[str, hf.ToolCallRequested] = field(default_factory=dict[str, hf.ToolCallRequested])
    finished: dict[str, hf.ToolCallFinished] = field(default_factory=dict[str, hf.ToolCallFinished])
    answers: int = 0
    tokens: int = 0
    text: str = ""
    status: str = "unfinished"

    @property
    def process(self) -> str:
        """The letter of the process that is at work."""
        return list(self.processes.values())[-1] if self.processes else "-"

    @property
    def under_way(self) -> list[hf.ToolCallRequested]:
        """Calls that the model asked for and that have no result."""
        return [call for name, call in self.asked.items() if name not in self.finished]


def tell(events: list[hf.Event], requests: list[Request]) -> Story:
    """Read the events of the turn as a story."""
    story = Story()
    message: hf.MessageCommitted | None = None
    for event in events:
        match event:
            case hf.TurnStarted() | hf.events.TurnResumed():
                before = story.process
                story.processes.setdefault(event.by or "", chr(ord("A") + len(story.processes)))
                if before != "-":
                    story.lines.append(f"{before} was killed; {story.process} goes on from here")
            case hf.ToolCallRequested():
                story.asked[event.call] = event
            case hf.MessageCommitted(message=hf.AssistantMessage()):
                message = event
            case hf.events.UsageRecorded() if message is not None:
                _add_answer(story, message, event.usage)
            case hf.ToolCallFinished():
                story.finished[event.call] = event
                story.lines.append(_tool_step(story, event, requests))
            case hf.TurnCompleted() | hf.TurnFailed() | hf.TurnCancelled() | hf.TurnLimit():
                story.status = type(event).__name__.removeprefix("Turn").lower()
            case _:
                pass
    return story


def _add_answer(story: Story, event: hf.MessageCommitted, usage: hf.Usage) -> None:
    message = event.message
    if not isinstance(message, hf.AssistantMessage):
        return
    names = [call.name for call in message.calls]
    wanted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)).replace("1 x ", "")
    story.answers += 1
    story.tokens += usage.total
    story.text = message.text
    said = f"asks for {wanted}" if names else "answers"
    tokens = f"{usage.input} + {usage.output}"
    story.lines.append(Step(f"{story.answers}  model  {said}", event.ms, story.process, tokens))


def _tool_step(story: Story, event: hf.ToolCallFinished, requests: list[Request]) -> Step:
    call = story.asked[event.call]
    arguments = ", ".join(str(value) for value in (call.arguments or {}).values())
    state = "" if event.state == "ok" else f" [{event.state}]"
    saw = _seen(call, [request for request in requests if request.call == call.call_id], story)
    return Step(f"   tool   {event.tool}({arguments}){state}", event.ms, story.process, saw=saw)


def _seen(call: hf.ToolCallRequested, requests: list[Request], story: Story) -> str:
    """What the world saw of a call."""
    if not requests:
        return ""
    first = story.processes.get(f"pid {requests[0].pid}", "?")
    if len(requests) > 1:
        return f"{done(call.tool, requests)}x: asked {len(requests)}x under one key"
    return "1x" if first == story.process else f"1x: {first} did it, {story.process} found out"


def done(tool: str, requests: list[Request]) -> int:
    """How often something was really done: once for each key, where the other side honours keys."""
    return len({request.key for request in requests}) if tool in KEYED else len(requests)


def broken(story: Story, requests: list[Request]) -> list[str]:
    """Everything that speaks against the promise."""
    found: list[str] = []
    for name, asked in story.asked.items():
        ended = story.finished.get(name)
        times = done(asked.tool, [request for request in requests if request.call == asked.call_id])
        if ended is None:
            found.append(f"{asked.tool} has no result")
        elif times > 1:
            found.append(f"{asked.tool} was done {times} times")
        elif times == 0 and ended.state == "ok" and asked.tool in SIDE_EFFECTS:
            found.append(f"{asked.tool} is recorded as done, and the world knows nothing of it")
    known = {call.call_id for call in story.asked.values()}
    found += [f"{request.tool} was done and is not recorded" for request in requests if request.call not in known]
    return found


# ---- the demo: start, kill, start again, compare ---------------------------------------------------------------------


class Demo:
    """Watches the store and the world, and kills whoever works on them."""

    def __init__(self, store: Store, folder: Path, model: str | None) -> None:
        self._store = store
        self._folder = folder
        self._model = model
        self._world = World(folder / "world")

    async def events(self) -> list[hf.Event]:
        """What the journal says by now."""
        found: list[hf.Event] = []
        try:
            async for entry in self._store.read_all(SESSION):
                found += events_of(SESSION, entry.seq, entry.record, str(entry.seq))
        except hf.UsageError:  # there is no session yet
            return []
        return found

    def requests(self) -> list[Request]:
        """What the world saw of the tools."""
        return [request for request in self._world.requests() if request.tool != MODEL]

    def paid(self) -> int:
        """How many answers the model gave."""
        return len(self._world.requests()) - len(self.requests())

    async def story(self) -> Story:
        """The turn so far."""
        return tell(await self.events(), self.requests())

    async def _signs(self) -> int:
        """How far the work is: answers, results, and things done to the world."""
        story = await self.story()
        return story.answers + len(story.finished) + len({request.call for request in self.requests()})

    async def start(self) -> asyncio.subprocess.Process:
        """An agent in a process of its own."""
        model = [] if self._model is None else ["--model", self._model]
        return await asyncio.create_subprocess_exec(sys.executable, __file__, "--worker", str(self._folder), *model)

    async def kill_one(self, signs: int, linger: float) -> None:
        """Start a process and kill it when there are so many signs of progress, one of its own at least."""
        goal = max(signs, await self._signs() + 1)
        worker = await self.start()
        async with asyncio.timeout(PATIENCE):
            while worker.returncode is None and await self._signs() < goal:
                await self._store.changed(self._store.version, 0.005)
        await asyncio.sleep(linger)
        if worker.returncode is None:
            worker.send_signal(signal.SIGKILL)
        killed = await worker.wait() == -signal.SIGKILL
        self._report(await self.story(), worker.pid, killed=killed)

    def _report(self, story: Story, pid: int, *, killed: bool) -> None:
        name = f"  {story.process}  process {pid}"
        if not killed:
            print(f"{name}: was done before it could be killed")
            return
        acted = {request.call for request in self.requests()}
        doubtful = [call.tool for call in story.under_way if call.call_id in acted]
        if doubtful:
            where = f"in the middle of {doubtful[0]}: done in the world, not yet in the journal"
        elif story.under_way:
            where = f"during {story.under_way[0].tool}, before it did anything"
        else:
            where = "while the model was thinking"
        print(f"{name}: SIGKILL {where}", flush=True)

    async def finish(self) -> int:
        """Start a process and leave it alone; its exit code."""
        worker = await self.start()
        async with asyncio.timeout(PATIENCE):
            status = await worker.wait()
        print(f"  {(await self.story()).process}  process {worker.pid}: left alone, ended with exit code {status}")
        return status


async def demo(model: str | None, seed: int) -> int:
    """Kill, restart, compare; the exit code says whether the promise was kept."""
    choose = random.Random(seed)
    print(f"An agent handles an order: six tools, some of them side by side. Its process is killed {KILLS} times.")
    print(f"Every process runs the same code from the top; none knows of the others.  (seed {seed})\n")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
        folder = Path(name)
        async with hf.open_store(folder / "shop.db") as store:
            shown = Demo(store, folder, model)
            for signs in sorted(choose.sample(range(1, SIGNS), KILLS)):
                await shown.kill_one(signs, choose.uniform(0, LINGER))
            status = await shown.finish()
            story = await shown.story()
            wrong = broken(story, shown.requests()) + [str(found) for found in await check(store)]
            if status != 0 or story.status != "completed":
                wrong.append(f"the turn is {story.status}, the last process ended with {status}")
            print_timeline(story)
            print_verdict(story, shown, wrong, seed)
    return 1 if wrong else 0


def print_timeline(story: Story) -> None:
    """The turn, step by step."""
    print(f"\n  {'step':<49}{'took':>7}  {'tokens':>7}  {'by':<2} in the world")
    print(f"  {'-' * WIDTH}")
    for line in story.lines:
        if isinstance(line, str):
            print(f"  {f'   {line}   ':~^{WIDTH}}")
        else:
            row = f"  {line.what:<49.49}{line.ms / 1000:>5.2f} s  {line.tokens:>7}  {line.process:<2} {line.saw}"
            print(row.rstrip())
    print(f'\n  "{story.text}"')


def print_verdict(story: Story, shown: Demo, wrong: list[str], seed: int) -> None:
    """Whether the promise was kept, and the figures."""
    effects = {request.call for request in shown.requests()}
    print(f"\n  {len(effects)} side effects by {len(story.processes)} processes, {story.tokens} tokens.", end=" ")
    again = shown.paid() - story.answers
    lost = "" if again == 0 else f" ({again} came in the very moment of a kill, and was asked for again)"
    print(f"Model answers: {story.answers} recorded, {shown.paid()} paid for{lost}.")
    for line in wrong:
        print(f"  WRONG: {line}")
    print(f"  BROKEN. Again with: --seed {seed}" if wrong else "  Every side effect exactly once.")


def main() -> int:
    """Parse the arguments; be the demo, or one of its processes."""
    parser = argparse.ArgumentParser(description="Kill an agent again and again; see that nothing is lost or repeated.")
    parser.add_argument("--seed", type=int, default=None, help="repeat the same choice of moments")
    parser.add_argument("--model", default=None, help="provider:name of a real model, instead of the scripted one")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        model = scripted() if arguments.model is None else hf.model(arguments.model)
    except hf.UsageError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    if arguments.worker is not None:
        asyncio.run(work(arguments.worker, model))
        return 0
    seed = random.randrange(10_000) if arguments.seed is None else arguments.seed
    return asyncio.run(demo(arguments.model, seed))


if __name__ == "__main__":
    sys.exit(main())
