"""A coding agent in the terminal: it reads and edits the files of one folder, and asks before it runs a command.

    python examples/coding_agent.py                       # a sample project with a failing test, and a scripted model
    CODING_AGENT_MODEL=anthropic:claude-sonnet-4-6 python examples/coding_agent.py path/to/project
    echo "Fix the failing test." | python examples/coding_agent.py --yes

Type while it works to steer it. Ctrl-C stops what it does, Ctrl-D leaves. Kill it whenever you like: the next start
goes on where it was, and says with what.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.testing import ScriptedModel, call, paced, stream
from holdfast.toolkits.shell import sandbox_problem

INSTRUCTIONS = """You work on the project in this folder. Make a plan before you change anything, run its tests before
and after, and say in a few sentences what you did. If a person denies a command, do without it."""
DIM, RED, PLAIN = ("\033[2m", "\033[31m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


def coder(workspace: Path, model: hf.Model | str) -> hf.Agent[object, str]:
    """The agent: files, a plan, and commands in a sandbox, if this machine has one."""
    tools: list[Any] = [hf.tools.files(workspace), hf.tools.plan()]
    problem = sandbox_problem()
    if problem is None:
        tools.append(hf.tools.shell(workspace, profile="write"))
    else:
        print(f"{RED}The agent can't run commands here: {problem}{PLAIN}")
    policy = [hf.ask("shell"), hf.allow("*")]
    limits = hf.Limits(steps=200)
    return hf.Agent("coder", model=model, instructions=INSTRUCTIONS, tools=tools, policy=policy, limits=limits)


class Terminal:
    """One session on the terminal: prints its events, and takes lines as requests, as steering, or as answers."""

    def __init__(self, runtime: hf.Runtime, session: hf.Session[str], *, ask: bool, yes: bool) -> None:
        self._runtime = runtime
        self._session = session
        self._ask = ask
        self._yes = yes
        self._asked: hf.Approval | None = None
        self._answered: set[str] = set()
        self._column = 0
        self.ended: asyncio.Queue[hf.Event] = asyncio.Queue()

    async def print_events(self, after: int) -> None:
        """Print all that happens from now on."""
        await self._ask_about_calls()
        async for event in self._session.events(after):
            await self._print_event(event)

    async def _print_event(self, event: hf.Event) -> None:
        match event:
            case hf.TextDelta():
                self._write(event.text)
            case hf.ToolCallRequested():
                self._line(f"-> {event.tool} {json.dumps(event.arguments, ensure_ascii=False)[:200]}", DIM)
            case hf.events.ToolCallProgress(note=str(note)):
                self._line("\n".join(f"   {line}" for line in note.splitlines()), DIM)
            case hf.ToolCallFinished() if event.state != "ok":
                self._line(f"<- {event.tool}: {event.state}, {str(event.content)[:200]}", RED)
            case hf.events.ApprovalRequested() | hf.TurnWaiting() | hf.events.ToolCallStarted():
                await self._ask_about_calls()
            case hf.TurnCompleted():
                self._line(f"({event.steps} steps, {event.usage.total} tokens)", DIM)
                self._end(event)
            case hf.TurnFailed() | hf.TurnCancelled() | hf.TurnLimit():
                self._line(f"{type(event).__name__.removeprefix('Turn').lower()}: {event.message}", RED)
                self._end(event)
            case _:
                pass

    async def take(self, line: str) -> None:
        """A line of the person: the answer to a question, or a request, which enters the turn that runs."""
        self._column = 0
        word, _, reason = line.strip().partition(" ")
        if self._asked is None:
            if word:
                await self._session.send(line, steer=True)
            else:
                self.prompt()
        elif word.lower() in {"y", "yes", "n", "no", "a", "always"}:
            await self._answer(self._asked, word[0].lower(), reason)
        else:
            self._asked = None  # it asks again
        await self._ask_about_calls()

    async def _answer(self, approval: hf.Approval, word: str, reason: str) -> None:
        self._asked = None
        self._answered.add(approval.id)
        try:
            if word == "n":
                await self._runtime.deny(approval.id, reason)
            else:
                always = approval.always if word == "a" else None
                await self._runtime.approve(approval.id, digest=approval.digest, always=always)
        except (hf.ApprovalClosed, hf.errors.ApprovalUnknown) as error:  # another terminal was quicker
            self._line(str(error), RED)

    async def _ask_about_calls(self) -> None:
        """Show the next call that needs a person. Where nobody can answer, it is denied."""
        waiting = {one.id: one for one in await self._runtime.approvals(self._session.id)}
        if self._asked is not None and self._asked.id not in waiting:  # another terminal answered it
            self._asked = None
        for approval in waiting.values():
            if approval.id in self._answered or self._asked is not None:
                continue
            if self._yes:
                await self._answer(approval, "y", "")
            elif not self._ask:
                await self._answer(approval, "n", "nobody is at a terminal; --yes allows all commands")
            else:
                self._asked = approval
                always = "" if approval.always is None else ", a(lways)"
                self._line(f"Run this? {json.dumps(approval.arguments, ensure_ascii=False)}")
                self._line(f"y(es), n(o) [REASON]{always}")

    def _end(self, event: hf.Event) -> None:
        self._asked = None
        self.ended.put_nowait(event)
        self.prompt()

    def prompt(self) -> None:
        """Invite a person to say something."""
        if self._ask:
            self._write("> ")

    async def interrupt(self) -> None:
        """Stop what the agent does; the program goes on."""
        try:
            stopped = await self._session.cancel("interrupted from the terminal")
        except hf.errors.JournalMissing:  # nothing was said yet
            stopped = "too_late"
        if stopped == "too_late":
            self._line("(Ctrl-D leaves)", DIM)
            self.prompt()

    def _write(self, words: str) -> None:
        clean = "".join(one if one.isprintable() or one == "\n" else "?" for one in words)  # no control sequences
        self._column = len(clean.rpartition("\n")[2]) + (0 if "\n" in clean else self._column)
        print(clean, end="", flush=True)

    def _line(self, words: str, color: str = "") -> None:
        if self._column:
            self._write("\n")
        print(color, end="")
        self._write(words)
        print(PLAIN)
        self._column = 0


async def last_session(store: Path) -> tuple[str, int, str] | None:
    """The session of the last start, its last record, and what was interrupted in it: read before anything goes on."""
    async with hf.open(store, drive=False) as runtime:
        lines = await runtime.sessions(agent="coder", limit=1)
        if not lines:
            return None
        session, interrupted = runtime.session(lines[0].id), ""
        turn, history = await session.open_turn(), await session.history()
        if turn is not None:
            said = [one.text for one in history if isinstance(one, hf.UserMessage) and one.origin == "user"]
            calls = history[-1].calls if history and isinstance(history[-1], hf.AssistantMessage) else ()
            middle = ", ".join(f"{one.name} {json.dumps(one.arguments)[:80]}" for one in calls) or "thinking"
            match await turn.status():
                case "queued":
                    interrupted = "It was interrupted before it began with your last request. It begins now."
                case "waiting":
                    interrupted = f"It was interrupted at {said[-1]!r}, waiting for your answer about: {middle}."
                case _:
                    interrupted = f"It was interrupted at {said[-1]!r}, in the middle of: {middle}. It goes on."
    return session.id, lines[0].head, interrupted


def read_lines(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str | None]) -> None:
    """Read standard input in a thread of its own, for terminals, pipes and files alike. None is its end."""
    rest = b""
    while chunk := os.read(0, 65_536):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))
    for last in [rest.decode(errors="replace")] * bool(rest) + [None]:
        loop.call_soon_threadsafe(lines.put_nowait, last)


async def talk(workspace: Path, model: hf.Model | str, *, new: bool, yes: bool) -> int:
    """Go on with the last session, or begin one, until the input ends; the exit code."""
    store = workspace / ".holdfast" / "coder.db"
    store.parent.mkdir(exist_ok=True)
    agent = coder(workspace, model)
    before = None if new else await last_session(store)
    name, head, interrupted = before or (time.strftime("coding-%Y%m%d-%H%M%S"), 0, "")
    live = sys.stdin.isatty()
    print(f"{DIM}session {name}{PLAIN}" if before is None else f"{DIM}going on with session {name}{PLAIN}")
    if interrupted or live:
        print(interrupted or f"{DIM}Ctrl-C stops the agent, Ctrl-D leaves{PLAIN}", flush=True)
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=read_lines, args=(loop, lines), daemon=True).start()
    async with hf.open(store, agents=[agent]) as runtime, asyncio.TaskGroup() as group:
        terminal = Terminal(runtime, runtime.session(name, agent=agent), ask=live, yes=yes)
        printing = group.create_task(terminal.print_events(head))
        loop.add_signal_handler(signal.SIGINT, lambda: group.create_task(terminal.interrupt()))
        if not interrupted:
            terminal.prompt()
        ended: hf.Event | None = await terminal.ended.get() if interrupted and not live else None
        while (line := await lines.get()) is not None:
            await terminal.take(line)
            if not live and line.strip():  # one request after the other
                ended = await terminal.ended.get()
        printing.cancel()
    return 0 if ended is None or isinstance(ended, hf.TurnCompleted) else 1


# ---- a project with a failing test, and a model that needs no key ----------------------------------------------------


def make_sample(workspace: Path) -> None:
    """Write a small project of which one test fails."""
    workspace.mkdir(parents=True)
    (workspace / "prices.py").write_text(
        'def total(cents, discount=0):\n    """The sum, less a discount in percent."""\n    return sum(cents)\n'
    )
    (workspace / "test_prices.py").write_text(
        "import unittest\n\nfrom prices import total\n\n\nclass Prices(unittest.TestCase):\n"
        "    def test_sum(self):\n        self.assertEqual(total([500, 250]), 750)\n\n"
        "    def test_discount(self):\n        self.assertEqual(total([1000], discount=10), 900)\n"
    )


def scripted() -> ScriptedModel:
    """A model that repairs the sample project. It looks at the results so far, so it can be stopped anywhere."""

    def work(request: hf.ModelRequest) -> Any:  # what a script may say
        results: list[Any] = []
        said: list[str] = []
        for message in request.messages:
            if isinstance(message, hf.ToolMessage):
                results += message.results
            elif isinstance(message, hf.UserMessage) and message.origin == "user":
                said.append(message.text)
            elif isinstance(message, hf.AssistantMessage) and not message.calls:
                results, said = [], []  # it answered; this is another request
        tests = [one for one in results if one.name == "shell" and one.state in {"ok", "error"}]
        passed = [one.state == "ok" and one.content["exit_code"] == 0 for one in tests]
        names = {one.name for one in results}
        may_test = any(tool.name == "shell" for tool in request.tools) and all(one.state == "ok" for one in tests)
        if "read_file" not in names:
            reading = [call("read_file", path=path) for path in ("prices.py", "test_prices.py")]
            plan = call("set_plan", steps=["Run the tests", "Repair what fails", "Run the tests again"])
            return [stream("I read ", "the project ", "first."), plan, *reading]
        if (may_test and not tests) or (may_test and "edit_file" in names and len(tests) < 2):
            return call("shell", command="python3 -m unittest -q")
        if "edit_file" not in names and not any(passed):
            new = "return sum(cents) * (100 - discount) // 100"
            edit = call("edit_file", path="prices.py", old="return sum(cents)", new=new)
            return [stream("`total` ", "ignores ", "the discount."), edit]
        verdict = "the tests pass" if any(passed) else "I could not run the tests"
        more = f" You also said: {said[-1]}" if len(said) > 1 else ""
        return stream("It ", "is ", "done: ", f"{verdict}.", more)

    return ScriptedModel(lambda _: paced(0.05, work), name="scripted:coder")


def main() -> int:
    """Parse the arguments, and talk."""
    parser = argparse.ArgumentParser(description="A coding agent. Kill it, and start it again.")
    parser.add_argument("workspace", type=Path, nargs="?", default=Path("sample"), help="the folder of the project")
    parser.add_argument("--new", action="store_true", help="begin another session")
    parser.add_argument("--yes", action="store_true", help="allow all commands; they stay in their sandbox")
    options = parser.parse_args()
    model = os.environ.get("CODING_AGENT_MODEL")
    if model is None and not options.workspace.exists():
        make_sample(options.workspace)
    try:
        return asyncio.run(talk(options.workspace, model or scripted(), new=options.new, yes=options.yes))
    except (hf.UsageError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
