"""`holdfast call`: one tool call of the host, outside a turn."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec

from holdfast import errors
from holdfast.cli import agents, approvals, options
from holdfast.cli.options import DEFAULT_STORE, CallInvalid, argument, flag, hint, option
from holdfast.cli.output import escape_invisible, json_text, one_line, stderr, stdout
from holdfast.cli.policy import DENIED
from holdfast.cli.run import open_driver, open_session, silence_logs
from holdfast.processes.keys import host_call_key, task_id
from holdfast.processes.lists import glance_process
from holdfast.runtime.host_call import check_arguments, find_tool

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent import Agent
    from holdfast.runtime.host_call import CallStatus, HostCall
    from holdfast.runtime.runtime import Runtime

_EXITS: Final[dict[CallStatus, int]] = {
    "completed": 0,
    "running": 0,
    "waiting": options.WAITING,
    "denied": DENIED,
    "failed": options.FAILED,
    "unknown": options.FAILED,
    "cancelled": options.CANCELLED,
}


class CallReport(msgspec.Struct, frozen=True):
    """How `holdfast call` left a call."""

    id: str
    session: str
    tool: str
    disposition: str
    result: Any = None
    error: str | None = None
    answer: tuple[str, ...] = ()
    """The commands that go on with it."""


async def call(
    agent: options.AgentName,
    tool: Annotated[str, argument("TOOL", "A tool of the agent.")],
    arguments: Annotated[str | None, argument("JSON", "Its arguments, as one JSON object.")] = None,
    *,
    given: Annotated[
        list[str] | None,
        option("NAME=VALUE", "An argument: JSON, or a text as it is. May be repeated.", "--arg", "-a"),
    ] = None,
    session: options.Session = None,
    as_id: options.As = None,
    key: Annotated[str | None, option("KEY", "The same key with the same arguments is one call.")] = None,
    inline_budget: Annotated[
        float | None, option("SECONDS", "Wait this long for the result; then it goes on in the background.")
    ] = None,
    notify: Annotated[bool, flag("Notify the session of its end, so that the model learns of it.", "--notify")] = False,
    as_json: options.Json = False,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Make one tool call without a model, under the policy, hooks, approvals and budgets of the agent.

    The call is in the store before it begins, and is made once for a key. Without --session or --as it has a session of
    its own. Ctrl-C cancels it.

    Exit codes: 0 its result, or begun in the background; 1 failed or unknown, 2 wrong call, 3 waits for a person,
    4 cancelled, 6 denied.
    """
    silence_logs()
    if key is not None and session is None and as_id is None:
        raise CallInvalid("--key is good within one session: name it with --session or --as")
    reference = agents.AgentReference.parse(agent)
    loaded = reference.load()
    values = parse_arguments(loaded, tool, arguments, given or [])
    chosen = key or secrets.token_hex(8)
    async with open_session(store, session, as_id, loaded, reference) as (opened, id):
        try:
            await opened.journal(id)
        except errors.JournalMissing:
            check_arguments(find_tool(loaded, tool), values)  # a wrong call makes no session
            await opened.open_journal(id, "session", loaded.name)
        async with open_driver(opened, loaded, reference, id) as runtime:
            try:
                made = await runtime.call(
                    tool, values, session=id, key=chosen, inline_budget=inline_budget, notify=notify
                )
            except asyncio.CancelledError:
                task = task_id(id, host_call_key(chosen))
                await runtime.tasks.cancel(task, "Ctrl-C")
                stderr().line(f"asked for {task} to be cancelled: {hint(store, 'tasks', task)}")
                raise
            report, status = await _read_report(runtime, made, id, tool, store)
    if as_json:
        stdout().json(report)
    else:
        _print_report(report)
    return _EXITS[status]


def parse_arguments(agent: Agent, tool: str, text: str | None, given: list[str]) -> dict[str, Any]:
    """The arguments of a call from the shell: one JSON object, or ``name=value`` one by one."""
    if text is not None and given:
        raise CallInvalid("give the arguments as one JSON object, or one by one with -a; not both")
    if text is not None:
        found = options.parse_json(text)
        if not isinstance(found, dict):
            raise CallInvalid(f'the arguments of {tool} are an object, like \'{{"name": "value"}}\', not {text!r}')
        return cast("dict[str, Any]", found)
    known = agent.tools.get(tool)
    schemas: dict[str, Any] = {} if known is None else known.parameters.get("properties", {})
    values: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise CallInvalid(f"{each!r} is no argument; write NAME=VALUE")
        if name in values:
            raise CallInvalid(f"the argument {name!r} is there twice")
        try:
            values[name] = value if schemas.get(name, {}).get("type") == "string" else msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError):
            values[name] = value  # a word; the tool's schema says if it may be one
    return values


async def _read_report(
    runtime: Runtime, made: HostCall[Any], session: str, tool: str, store: Path
) -> tuple[CallReport, CallStatus]:
    status = await made.status()
    report = CallReport(made.id, session, tool, "inline" if status == "completed" else made.disposition)
    if status == "completed":
        body = await runtime.tasks.result(await runtime.tasks.task(made.id))
        return msgspec.structs.replace(report, result=msgspec.Raw(body or b"null")), status
    if status == "waiting":
        asked = [each for each in await runtime.approvals(session) if each.host_call == made.id]
        commands = [approvals.answer_commands(each, store) for each in asked]
        answers = tuple(command for pair in commands for command in pair)
        if not answers:
            line = await runtime.store.journal(made.id)
            answers = tuple(item.answer for item in await approvals.tool_waits(runtime.store, line, store))
        return msgspec.structs.replace(report, disposition="waiting", answer=answers), status
    if status == "running":
        answers = (hint(store, "resume", session), hint(store, "tasks", made.id))
        return msgspec.structs.replace(report, answer=answers), status
    state = await glance_process(runtime.store, made.id)
    error = None if state.error is None else f"{state.error.kind}: {state.error.message}"
    if status == "unknown":
        error = error or "it was interrupted, and nobody knows whether it took effect"
    return msgspec.structs.replace(report, disposition=status, error=error), status


def _print_report(report: CallReport) -> None:
    if report.disposition == "inline":
        stdout().line(escape_invisible(json_text(report.result)))
        return
    out = stderr() if report.error is not None or report.disposition in {"failed", "denied"} else stdout()
    what = {"background": "runs in the background", "waiting": "waits for a person"}.get(report.disposition)
    error = "" if report.error is None else f": {one_line(report.error, 1_000)}"
    out.line(f"{report.id}: {one_line(report.tool, 64)} {what or report.disposition}{error}")
    out.lines(f"  {command}" for command in report.answer)
