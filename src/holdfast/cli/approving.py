"""`holdfast approve` and `deny`: what a person says to a call that waits.

The store is not kept open while a person thinks. What is answered is the call that was shown, by its digest.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.cli.agent_references import chosen, recorded
from holdfast.cli.editor import Draft
from holdfast.cli.escaping import as_json, escaped
from holdfast.cli.failures import (
    FAILED,
    AgentBroken,
    AgentNotFound,
    AgentNotRecorded,
    AgentUnconfirmed,
    CallInvalid,
)
from holdfast.cli.following import hint
from holdfast.cli.listing import read_line
from holdfast.cli.question import MOST, answers, call_text, described, difference, is_long, rule_text, title
from holdfast.cli.sessions import changing, find_approval, looking
from holdfast.cli.terminal import stderr, stdout
from holdfast.effects.canonical import canonical
from holdfast.errors import InvalidValue
from holdfast.policy.always import narrowest
from holdfast.policy.subject import CLEAN
from holdfast.tools.definition import Complaint

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.agent import Agent
    from holdfast.cli.agent_references import Reference
    from holdfast.runtime.approving import Approval
    from holdfast.runtime.runtime import Runtime

_ALWAYS_ASKED: Final = {
    "taint": "the turn has read untrusted input and private data, and then every such call is asked about",
    "hook": "a hook of the program wants to be sure of each call",
}
"""What no stored rule answers, and why."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of `holdfast approve`."""

    store: Path
    id: str
    by: str | None
    agent: str | None
    arguments: str | None
    edit: bool
    always: bool
    show: bool
    yes: bool
    yes_all: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """An approval as it was found."""

    approval: Approval
    now: int
    reference: Reference | None
    """Where the agent can be loaded from, if the session was begun from the shell."""


def approve(asked: Asked) -> int:
    """Show a call, ask whether it may be made, and say so; answers the exit code."""
    _check(asked)
    seen = asyncio.run(_look(asked.store, asked.id))
    out, approval = stdout(), seen.approval
    lines = [title(out, approval, seen.now), *described(out, approval, asked.store, whole=True)]
    if asked.show:
        out.write("".join(f"{line}\n" for line in [*lines, *(f"  {each}" for each in answers(approval, asked.store))]))
        return 0
    _check_asking(asked, approval)
    agent = _agent(asked, seen) if asked.edit or asked.arguments is not None or asked.always else None
    always = _rule(approval, agent) if asked.always else None
    if always is not None:
        lines.append(f"  always   {rule_text(always)}")
    out.write("".join(f"{line}\n" for line in lines))
    if asked.edit:
        return _edit(asked, approval, agent)
    arguments = None if asked.arguments is None else _given(asked, approval, agent)
    if not _agreed(asked, _question(approval, arguments)):
        return _left(approval)
    if always is not None and not _agreed(asked, f"Store that rule for agent {approval.agent}, too?"):
        out.line("no rule is stored; the call is approved this once")
        always = None
    return asyncio.run(_approve(asked, approval, agent, arguments, always))


async def deny(path: Path, id: str, reason: str, by: str | None) -> int:
    """Say no to a call, and why."""
    async with changing(path) as runtime:
        found = await find_approval(runtime, id)
        denied = await runtime.deny(found.id, reason, by=by or login())
        stdout().line(f"denied {denied.id}: {denied.tool} of {denied.session}")
        await _what_next(runtime, path, denied)
    return 0


# ---- before ----------------------------------------------------------------------------------------------------------


def _check(asked: Asked) -> None:
    changed = asked.edit or asked.arguments is not None
    if asked.edit and asked.arguments is not None:
        raise CallInvalid("--edit opens an editor, --arguments gives the arguments: give one of them")
    if asked.always and changed:
        raise CallInvalid("--always is for the call as it is: leave out --edit and --arguments")
    if asked.show and (changed or asked.always or asked.yes or asked.yes_all):
        raise CallInvalid("--show only shows the call, and answers nothing: give it alone")


def _check_asking(asked: Asked, approval: Approval) -> None:
    """A person says yes to what a person has seen."""
    whole = hint(asked.store, "approve", approval.id, "--show")
    if not (asked.yes or asked.yes_all or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise CallInvalid(f"nobody can be asked, because this is no terminal: look at it with '{whole}', then --yes")
    if asked.yes and not asked.yes_all and is_long(approval):
        length = len(call_text(approval))
        raise CallInvalid(
            f"the call has {length:,} characters, and lists show {MOST:,}: look at all of it with '{whole}', "
            "then --yes-all; or leave out --yes"
        )


async def _look(path: Path, id: str) -> Seen:
    async with looking(path) as runtime:
        approval = await find_approval(runtime, id)
        line = await runtime.store.journal(approval.session)
        return Seen(approval, runtime.store.clock.read().wall, await recorded(path, runtime.store, line))


def _agent(asked: Asked, seen: Seen) -> Agent | None:
    """The agent that wants to make the call; None, and a remark, where it can't be had."""
    approval = seen.approval
    try:
        reference = chosen(approval.session, asked.agent, seen.reference)
        agent = reference.load()
    except (AgentNotFound, AgentBroken, AgentNotRecorded, AgentUnconfirmed) as error:
        if asked.agent is not None:
            raise
        return _missing(str(error))
    if agent.name != approval.agent or approval.tool not in agent.tools:
        why = f"{str(reference)!r} is not the agent {approval.agent!r} with the tool {approval.tool!r}"
        if asked.agent is not None:
            raise CallInvalid(f"{why}; it is that one which asks")
        return _missing(why)
    return agent


def _missing(why: str) -> None:
    stderr().line(f"holdfast: the agent is not there ({escaped(why)}); --agent file.py:name names it")


def _rule(approval: Approval, agent: Agent | None) -> str:
    """The rule that would be stored, shown before anything is asked."""
    if approval.rule in _ALWAYS_ASKED:
        raise CallInvalid(f"no rule can answer this: {_ALWAYS_ASKED[approval.rule]}. Approve it without --always")
    if agent is None:
        raise CallInvalid("--always needs the agent, to make a rule of the call; approve it without, or give --agent")
    rule = narrowest(agent.subject(approval.tool, approval.arguments))
    if rule is None:
        raise CallInvalid(
            "no rule can tell calls like this one from others: rules compare commands, hosts, and arguments that are "
            "words, numbers or true and false; this call has others, or none. Approve it without --always"
        )
    return rule


# ---- other arguments -------------------------------------------------------------------------------------------------


def _given(asked: Asked, approval: Approval, agent: Agent | None) -> dict[str, Any] | None:
    """The arguments of `--arguments`; None where they are those of the call."""
    arguments = _read(asked.arguments or "")
    problem = arguments if isinstance(arguments, str) else _problem(approval, agent, arguments)
    if isinstance(arguments, str) or problem is not None:
        raise CallInvalid(f"--arguments can't be used: {problem}")
    return _changed(approval, arguments)


def _read(text: str) -> dict[str, Any] | str:
    """The arguments in a text, or what is wrong with it."""
    try:
        found: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"it is no JSON ({error})"
    if not isinstance(found, dict):
        return "a JSON object with the arguments is wanted"
    arguments = cast("dict[str, Any]", found)
    try:
        canonical(arguments)
    except InvalidValue as error:
        return str(error)
    return arguments


def _problem(approval: Approval, agent: Agent | None, arguments: dict[str, Any]) -> str | None:
    """Why the tool or the policy would not have these arguments, as far as anybody can tell here."""
    if agent is None:
        return None
    bound = agent.tools[approval.tool].bind(arguments)
    if isinstance(bound, Complaint):
        return escaped("; ".join(line.removeprefix("- ") for line in bound.text.split("\n")[1:-1]) or bound.text)
    decision = agent.decide(agent.subject(approval.tool, arguments), CLEAN)
    return f"{escaped(decision.why)} ({escaped(decision.rule)})" if decision.verdict == "deny" else None


def _changed(approval: Approval, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments, after what is new in them was shown; None where nothing is."""
    out = stdout()
    if canonical(arguments) == canonical(approval.arguments):
        out.line("nothing was changed")
        return None
    out.line("changed:")
    out.write("".join(f"{line}\n" for line in difference(out, approval.arguments, arguments)))
    return arguments


def _edit(asked: Asked, approval: Approval, agent: Agent | None) -> int:
    """Let a person write the arguments until they can be used, and approve the call with them."""
    draft = Draft(f"{approval.tool}.json", f"{as_json(approval.arguments, width=0)}\n")
    while True:
        text = draft.edit()
        if not text.strip():
            draft.done()
            return _left(approval)
        arguments = _read(text)
        problem = arguments if isinstance(arguments, str) else _problem(approval, agent, arguments)
        if isinstance(arguments, str) or problem is not None:
            stdout().line(f"this can't be used: {problem}")
            if asked.yes or asked.yes_all or not _confirmed("Edit it again?", usual=True):
                raise draft.left("nothing was approved")
            continue
        changed = _changed(approval, arguments)
        if changed is None and (asked.yes or asked.yes_all):
            draft.done()
            raise CallInvalid("nothing was changed, so nothing was approved; without --edit it is approved as it is")
        if not _agreed(asked, _question(approval, changed)):
            if changed is not None:
                raise draft.left("nothing was approved")
            draft.done()
            return _left(approval)
        code = asyncio.run(_approve(asked, approval, agent, changed, None))
        draft.done()
        return code


# ---- asking and answering --------------------------------------------------------------------------------------------


def _question(approval: Approval, arguments: dict[str, Any] | None) -> str:
    length = f" ({len(call_text(approval)):,} characters)" if is_long(approval) else ""
    how = "" if arguments is None else " with the changed arguments"
    return f"Approve this call of {approval.tool}{length}{how}?"


def _agreed(asked: Asked, question: str) -> bool:
    return asked.yes or asked.yes_all or _confirmed(question)


def _confirmed(question: str, *, usual: bool = False) -> bool:
    """What the person at the terminal says; without a word, what is usual. The end of the input is a no."""
    try:
        said = input(f"{question} [{'Y/n' if usual else 'y/N'}] ").strip().lower()
    except EOFError:
        stdout().line()
        return False
    return usual if not said else said in {"y", "yes"}


def _left(approval: Approval) -> int:
    stdout().line(f"nothing was approved; {approval.id} still waits")
    return FAILED


async def _approve(
    asked: Asked, approval: Approval, agent: Agent | None, arguments: dict[str, Any] | None, always: str | None
) -> int:
    async with changing(asked.store) as runtime:
        if agent is not None:
            runtime.register(agent)
        by = asked.by or login()
        await runtime.approve(approval.id, by=by, arguments=arguments, always=always, digest=approval.digest)
        how = "" if arguments is None else ", with changed arguments"
        stdout().line(f"approved {approval.id}: {approval.tool} of {approval.session}{how}")
        if always is not None:
            stdout().line(f"stored that rule for agent {approval.agent}: {hint(asked.store, 'rules')}")
        await _what_next(runtime, asked.store, approval)
    return 0


async def _what_next(runtime: Runtime, path: Path, approval: Approval) -> None:
    """Who goes on with the session, and what else it waits for."""
    err = stderr()
    if more := len(await runtime.approvals(approval.session)):
        err.line(f"{more} more of {approval.session} wait{'s' if more == 1 else ''}: {hint(path, 'inbox')}")
    line = await read_line(runtime.store, await runtime.store.journal(approval.session))
    if line.pid is None:
        err.line(f"go on with: {hint(path, 'resume', approval.session)}")
    else:
        err.line(f"process {line.pid} works on {approval.session}, and goes on with it")


def login() -> str:
    """The name of whoever calls, as the system knows it: the environment can say anything."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return f"uid {os.getuid()}"
