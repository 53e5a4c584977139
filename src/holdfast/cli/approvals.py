"""`holdfast approve` and `deny`: what a person says to a call that waits.

The store is not kept open while a person thinks. What is answered is the call that was shown, by its digest.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import pwd
import shutil
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import msgspec

from holdfast.cli.agents import chosen, recorded
from holdfast.cli.memory import Draft
from holdfast.cli.notifications import read_notifications
from holdfast.cli.options import (
    EXITS,
    FAILED,
    AgentBroken,
    AgentNotFound,
    AgentNotRecorded,
    AgentUnconfirmed,
    ApprovalNotResolved,
    CallInvalid,
    WaitNotOpen,
)
from holdfast.cli.output import as_json, duration, escaped, fenced, one_line, printable, stderr, stdout
from holdfast.cli.sessions import approval_in, changing, find, find_approval, looking, open_waits, read_line, wait_label
from holdfast.cli.show import Followed, Follower, hint
from holdfast.effects.canonical import canonical
from holdfast.errors import HoldfastError, InvalidValue, JournalMissing, JournalQuarantined, PolicyInvalid
from holdfast.events import TERMINAL
from holdfast.policy.rules import CLEAN
from holdfast.policy.stored_rules import narrowest, read_stored
from holdfast.processes.lists import TAIL, read_process, read_task, state_of
from holdfast.processes.state import TRANSFER, id_of, is_process_journal, is_task_id, label_of, signal_of
from holdfast.records import Admitted, Ended, Started
from holdfast.runtime.reconciliation import is_reconciliation_wait
from holdfast.runtime.session_records import read_page
from holdfast.store.waits import is_token
from holdfast.toolkits.agents import SUB_AGENT_WAIT
from holdfast.tools.definition import Complaint
from holdfast.turns import keys
from holdfast.turns.conversation import Said, input_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.agent import Agent
    from holdfast.cli.agents import Reference
    from holdfast.cli.output import Style, Terminal
    from holdfast.cli.run import Screen
    from holdfast.runtime.approvals import Approval
    from holdfast.runtime.runtime import Runtime
    from holdfast.store import Journal, Settlement, Store
    from holdfast.store.contract import Wait
    from holdfast.store.notifications import Notification


MOST: Final = 2_000
"""How much of a call a list shows, in characters. Whoever saw no more than that has not seen a longer one."""
_INDENT: Final = "  "
_STYLES: Final[dict[str, Style]] = {"+": "green", "-": "red"}


def call_text(approval: Approval) -> str:
    """The call as it will run."""
    return f"{escaped(approval.tool)} {as_json(approval.arguments)}"


def is_long(approval: Approval) -> bool:
    """Whether a list shows only the beginning of the call."""
    return len(call_text(approval)) > MOST


def title(out: Terminal, approval: Approval, now: int) -> str:
    """Which call, of whom, since when, and for how long."""
    whose = f"{one_line(approval.session, 60)}  {one_line(approval.tool, 64)} (agent {one_line(approval.agent, 40)})"
    ago = f"{duration(max(now - approval.asked, 0))} ago"
    left = "" if approval.expires is None else f", {duration(max(approval.expires - now, 0))} left"
    return f"{out.paint('approval', 'bold')}  {whose}, {ago}{left}"


def described(out: Terminal, approval: Approval, path: Path, *, whole: bool) -> Iterator[str]:
    """The call behind bars, then why it is asked. Where it is not shown whole, what shows the rest."""
    text = call_text(approval)
    shown = text if whole else text[:MOST]
    yield from _fenced(out, shown.split("\n"))
    if len(shown) < len(text):
        rest = hint(path, "approve", approval.id, "--show")
        yield f"{_INDENT}... {len(text) - len(shown):,} more characters, shown by: {rest}"
    if approval.sandbox is not None:
        yield f"{_INDENT}sandbox  {escaped(approval.sandbox)}"
    yield f"{_INDENT}rule     {escaped(approval.rule)}"
    yield f"{_INDENT}why      {escaped(approval.why)}"


def answers(approval: Approval, path: Path) -> tuple[str, str]:
    """The command that says yes, and the one that says no."""
    return hint(path, "approve", approval.id), hint(path, "deny", approval.id, "--reason", "TEXT")


def difference(out: Terminal, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """What was changed in the arguments, line by line."""
    for name in {**before, **after}:
        old, new = _lines(name, before), _lines(name, after)
        changes = difflib.unified_diff(old, new, n=max(len(old), len(new)), lineterm="")
        for line in [f" {same}" for same in new] if old == new else [*changes][3:]:
            for part in _fenced(out, [line]):
                style = _STYLES.get(line[:1])
                yield part if style is None else out.paint(part, style)


def rule_text(body: str) -> str:
    """A rule that was stored, or would be, in words; as it is where it can't be read."""
    try:
        return escaped(read_stored(body).written)
    except PolicyInvalid:
        return f"{escaped(body)} (can't be read, and allows nothing)"


def _lines(name: str, arguments: dict[str, Any]) -> list[str]:
    """One argument, if it is there."""
    return f"{as_json(name)}: {as_json(arguments[name])}".split("\n") if name in arguments else []


def _fenced(out: Terminal, lines: list[str]) -> Iterator[str]:
    columns = shutil.get_terminal_size().columns - len(_INDENT) if out.live else None
    for line in fenced(lines, columns):
        yield f"{_INDENT}{line}"


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


class OpenWait(NamedTuple):
    """One of these waits."""

    name: str
    label: str
    """How people call it; the whole name where that would not say which."""
    answer: tuple[str, ...]
    """The command that answers it, up to the value."""
    deadline: int | None
    tool: str | None = None
    """The tool that asks."""


async def waits_of(store: Store, line: Journal) -> list[OpenWait]:
    """What a journal that waits waits for."""
    if is_process_journal(line.id):
        return await _of_process(store, line.id)
    if is_task_id(line.id):
        state = await read_task(store, line.id)
        tool = None if state.call is None else state.call.tool
        return await _openwaits_asked(store, line.id, state.waits, tool)
    return (
        await _openwaits_asked(store, line.id, await open_waits(store, line.id), None) if line.kind == "session" else []
    )


async def _openwaits_asked(store: Store, journal: str, names: Iterable[str], tool: str | None) -> list[OpenWait]:
    """Those that tools ask for; what they wait for of others, or of people as approvals, is found elsewhere."""
    found = [wait for name in names if _is_for_people(name) and (wait := await _open(store, journal, name))]
    labels = [wait_label(wait.name) for wait in await store.waits(journal, state="open")] if found else []
    waits: list[OpenWait] = []
    for wait in found:
        label = wait_label(wait.name)
        called = label if labels.count(label) <= 1 else wait.name
        answer = ("resolve", journal, called)
        waits.append(OpenWait(wait.name, label, answer, wait.deadline, tool or _tool(wait.name)))
    return waits


def _is_for_people(name: str) -> bool:
    return approval_in(name) is None and name.rpartition("/")[2].partition("#")[0] != SUB_AGENT_WAIT


async def _of_process(store: Store, journal: str) -> list[OpenWait]:
    glimpse = await store.glimpses([journal], prefix=TRANSFER, tail=TAIL)
    seen = bool(glimpse) and glimpse[0].tail is not None
    state = state_of(glimpse[0]) if seen else await read_process(store, journal)
    id = id_of(journal)
    waits: list[OpenWait] = []
    for name in state.waits:
        wait, label = await _open(store, journal, name), label_of(name)
        if wait is None:
            continue
        if label.startswith("signal "):
            waits.append(OpenWait(name, label, ("processes", "signal", id, signal_of(name)), wait.deadline))
        elif label.startswith("its completion"):
            waits.append(OpenWait(name, label, ("processes", "complete", id), wait.deadline))
        elif name.rpartition("/")[2] == keys.DEFERRAL:
            waits.append(OpenWait(name, wait_label(name), ("resolve", journal, name), wait.deadline))
    return waits


async def _open(store: Store, journal: str, name: str) -> Wait | None:
    """A wait that can still be answered."""
    wait = await store.wait(journal, name)
    late = wait is not None and wait.deadline is not None and wait.deadline <= store.clock.read().wall
    return None if wait is None or wait.state != "open" or late else wait


def _tool(name: str) -> str | None:
    """The tool below whose call a wait stands."""
    key = keys.parse(name)
    if key is None or not key.call:
        return None
    return name.split("/")[3 if key.nested else 2].partition(".")[2] or None


_ANSWERS: Final = '{"done": ...}'
"""What a person may say about a call that was interrupted; also "not_done" and "unknown"."""
_MOST: Final = 1_000
"""Notifications that are shown."""


class Item(msgspec.Struct, frozen=True):
    """One thing that only a person can decide."""

    kind: Literal["approval", "wait", "unknown", "notification"]
    """May a call be made; a tool asks; nobody knows what became of a call; a notification was given up."""
    session: str
    what: str
    """It in one line."""
    since: int
    answer: str
    """The command that answers it."""
    wait: str | None = None
    tool: str | None = None
    deadline: int | None = None
    notification: int | None = None
    deny: str | None = None
    """The command that says no, of an approval."""
    approval: Approval | None = None
    """All of it."""


async def inbox(path: Path, *, as_json: bool) -> int:
    """List what waits for a person: approvals, oldest first; sessions that changed last first; then notifications."""
    async with looking(path) as runtime:
        store = runtime.store
        items = [_approval(found, path) for found in await runtime.approvals()]
        items += [item async for item in _waits(store, path)]
        now = store.clock.read().wall
        unsound = await store.examine(lambda reader: [rule.id for rule, sound in reader.rules.raw() if not sound])
        given_up = await read_notifications(store, None, "dead", _MOST)
        items += [_dead(found, path, again=await _may_try(store, found, now)) for found in given_up]
    for number in unsound:
        stderr().line(f"the stored rule {number} can't be trusted: another program has written it, or it is damaged;")
        stderr().line(f"  nothing is allowed by it. Remove it with: {hint(path, 'rules', 'rm', str(number))}")
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(items).decode())
    elif items:
        out.write("".join(f"{line}\n" for item in items for line in _inbox_lines(out, item, now, path)))
    else:
        out.line("nothing waits for a person")
    return 0


async def _waits(store: Store, path: Path) -> AsyncIterator[Item]:
    for kind in ("session", "process"):  # processes: background calls and durable functions that wait
        last: Journal | None = None
        while page := await store.journals(kind=kind, status="waiting", before=last, limit=store.limits.page):
            for line in page:
                for item in await _readable(store, line, path):
                    yield item
            last = page[-1]


async def _readable(store: Store, line: Journal, path: Path) -> list[Item]:
    """What one of them waits for. One that can't be trusted must not hide the others."""
    try:
        if line.quarantine is not None:
            raise JournalQuarantined(line.id, line.quarantine)
        return await _of_journal(store, line, path)
    except HoldfastError as error:
        stderr().line(f"{one_line(line.id)} can't be read: {one_line(str(error), 200)}")
        return []


async def _of_journal(store: Store, line: Journal, path: Path) -> list[Item]:
    items: list[Item] = []
    for wait in await waits_of(store, line):
        unknown = is_reconciliation_wait(wait.name)
        items.append(
            Item(
                kind="unknown" if unknown else "wait",
                session=line.id,
                what=f"what became of {wait.tool}: it was interrupted" if unknown else _asked(wait.label, wait.tool),
                since=line.updated,
                answer=hint(path, *wait.answer, _ANSWERS if unknown else "JSON"),
                wait=wait.name,
                tool=wait.tool,
                deadline=wait.deadline,
            )
        )
    return items


def _asked(label: str, tool: str | None) -> str:
    return label if tool is None else f"{label} ({tool} asks)"


async def _may_try(store: Store, found: Notification, now: int) -> bool:
    """Whether a notification that was given up could be queued again."""
    if found.expires is not None and found.expires <= now:
        return False
    try:
        return (await store.journal(found.journal)).quarantine is None
    except JournalMissing:
        return False


def _dead(found: Notification, path: Path, *, again: bool) -> Item:
    reason = f": {found.reason}" if found.reason else ""
    return Item(
        kind="notification",
        session=found.journal,
        what=f"{found.title} was not told{reason}",
        since=found.updated,
        answer=hint(path, "notifications", "settle", str(found.id), "queued" if again else "acknowledged"),
        notification=found.id,
    )


def _approval(found: Approval, path: Path) -> Item:
    approve, deny = answers(found, path)
    return Item(
        kind="approval",
        session=found.session,
        what=f"a call of {found.tool}",
        since=found.asked,
        answer=approve,
        tool=found.tool,
        deadline=found.expires,
        deny=deny,
        approval=found,
    )


def _inbox_lines(out: Terminal, item: Item, now: int, path: Path) -> list[str]:
    if item.approval is not None:
        shown = [title(out, item.approval, now), *described(out, item.approval, path, whole=False)]
        return [*shown, f"  {printable(item.answer)}", f"  {printable(item.deny or '')}"]
    ago = f"{duration(max(now - item.since, 0))} ago"
    left = "" if item.deadline is None else f", {duration(max(item.deadline - now, 0))} left"
    head = f"{item.kind}  {one_line(item.session, 60)}  {one_line(item.what, 200)}, {ago}{left}"
    return [head.replace(item.kind, out.paint(item.kind, "bold"), 1), f"  {printable(item.answer)}"]


async def resolve(path: Path, given: Sequence[str], error: str | None, as_json: bool) -> int:  # noqa: FBT001
    """Answer a wait with a JSON value, or with an error."""
    place, value = _resolving_read(given, error)
    async with changing(path) as runtime:
        key = place[0] if is_token(place[0]) else await _key_of(runtime, place[0], place[1])
        settlement = await runtime.resolve(key, value, error=error)
        journal = settlement.wait.journal
        found = await runtime.store.journal(journal)
        line = await read_line(runtime.store, found)
    if as_json:
        stdout().line(msgspec.json.encode(_told(settlement)).decode())
        return 0 if settlement.won else FAILED
    label = wait_label(settlement.wait.name)
    if not settlement.won:
        stderr().line(f"too late: {label!r} was {settlement.wait.state} before")
        return FAILED
    stdout().line(f"answered {label!r} of {journal}")
    if line.pid is None:
        stderr().line(f"go on with: {_go_on(path, found)}")
    return 0


def _go_on(path: Path, found: Journal) -> str:
    if is_process_journal(found.id):
        return hint(path, "processes", "work", "MODULE")
    return hint(path, "resume", (found.session if is_task_id(found.id) else None) or found.id)


def _told(settlement: Settlement) -> dict[str, Any]:
    wait = settlement.wait
    return {"won": settlement.won, "state": wait.state, "session": wait.journal, "wait": wait.name}


def _resolving_read(given: Sequence[str], error: str | None) -> tuple[list[str], Any]:
    """What is answered (a key, or a session and the name of a wait), and the value."""
    wanted = (1 if is_token(given[0]) else 2) + (error is None)
    if len(given) != wanted:
        answer = "--error TEXT" if error is not None else "JSON"
        message = f"give KEY {answer}, or ID WAIT {answer}; an answer is a value or an error"
        raise CallInvalid(message)
    if error is not None:
        return list(given), None
    *place, text = given
    try:
        return place, msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        message = f"{text!r} is no JSON; quote it for the shell: true, 42, '\"words\"', '{{\"ok\": true}}'"
        raise CallInvalid(message) from None


async def _key_of(runtime: Runtime, given: str, name: str) -> str:
    session = (await find(runtime.store, given, others=True)).id
    return runtime.wait_token(session, await _named_wait(runtime, session, name))


async def _named_wait(runtime: Runtime, session: str, name: str) -> str:
    """The wait with this name, or whose last part this is."""
    names = [wait.name for wait in await runtime.waits(session)]
    for known in names:
        asked = approval_in(known)
        if asked is not None and name in {known, wait_label(known), asked.id}:
            raise ApprovalNotResolved(session, asked.id)
    if name in names:
        return name
    found = [known for known in names if wait_label(known) == name]
    if len(found) > 1:
        message = f"{session!r} has several waits called {name!r}: {', '.join(found)}; give the whole name"
        raise CallInvalid(message)
    if not found:
        raise WaitNotOpen(session, name, [wait_label(known) for known in names])
    return found[0]


REFUSED_MOST: Final = 200


async def refused(path: Path, *, as_json: bool) -> int:
    """List the last ones, newest first."""
    async with looking(path) as runtime:
        found = await runtime.refusals(limit=REFUSED_MOST)
        now = runtime.store.clock.read().wall
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(found).decode())
        return 0
    for refusal in found:
        ago = duration(max(now - refusal.at, 0))
        head = out.paint(refusal.error, "bold")
        out.line(f"{head}  {one_line(refusal.journal, 60)}, {ago} ago, number {refusal.nth:,} of this session")
        out.line(f"  {one_line(refusal.message, 300)}")
    if not found:
        out.line("no input was refused")
    return 0


_TITLES: Final = 3
"""How many notifications are named."""


async def reason_of(store: Store, session: str, turn: str) -> str | None:
    """Why a turn began by itself, in one line; None when somebody asked for it."""
    number = keys.input_of(turn)
    # It is among the newest ones: the session was just told of it.
    newest = await store.notifications(session, limit=store.limits.page)
    found = [notice for notice in newest if notice.input == number][::-1]
    return None if not found else f"{turn} began by itself: {_named(found)}"


def _named(found: list[Notification]) -> str:
    shown = [f"notification {notice.id}, {one_line(notice.title, 80)}" for notice in found[:_TITLES]]
    left = len(found) - len(shown)
    return "; ".join([*shown, *([f"and {left:,} more"] if left else [])])


class Unasked:
    """The turns of one session that began by themselves since record `head`; each is shown once."""

    def __init__(self, runtime: Runtime, session: str, path: Path, head: int) -> None:
        self._runtime = runtime
        self._session = session
        self._path = path
        self._head = head
        self._begun: dict[str, int] = {}
        """Behind which record each turn began."""
        self._ended: set[str] = set()
        self._seen: set[str] = set()
        self._left: deque[str] = deque()

    def saw(self, turn: str) -> None:
        """A turn was shown elsewhere."""
        self._seen.add(turn)

    async def show(self, screen: Screen) -> Followed | None:
        """Show the next one, with the reason why it began; None when there is none now."""
        await self._read()
        while self._left:
            turn = self._left.popleft()
            if turn not in self._seen:
                self._seen.add(turn)
                return await self._shown(turn, screen)
        return None

    async def _shown(self, turn: str, screen: Screen) -> Followed:
        reason = await reason_of(self._runtime.store, self._session, turn)
        if reason is not None:
            screen.remark(reason)
        handle = self._runtime.session(self._session).turn(turn)
        if turn not in self._ended:
            return await Follower(self._runtime, handle, screen, self._path).follow(self._begun[turn], turn)
        async for event in self._runtime.session(self._session).events(self._begun[turn]):
            if event.turn == turn:
                screen.event(event)
                if isinstance(event, TERMINAL):
                    break
        outcome = await handle.outcome()
        screen.ended(outcome)
        return Followed(EXITS[outcome.status])

    async def _read(self) -> None:
        """Take in what was recorded since the last look."""
        try:
            while page := await read_page(self._runtime.store, self._session, self._head):
                for seq, record in page:
                    match record:
                        case Started():
                            self._begun[record.run] = seq - 1
                        case Admitted() if _begins(record):
                            self._left.append(keys.run_of(record.input))
                        case Ended():
                            self._ended.add(record.run)
                        case _:
                            pass
                self._head = page[-1][0]
        except JournalMissing:  # nothing was ever said
            return


def _begins(record: Admitted) -> bool:
    """Whether a notification begins a turn here, and does not enter one that runs."""
    if record.run is None or record.run != keys.run_of(record.input):
        return False
    said = input_of(bytes(record.body))
    return isinstance(said, Said) and said.origin == "holdfast"
