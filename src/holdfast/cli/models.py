"""`holdfast models`: which providers are known, which keys are set, and whether a model really answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import msgspec
import typer

from holdfast.cli.options import (
    FAILED,
    JsonOption,
    explained,
)
from holdfast.errors import ModelError, StreamCut, UsageError
from holdfast.messages import (
    CallChunk,
    CallStart,
    ModelReply,
    ModelRequest,
    ReasoningChunk,
    StreamEnd,
    Text,
    TextChunk,
    ToolSpec,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.cli.output import Terminal
    from holdfast.models import Model
    from holdfast.models.endpoints import KnownEndpoint


State = Literal["ok", "failed", "skipped"]
_HEADINGS: Final = ["PROVIDER", "DIALECT", "KEY", "ADDRESS"]
_PROMPT: Final = "Say hello in one short sentence."
_TOOL: Final = ToolSpec(
    "report_colour",
    "Report the colour that was asked for.",
    {
        "type": "object",
        "properties": {"colour": {"type": "string", "description": "The name of the colour."}},
        "required": ["colour"],
        "additionalProperties": False,
    },
)
_TOOL_PROMPT: Final = f"Call the tool {_TOOL.name} with the colour of the sky on a clear day."
_REFUSED: Final = frozenset(("authentication", "permission"))
_UNREACHED: Final = frozenset(("network", "timeout"))
_NAMES: Final = {"stream": "not_streamed", "usage": "usage_missing", "tool call": "tool_not_called"}
"""What is wrong when there was no error."""
app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


class Line(msgspec.Struct, frozen=True):
    """One provider, as it could be used from here."""

    provider: str
    dialect: str
    base_url: str | None
    """None where it must be given, or is set to something that is no address."""
    variables: tuple[str, ...]
    """The environment variables that may hold the address, or its parts."""
    keys: tuple[str, ...]
    """The environment variables that may hold the key."""
    key: str | None
    """The one of them that is set. Never its value."""
    ready: bool
    """Whether everything that is needed is set."""


@app.callback()
def models(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """List the known providers, how they are spoken to, and whether their keys are set; never a key itself.

    A model is named 'provider:model'. Any other endpoint that speaks one of the dialects can be used with base_url=.
    """
    if context.invoked_subcommand is not None:
        return
    from holdfast.cli.output import stdout  # noqa: PLC0415

    with explained():
        lines = _lines(os.environ)
        out = stdout()
        if as_json:
            out.line(msgspec.json.encode(lines).decode())
        else:
            out.write("".join(f"{line}\n" for line in _rows(out, lines)))


def _lines(environment: Mapping[str, str]) -> list[Line]:
    from holdfast.models.endpoints import ENDPOINTS  # noqa: PLC0415

    return [_line(name, known, environment) for name, known in sorted(ENDPOINTS.items())]


def _line(name: str, known: KnownEndpoint, environment: Mapping[str, str]) -> Line:
    from holdfast.models.endpoints import resolve_endpoint  # noqa: PLC0415

    found = known.endpoint
    try:
        address = resolve_endpoint(name, environ=environment).base_url
    except UsageError:
        address = None
    key = next((variable for variable in found.keys if environment.get(variable)), None)
    return Line(
        provider=name,
        dialect=found.dialect,
        base_url=address,
        variables=known.variables,
        keys=found.keys,
        key=key,
        ready=address is not None and (key is not None or found.auth == "none" or not found.keys),
    )


def _rows(out: Terminal, lines: list[Line]) -> list[str]:
    from holdfast.cli.output import table  # noqa: PLC0415

    rows = [_HEADINGS]
    painted = [[out.paint(word, "bold") for word in _HEADINGS]]
    for line in lines:
        row = [line.provider, line.dialect, _key(line), line.base_url or _missing(line)]
        rows.append(row)
        painted.append([row[0], row[1], out.paint(row[2], "green" if line.key else "dim"), row[3]])
    return table(rows, painted)


def _missing(line: Line) -> str:
    return f"not set: {' and '.join(line.variables)}, or base_url="


def _key(line: Line) -> str:
    if line.key is not None:
        return f"{line.key} is set"
    names = " or ".join(line.keys)
    return f"{names} is not set" + (" (not needed)" if line.ready else "") if names else "none"


class Check(msgspec.Struct, frozen=True):
    """One thing that must work."""

    name: str
    state: State
    detail: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What worked when a model was asked."""

    model: str
    ok: bool
    checks: tuple[Check, ...]
    text: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    """In US dollars; None where no price is known."""
    error: str | None = None
    """What went wrong first, in one word."""
    message: str = ""
    """The same in a sentence."""


class Asked(NamedTuple):
    """What one request came to."""

    reply: ModelReply | None
    chunks: int = 0
    """Pieces in which the answer came."""
    error: ModelError | None = None


@app.command("test")
def probe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="provider:model", show_default=False)],
    *,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What to ask for the text answer.")] = _PROMPT,
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="Another address than the provider's own.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a model for a short text and for a tool call, and tell what worked. This costs a few tokens.

    Exit code 0 when all of it worked, 1 otherwise.
    """
    import asyncio  # noqa: PLC0415

    from holdfast.cli.output import stdout  # noqa: PLC0415
    from holdfast.models import HttpModel, Retry, model  # noqa: PLC0415

    with explained():
        asked = model(name, base_url=base_url)
        if isinstance(asked, HttpModel):
            asked.retry = Retry(attempts=1)  # what fails now is what there is to tell
        report = asyncio.run(_probe(asked, prompt))
        out = stdout()
        if as_json:
            out.line(msgspec.json.encode(report).decode())
        else:
            out.write("".join(f"{line}\n" for line in _told(out, report)))
    if not report.ok:
        raise typer.Exit(FAILED)


async def _probe(model: Model, prompt: str) -> Report:
    from holdfast.cli.profiles import prices  # noqa: PLC0415
    from holdfast.models.prices import cost  # noqa: PLC0415

    text = await _ask(model, ModelRequest(messages=(_said(prompt),)))
    called = None
    if text.reply is not None:
        called = await _ask(model, ModelRequest(messages=(_said(_TOOL_PROMPT),), tools=(_TOOL,)))
    checks = judged(text, called)
    failed = next((check for check in checks if check.state == "failed"), None)
    error = text.error or (called.error if called else None)
    replies = [asked.reply for asked in (text, called) if asked is not None and asked.reply is not None]
    costs = [cost(model.name, reply.usage, prices()) for reply in replies]
    known = [amount for amount in costs if amount is not None]
    return Report(
        model=model.name,
        ok=failed is None,
        checks=checks,
        text="" if text.reply is None else text.reply.text,
        usage=sum((reply.usage for reply in replies), start=Usage()),
        cost=sum(known) if known and len(known) == len(costs) else None,
        error=None if failed is None else _NAMES[failed.name] if error is None else error.kind,
        message="" if failed is None else failed.detail,
    )


def _said(text: str) -> UserMessage:
    return UserMessage("probe", (Text(text),))


async def _ask(model: Model, request: ModelRequest) -> Asked:
    chunks = 0
    try:
        async for event in model.stream(request):
            if isinstance(event, (TextChunk, ReasoningChunk, CallChunk, CallStart)):
                chunks += 1
            elif isinstance(event, StreamEnd):
                return Asked(event.reply, chunks)
    except ModelError as error:
        return Asked(None, chunks, error)
    return Asked(None, chunks, StreamCut(model.name))


def judged(text: Asked, called: Asked | None) -> tuple[Check, ...]:
    """What a text answer and a tool call prove, in the order in which things can go wrong."""
    return (
        *_reached(text),
        _streamed(text),
        _counted(text),
        _tool_called(called),
    )


def _reached(asked: Asked) -> tuple[Check, Check, Check]:
    """Connected, let in, answered."""
    error = asked.error
    if error is None:
        return Check("connect", "ok"), Check("auth", "ok"), Check("answer", "ok")
    told = str(error)
    if error.kind in _REFUSED:
        # Without a status nothing was sent: the key is missing here.
        reached = Check("connect", "skipped" if error.status is None else "ok")
        return reached, Check("auth", "failed", told), Check("answer", "skipped")
    if error.status is None and not asked.chunks and error.kind in _UNREACHED:
        return Check("connect", "failed", told), Check("auth", "skipped"), Check("answer", "skipped")
    # Some check the key first and some the path: an error of another kind does not prove that the key is good.
    return Check("connect", "ok"), Check("auth", "skipped"), Check("answer", "failed", told)


def _streamed(asked: Asked) -> Check:
    if asked.reply is None:
        return Check("stream", "skipped")
    if not asked.chunks:
        return Check("stream", "failed", "the answer came in one piece")
    return Check("stream", "ok", f"{asked.chunks:,} pieces")


def _counted(asked: Asked) -> Check:
    if asked.reply is None:
        return Check("usage", "skipped")
    usage = asked.reply.usage
    if not usage.total:
        return Check("usage", "failed", "the provider did not say how many tokens it took")
    return Check("usage", "ok", f"{usage.total - usage.output:,} tokens in, {usage.output:,} out")


def _tool_called(asked: Asked | None) -> Check:
    if asked is None:
        return Check("tool call", "skipped")
    if asked.reply is None:
        return Check("tool call", "failed", str(asked.error))
    call = next(iter(asked.reply.calls), None)
    if call is None:
        return Check("tool call", "failed", "the model answered without calling the tool")
    if call.name != _TOOL.name or call.arguments is None:
        return Check("tool call", "failed", f"the model called {call.name!r} with arguments that are no JSON object")
    return Check("tool call", "ok", f"{call.name}({', '.join(sorted(call.arguments))})")


def _told(out: Terminal, report: Report) -> list[str]:
    from holdfast.cli.output import one_line, table  # noqa: PLC0415

    rows = [[check.name, check.state, one_line(check.detail, 300)] for check in report.checks]
    painted = [[row[0], out.status(row[1]), row[2]] for row in rows]
    lines = [out.paint(report.model, "bold"), *table(rows, painted)]
    if report.text:
        lines.append(f"it said: {one_line(report.text, 200)}")
    if report.cost is not None:
        lines.append(f"cost: ${report.cost:.6f}")
    if report.error is not None:
        lines.append(out.paint(f"failed: {report.error}", "red"))
    return lines
