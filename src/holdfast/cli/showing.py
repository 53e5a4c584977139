"""`holdfast show`: the timeline of a session, for people and for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import records
from holdfast.cli.failures import CallInvalid
from holdfast.cli.listing import read_line
from holdfast.cli.sessions import approval_in, find, looking, wait_told
from holdfast.cli.terminal import diff_line, duration, one_line, stdout, table
from holdfast.cli.timeline import Step, TurnStory, tell
from holdfast.errors import TurnUnknown
from holdfast.runtime.reading import read_records
from holdfast.runtime.requests import environments_of, read_requests
from holdfast.turns.conversation import TRIGGERED
from holdfast.turns.telling import speaker, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.cli.listing import Line
    from holdfast.cli.sessions import Target
    from holdfast.cli.terminal import Terminal
    from holdfast.messages import ModelRequest, Usage
    from holdfast.records import Record
    from holdfast.runtime.requests import RecordedRequest
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Journal


async def show(path: Path, given: str, *, raw: bool, as_json: bool) -> int:
    """Show what happened in a session, or in one turn of it."""
    if raw and as_json:
        message = "--raw prints the records, --json the timeline: give one of them"
        raise CallInvalid(message)
    async with looking(path) as runtime:
        target = await find(runtime.store, given)
        entries = [entry async for entry in read_records(runtime.store, target.id)]
        line = await read_line(runtime.store, target.line)
        told = await environments_of(runtime.store, entries)
        turns = [] if raw else await _with_children(runtime, target, _chosen(target, tell(entries, told)))
    out = stdout()
    if raw:
        out.write("".join(f"{_raw(seq, record)}\n" for seq, record in entries if _concerns(record, target.turn)))
        return 0
    if as_json:
        told = {"session": line, "parent": target.line.parent, "parent_seq": target.line.parent_seq, "turns": turns}
        out.line(msgspec.json.encode(told).decode())
        return 0
    if target.turn is None:
        out.line(_title(out, target.line, line))
    for number, turn in enumerate(turns):
        if number or target.turn is None:
            out.line()
        out.write("".join(f"{text}\n" for text in _story(out, turn, line)))
    return 0


async def show_request(path: Path, given: str, number: int, *, as_json: bool) -> int:
    """Show what a model was asked, rebuilt from the journal."""
    async with looking(path) as runtime:
        target = await find(runtime.store, given, others=True)
        found = [each for each in await read_requests(runtime.store, target.id) if _concerns(each, target.turn)]
    asked = next((each for each in found if each.number == number), None)
    if asked is None:
        message = f"{target.id} has no request {number}: those are {', '.join(str(each.number) for each in found[:20])}"
        raise CallInvalid(message if found else f"no model was asked anything in {target.id}")
    out, request = stdout(), asked.request
    if as_json:
        files = {digest: len(body) for digest, body in request.files.items()}
        told = msgspec.structs.replace(asked, request=msgspec.structs.replace(request, files=files))
        out.line(msgspec.json.encode(told).decode())
        return 0
    doubt = "" if asked.exact else ", not complete: the journal is of an older release"
    title = out.paint(f"request {asked.number}", "bold")
    out.line(f"{title}  {asked.key}, {asked.kind}, {asked.model or asked.agent}{doubt}")
    for title, text in _told_in(request):
        out.line(out.paint(title, "bold"))
        out.write("".join(f"  | {line}\n" for line in out.clean(text).splitlines()))
    return 0


def _told_in(request: ModelRequest) -> Iterator[tuple[str, str]]:
    if request.instructions:
        yield "instructions", request.instructions
    for tool in request.tools:
        yield f"tool {tool.name}", f"{tool.description}\n{_laid_out(tool.parameters)}"
    if request.output is not None:
        yield "output", _laid_out(request.output)
    settings = msgspec.to_builtins(request.settings)
    if settings:
        yield "settings", _laid_out(settings)
    for message in request.messages:
        yield f"{speaker(message)}  {message.id}", words_of(message)


def _laid_out(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


async def _with_children(runtime: Runtime, target: Target, turns: list[TurnStory]) -> list[TurnStory]:
    """The turns, with what their sub-agents used."""
    for turn in turns if await runtime.children.any_of(target.id) else ():
        below = await runtime.children.below(target.id, turn.turn)
        turn.children, turn.children_cost = below.total, below.cost
    return turns


def _chosen(target: Target, turns: list[TurnStory]) -> list[TurnStory]:
    if target.turn is None:
        return turns
    found = [turn for turn in turns if turn.turn == target.turn]
    if not found:
        raise TurnUnknown(target.id, target.turn)
    return found


def _concerns(record: Record | RecordedRequest, turn: str | None) -> bool:
    run: str | None = getattr(record, "run", None) or getattr(record, "key", "").partition("/")[0]
    return turn is None or run == turn


def _raw(seq: int, record: Record) -> str:
    return msgspec.json.encode({"seq": seq, "record": msgspec.Raw(records.encode(record))}).decode()


# ---- for people ------------------------------------------------------------------------------------------------------


def _title(out: Terminal, journal: Journal, line: Line) -> str:
    parts = [out.paint(line.id, "bold"), line.agent or "no agent", out.status(line.status), f"{line.records:,} records"]
    if line.pid is not None:
        parts.append(f"pid {line.pid}")
    if line.queued:
        parts.append(f"{line.queued} queued")
    if journal.parent is not None:
        parts.append(f"forked from {journal.parent} at {journal.parent_seq}")
    if journal.quarantine is not None:
        parts.append(one_line(journal.quarantine))
    return ", ".join(parts)


def _story(out: Terminal, turn: TurnStory, line: Line) -> list[str]:
    status = turn.status or ("waiting" if line.status == "waiting" else line.status)
    parts = [f"{out.paint(turn.turn, 'bold')}  {out.status(status)}"]
    if len(turn.agents) > 1 or turn.agents != [line.agent]:
        parts.append(" > ".join(one_line(name, 40) for name in turn.agents))
    if turn.model_calls:
        parts.append(f"{turn.model_calls} model call{'' if turn.model_calls == 1 else 's'}")
        parts.append(_tokens(turn.usage))
    if turn.children.total:
        parts.append(f"with sub-agents {_tokens(turn.usage + turn.children)}")
    if turn.ended is not None:
        parts.append(duration(max(turn.ended - turn.begun, 0)))
    lines = [", ".join(parts)]
    if turn.steps:
        rows = [_cells(step) for step in turn.steps]
        painted = [
            [
                *(out.paint(row[0], "dim"), row[1], out.status(step.state, row[2]), row[3], row[4]),
                *(out.paint(row[5], "dim"), out.paint(row[6], "dim")),
            ]
            for row, step in zip(rows, turn.steps, strict=True)
        ]
        for step, text in zip(turn.steps, table(rows, painted), strict=True):
            lines.append(f"  {text}")
            lines += [f"         {diff_line(out, change)}" for change in step.changes]
    if turn.status is None:
        waits = [name for name in line.waits if name.startswith(f"{turn.turn}/") and approval_in(name) is not None]
        lines += [f"  waits for {wait_told(name)}" for name in waits]
    if turn.status is not None and turn.status != "completed":
        why = ": ".join(part for part in (turn.code, one_line(turn.message, 300)) if part not in {"", turn.status})
        lines.append(f"  {out.status(turn.status)}{f': {why}' if why else ''}")
    if turn.answer:
        lines += [f"  | {text}" for text in out.clean(turn.answer).splitlines()]
    return lines


def _cells(step: Step) -> list[str]:
    """Sequence, what, state, duration, details, what led to it, process."""
    took = duration(step.ms) if step.ms or step.kind in {"model", "tool"} else ""
    what = f"{'  ' * step.depth}{step.kind}"
    return [f"{step.seq:>4}", what, _subject(step), took, _details(step), _led_by(step), step.by or ""]


def _led_by(step: Step) -> str:
    if step.cause is None:
        return ""
    kind, id, ordinal = step.cause.kind, one_line(step.cause.id, 60), step.cause.ordinal
    match kind:
        case "model" | "call" if ordinal:
            return f"call {ordinal} of {id}"
        case "input" | "trigger" | "process" | "signal":
            return f"after {kind} {id.removeprefix(TRIGGERED)}"
        case _:
            return f"after {id}"


def _subject(step: Step) -> str:
    match step.kind:
        case "tool":
            return f"{one_line(step.name, 40)} {step.state}"
        case "wait":
            return f"{one_line(step.name, 80)} {step.state}"
        case "handoff":
            return f"to {one_line(step.agent or '', 40)}"
        case "model":
            return step.state
        case _:
            return step.state


def _details(step: Step) -> str:
    match step.kind:
        case "model" if step.usage is not None:
            wanted = f" -> {one_line(', '.join(step.calls), 60)}" if step.calls else ""
            return f"{_tokens(step.usage)}{wanted}"
        case "parked":
            return f"until {one_line(', '.join(step.calls), 60)}"
        case _:
            return one_line(step.text, 60)


def _tokens(usage: Usage) -> str:
    cached = f" ({usage.cache_read:,} cached)" if usage.cache_read else ""
    return f"{usage.input + usage.cache_read + usage.cache_write:,}{cached} + {usage.output:,} tokens"
