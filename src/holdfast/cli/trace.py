"""`holdfast trace`: the spans of a session or a process, made from its journal, for people and for collectors."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from holdfast import errors
from holdfast.cli import options, sessions
from holdfast.cli.output import Terminal, duration, one_line
from holdfast.telemetry import check_endpoint, require_otel
from holdfast.telemetry.journals import read_trace
from holdfast.telemetry.spans import Span


async def trace(
    shell: options.Shell,
    id: options.TurnId,
    *,
    otlp: Annotated[
        str | None,
        options.option("URL|FILE", "Send the spans to a collector, or write them into a file (OTLP, lines of JSON)."),
    ] = None,
    content: Annotated[
        bool, options.flag("Also messages, arguments, results and error messages.", "--content")
    ] = False,
) -> None:
    """Show where the time of a session, a turn or a process went, with all that worked for it.

    The spans are made from the journal: they have the same ids and the same content as those that a runtime with
    telemetry exports.
    """
    is_url = otlp is not None and "://" in otlp
    if otlp is not None:
        require_otel()
        if is_url:
            check_endpoint(otlp)
    async with sessions.view_runtime(shell.store) as runtime:
        target = await sessions.find_target(runtime.store, id, others=True)
        found = await read_trace(runtime.store, target.id, run=target.turn, content=content)
        if target.turn is not None and not found:
            await _require_turn(runtime.store, target)
    if otlp is None:
        shell.print(found, lambda out: _tree(out, found), nothing="no span has ended yet")
    elif is_url:
        await _send(shell, otlp, found)
    else:
        _write(shell, Path(otlp), found)


async def _require_turn(store: sessions.Store, target: sessions.TurnTarget) -> None:
    turn, wanted = (await sessions.read_present(store, target.id)).turn, target.turn or ""
    if (turn is None or turn.run != wanted) and await sessions.read_ending(store, target.id, wanted) is None:
        raise errors.TurnUnknown(target.id, wanted)


async def _send(shell: options.Shell, endpoint: str, found: Sequence[Span]) -> None:
    from holdfast.telemetry.export import send_spans  # OpenTelemetry only where it is wanted

    if not await send_spans(endpoint, found):
        raise errors.TraceRefused(endpoint, len(found))
    shell.print({"endpoint": endpoint, "spans": len(found)}, f"sent {len(found):,} spans to {endpoint}")


def _write(shell: options.Shell, path: Path, found: Sequence[Span]) -> None:
    from holdfast.telemetry.export import otlp_objects

    part = path.with_name(f"{path.name}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(each, ensure_ascii=False)}\n" for each in otlp_objects(found))
    part.replace(path)  # whole or not at all
    shell.print({"file": str(path), "spans": len(found)}, f"wrote {len(found):,} spans to {path}")


# ---- the tree --------------------------------------------------------------------------------------------------------


def _tree(out: Terminal, found: Sequence[Span]) -> Iterator[str]:
    ids = {span.id for span in found}
    below: defaultdict[str, list[Span]] = defaultdict(list)
    for span in found:
        below[span.parent if span.parent in ids else ""].append(span)
    last = ""
    for root in sorted(below.pop("", []), key=_order):
        if root.trace != last:
            if last:
                yield ""
            yield out.paint(f"trace {root.trace}", "bold")
            last = root.trace
        yield from _branch(out, root, below)


def _branch(out: Terminal, span: Span, below: dict[str, list[Span]]) -> Iterator[str]:
    """The line of a span and those below it. Not recursive: a chain may be as deep as a model wants."""
    todo = [(span, 0)]
    while todo:
        found, depth = todo.pop()
        took = f"{duration(found.end - found.start):>8}"
        state = f"  {out.paint(f'[{found.error}]', 'red')}" if found.error else ""
        yield f"{took}  {'  ' * depth}{one_line(found.name, 80)}{state}{out.paint(_details(found), 'dim')}"
        todo += [(each, depth + 1) for each in sorted(below.get(found.id, ()), key=_order, reverse=True)]


def _order(span: Span) -> tuple[int, int]:
    return span.start, span.seq


def _details(span: Span) -> str:
    found, shown = span.attributes, list[str]()
    if span.operation == "chat" and "gen_ai.usage.output_tokens" in found:
        shown.append(f"{found['gen_ai.usage.input_tokens']} + {found['gen_ai.usage.output_tokens']} tokens")
    cost = found.get("holdfast.cost_usd")
    if isinstance(cost, float) and cost:
        shown.append(f"${cost:.4f}")
    if attempts := found.get("holdfast.attempts"):
        shown.append(f"{attempts} attempts")
    if span.operation == "invoke_agent":
        shown.append(f"{found['gen_ai.conversation.id']}/{span.run}")
        if found["holdfast.resumed"]:
            shown.append(f"resumed {found['holdfast.resumed']} times")
    return f"  {', '.join(shown)}" if shown else ""
