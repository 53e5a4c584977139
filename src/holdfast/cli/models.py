"""`holdfast models`: the known providers, the keys that are set, and a test of one model."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from holdfast import errors, messages
from holdfast.cli import options, output, profiles
from holdfast.models import Model, model
from holdfast.models.endpoints import ENDPOINTS, KnownEndpoint, resolve_endpoint
from holdfast.models.http import HttpModel
from holdfast.models.prices import cost
from holdfast.models.retry import Retry

models = options.CommandGroup()


class ProviderLine(msgspec.Struct, frozen=True):
    """One provider, with the settings of this environment."""

    provider: str
    dialect: str
    base_url: str | None
    """None if it must be set, or is set to an invalid address."""
    variables: tuple[str, ...]
    """The environment variables that may hold the address, or its parts."""
    keys: tuple[str, ...]
    """The environment variables that may hold the key."""
    key: str | None
    """The one of them that is set. Never its value."""
    ready: bool
    """True if all required settings are present."""


@models.listing()
def list_models(printer: options.Printer) -> None:
    """List the known providers, their dialects, and whether their keys are set; never a key itself.

    A model is named 'provider:model'. Any other endpoint that speaks one of the dialects can be used with base_url=.
    """
    lines = [_provider_line(name, known) for name, known in sorted(ENDPOINTS.items())]
    columns: output.Columns[ProviderLine] = {
        "PROVIDER": lambda line: line.provider,
        "DIALECT": lambda line: line.dialect,
        "KEY": _key_state,
        "ADDRESS": lambda line: line.base_url or f"not set: {' and '.join(line.variables)}, or base_url=",
    }

    def table_lines(out: output.Terminal) -> list[str]:
        def paint(key: str) -> str:
            return out.paint(key, "green" if key.endswith(" is set") else "dim")

        return output.table_of(out, lines, columns, paint, painted=("KEY",))

    printer.print(lines, table_lines)


def _provider_line(name: str, known: KnownEndpoint) -> ProviderLine:
    try:
        address = resolve_endpoint(name).base_url
    except errors.UsageError:
        address = None
    key = next((variable for variable in known.keys if os.environ.get(variable)), None)
    return ProviderLine(
        provider=name,
        dialect=known.dialect,
        base_url=address,
        variables=known.variables,
        keys=known.keys,
        key=key,
        ready=address is not None and (key is not None or known.auth == "none" or not known.keys),
    )


def _key_state(line: ProviderLine) -> str:
    if line.key is not None:
        return f"{line.key} is set"
    names = " or ".join(line.keys)
    return f"{names} is not set" + (" (not needed)" if line.ready else "") if names else "none"


# ---- models test -----------------------------------------------------------------------------------------------------

_PROMPT: Final = "Say hello in one short sentence."
_TOOL: Final = messages.ToolSpec(
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
_ERRORS: Final = {"stream": "not_streamed", "usage": "usage_missing", "tool call": "tool_not_called"}
"""The error of a report whose check failed without an error of the model."""


CheckState = Literal["ok", "failed", "skipped"]


class ModelCheck(msgspec.Struct, frozen=True):
    """One check of a model."""

    name: str
    state: CheckState
    detail: str = ""


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of testing a model."""

    model: str
    ok: bool
    checks: tuple[ModelCheck, ...]
    text: str = ""
    usage: messages.Usage = messages.Usage()
    cost: float | None = None
    """In US dollars; None where no price is known."""
    error: str | None = None
    """The first failure, in one word."""
    message: str = ""
    """The same in a sentence."""


class ProbeAnswer(NamedTuple):
    """The answer to one request."""

    reply: messages.ModelReply | None
    chunks: int = 0
    """Number of chunks in which the answer came."""
    error: errors.ModelError | None = None


@models.command("test")
async def probe(
    printer: options.Printer,
    name: Annotated[str, options.argument("NAME", "provider:model")],
    *,
    prompt: Annotated[str, options.option("TEXT", "The prompt for the text answer.")] = _PROMPT,
    base_url: Annotated[str | None, options.option("URL", "Another address than the provider's own.")] = None,
) -> int:
    """Ask a model for a short text and for a tool call, and report what worked. This costs a few tokens.

    Exit code 0 when all of it worked, 1 otherwise.
    """
    asked = model(name, base_url=base_url)
    if isinstance(asked, HttpModel):
        asked.retry = Retry(attempts=1)  # report the first failure
    report = await _probe(asked, prompt)
    printer.print(report, lambda out: _report_lines(out, report))
    return 0 if report.ok else options.FAILED


async def _probe(model: Model, prompt: str) -> ModelReport:
    text = await _ask(model, prompt)
    called = None if text.reply is None else await _ask(model, _TOOL_PROMPT, _TOOL)
    checks = (*_connection_checks(text), *_reply_checks(text), _tool_check(called))
    failed = next((check for check in checks if check.state == "failed"), None)
    error = text.error or (called.error if called else None)
    replies = [asked.reply for asked in (text, called) if asked is not None and asked.reply is not None]
    costs = [cost(model.name, reply.usage, profiles.profile_prices()) for reply in replies]
    known = [amount for amount in costs if amount is not None]
    return ModelReport(
        model=model.name,
        ok=failed is None,
        checks=checks,
        text="" if text.reply is None else text.reply.text,
        usage=sum((reply.usage for reply in replies), start=messages.Usage()),
        cost=sum(known) if known and len(known) == len(costs) else None,
        error=None if failed is None else _ERRORS[failed.name] if error is None else error.kind,
        message="" if failed is None else failed.detail,
    )


async def _ask(model: Model, prompt: str, *tools: messages.ToolSpec) -> ProbeAnswer:
    request = messages.ModelRequest(messages=(messages.UserMessage("probe", (messages.Text(prompt),)),), tools=tools)
    chunks = 0
    try:
        async for event in model.stream(request):
            if isinstance(event, (messages.TextChunk, messages.ReasoningChunk, messages.CallChunk, messages.CallStart)):
                chunks += 1
            elif isinstance(event, messages.StreamEnd):
                return ProbeAnswer(event.reply, chunks)
    except errors.ModelError as error:
        return ProbeAnswer(None, chunks, error)
    return ProbeAnswer(None, chunks, errors.StreamCut(model.name))


def _connection_checks(asked: ProbeAnswer) -> list[ModelCheck]:
    error = asked.error
    states: tuple[CheckState, ...]
    if error is None:
        states = ("ok", "ok", "ok")
    elif error.kind in {"authentication", "permission"}:
        # Without a status nothing was sent: the key is missing here.
        states = ("skipped" if error.status is None else "ok", "failed", "skipped")
    elif error.status is None and not asked.chunks and error.kind in {"network", "timeout"}:
        states = ("failed", "skipped", "skipped")
    else:
        # Some providers check the key first and some the path: another error does not prove that the key is good.
        states = ("ok", "skipped", "failed")
    return [
        ModelCheck(name, state, str(error) if state == "failed" else "")
        for name, state in zip(("connect", "auth", "answer"), states, strict=True)
    ]


def _reply_checks(asked: ProbeAnswer) -> list[ModelCheck]:
    if asked.reply is None:
        return [ModelCheck("stream", "skipped"), ModelCheck("usage", "skipped")]
    usage, chunks = asked.reply.usage, asked.chunks
    streamed = ("ok", f"{chunks:,} pieces") if chunks else ("failed", "the answer came in one piece")
    tokens = f"{usage.total - usage.output:,} tokens in, {usage.output:,} out"
    counted = ("ok", tokens) if usage.total else ("failed", "the provider did not say how many tokens it took")
    return [ModelCheck("stream", *streamed), ModelCheck("usage", *counted)]


def _tool_check(asked: ProbeAnswer | None) -> ModelCheck:
    if asked is None:
        return ModelCheck("tool call", "skipped")
    if asked.reply is None:
        return ModelCheck("tool call", "failed", str(asked.error))
    call = next(iter(asked.reply.calls), None)
    if call is None:
        return ModelCheck("tool call", "failed", "the model answered without calling the tool")
    if call.name != _TOOL.name or call.arguments is None:
        message = f"the model called {call.name!r} with arguments that are no JSON object"
        return ModelCheck("tool call", "failed", message)
    return ModelCheck("tool call", "ok", f"{call.name}({', '.join(sorted(call.arguments))})")


def _report_lines(out: output.Terminal, report: ModelReport) -> list[str]:
    rows = [[check.name, out.status(check.state), output.one_line(check.detail, 300)] for check in report.checks]
    lines = [out.paint(report.model, "bold"), *output.table(rows)]
    if report.text:
        lines.append(f"it said: {output.one_line(report.text, 200)}")
    if report.cost is not None:
        lines.append(f"cost: ${report.cost:.6f}")
    if report.error is not None:
        lines.append(out.paint(f"failed: {report.error}", "red"))
    return lines
