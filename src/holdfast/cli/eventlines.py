"""`holdfast logs`: the events of a session, one to a line."""

from __future__ import annotations

import asyncio
import signal
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast import events
from holdfast.cli.sessions import find, looking, wait_label, wait_told
from holdfast.cli.terminal import counted, duration, one_line, stdout
from holdfast.messages import AssistantMessage, UserMessage
from holdfast.observed import events_of
from holdfast.runtime.live import tag_of
from holdfast.runtime.reading import read_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from holdfast.cli.sessions import Target
    from holdfast.cli.terminal import Terminal
    from holdfast.events import Event
    from holdfast.runtime.runtime import Runtime


_PLAIN: Final = 2
"""How many dots are in the name of a call that no program made: ``t3.2.1``."""


async def logs(path: Path, given: str, *, follow: bool, since: int, as_json: bool) -> int:
    """Print the events behind record `since`; with `follow`, also those to come, until Ctrl-C."""
    out = stdout()
    async with looking(path) as runtime:
        target = await find(runtime.store, given, others=True)
        found = runtime.session(target.id).events(since) if follow else _recorded(runtime, target, since)
        work = asyncio.ensure_future(_print(out, found, target.turn, as_json=as_json))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()
    return 0


async def _recorded(runtime: Runtime, target: Target, since: int) -> AsyncIterator[Event]:
    tag = tag_of(target.id)
    async for seq, record in read_records(runtime.store, target.id, after=since):
        for event in events_of(target.id, seq, record, str(seq), tag):
            yield event


async def _print(out: Terminal, found: AsyncIterator[Event], turn: str | None, *, as_json: bool) -> None:
    async for event in found:
        if turn is not None and event.turn != turn:
            continue
        if as_json:
            out.line(events.encode(event).decode())
        else:
            text = describe(event)
            if text is not None:
                out.line(_line(out, event, text))


def _line(out: Terminal, event: Event, text: str) -> str:
    at = datetime.fromtimestamp(event.at / 1000).astimezone().strftime("%H:%M:%S")
    return f"{out.paint(at, 'dim')} {out.paint(f'{event.seq:>5}', 'dim')} {event.turn or '-':<4} {text}"


def describe(event: Event) -> str | None:  # noqa: PLR0911, PLR0912  one line for each kind
    """An event in a few words; None for those that others say better."""
    match event:
        case events.RunStarted():
            return f"started by {event.by}"
        case events.RunResumed():
            return f"resumed by {event.by}"
        case events.HandedOver():
            return f"handed over to {one_line(event.agent, 40)}: {one_line(event.reason, 160)}"
        case events.MessageCommitted():
            return _said(event)
        case events.UsageRecorded():
            return f"used {event.usage.input:,} + {event.usage.output:,} tokens of {event.model}"
        case events.ToolCallCompleted():
            arguments = one_line(msgspec.json.encode(event.arguments).decode(), 120)
            return f"{_indent(event.call)}calls {one_line(event.tool, 40)} {arguments}"
        case events.ToolExecutionFinished():
            body = event.content if isinstance(event.content, str) else msgspec.json.encode(event.content).decode()
            told = f"{one_line(event.tool, 40)} {event.state} in {duration(event.ms)}: {one_line(body, 120)}"
            return f"{_indent(event.call)}{told}"
        case events.ModelFailed():
            return f"model failed: {one_line(event.code, 40)}: {one_line(event.message, 200)}"
        case events.ApprovalRequested():
            return f"waits for {wait_told(event.wait)}"
        case events.TaskStarted():
            return f"task begun by {event.by}"
        case events.TaskProgressed():
            done = "" if event.fraction is None else f" {event.fraction:.0%}"
            return f"task{done}: {event.note or 'goes on'}"
        case events.TaskEnded():
            return f"task {event.status}" + (f": {event.code}: {event.message}" if event.code else "")
        case events.TurnWaiting():
            return f"parked until {', '.join(map(wait_label, event.waits))}"
        case events.TurnCompleted():
            return f"completed in {counted(event.steps, 'step')}, {event.usage.input:,} + {event.usage.output:,} tokens"
        case events.TurnFailed() | events.TurnCancelled() | events.TurnLimit():
            status = type(event).__name__.removeprefix("Turn").lower()
            why = ": ".join(part for part in (event.code, one_line(event.message, 200)) if part and part != status)
            return f"{status}: {why}" if why else status
        case events.LoopDetected():
            return f"loop detected: {one_line(event.message, 200)}"
        case _:
            return None


def _indent(call: str) -> str:
    """What a program does stands below it."""
    return "  " if call.count(".") > _PLAIN else ""


def _said(event: events.MessageCommitted) -> str | None:
    match event.message:
        case UserMessage() as message:
            return f"{message.origin}: {one_line(message.text, 160)}"
        case AssistantMessage() as message:
            return f"model: {one_line(message.text, 160)} ({duration(event.ms)})" if message.text else None
        case _:
            return None
