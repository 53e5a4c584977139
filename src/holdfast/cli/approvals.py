"""`holdfast approve`, `deny`, `inbox` and `resolve`: waits for a person, and the answers.

The store is closed while a person thinks. The answer is bound to the shown call by its digest.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import pwd
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from holdfast import clock, errors
from holdfast.agent import Agent, prepare
from holdfast.cli import options, output, sessions
from holdfast.cli.agents import AgentReference, AgentUnavailable, choose_reference, recorded_reference
from holdfast.cli.memory import Draft
from holdfast.cli.notifications import read_notifications
from holdfast.cli.options import DEFAULT_STORE, FAILED, CallInvalid, Shell, argument, flag, hint, option, parse_json
from holdfast.cli.output import Terminal, ask_yes_no, escape_invisible, one_line, printable, stderr, stdout, time_left
from holdfast.cli.sessions import approval_of_wait, edit_runtime, find_target, open_waits, view_runtime, wait_label
from holdfast.effects.canonical import canonical
from holdfast.errors.store import not_served
from holdfast.names import is_process_journal, is_task_id
from holdfast.policy.approvals import narrowest_rule, parse_stored_rule
from holdfast.policy.rules import CLEAN, decide
from holdfast.processes.keys import process_id_of, signal_name
from holdfast.processes.keys import wait_label as label_of
from holdfast.processes.lists import glance_process, read_pages
from holdfast.runtime.approvals import Approval
from holdfast.runtime.reconciliation import is_reconciliation_wait
from holdfast.runtime.runtime import Runtime
from holdfast.store import Journal, Store
from holdfast.store.contract import Wait
from holdfast.store.inbox import RefusedInput
from holdfast.store.notifications import Notification
from holdfast.store.waits import is_token
from holdfast.toolkits.agents import SUB_AGENT_WAIT
from holdfast.tools.definition import Complaint
from holdfast.turns import keys

ApprovalArgument = Annotated[str, argument("ID", "An approval of 'holdfast inbox'; the beginning of its id is enough.")]
ByOption = Annotated[str | None, option("NAME", "Who answers, if not the user who is logged in.", show_default=False)]


# ---- printing an approval --------------------------------------------------------------------------------------------

LISTED_LENGTH: Final = 2_000
"""Characters of a call in a list. A longer call must be shown whole before it is approved."""


def call_text(approval: Approval) -> str:
    """The call as text, with all its arguments."""
    return f"{escape_invisible(approval.tool)} {output.format_json(approval.arguments)}"


def is_long(approval: Approval) -> bool:
    """True if a list shows only the beginning of the call."""
    return len(call_text(approval)) > LISTED_LENGTH


def approval_title(out: Terminal, approval: Approval) -> str:
    """One line with the session, the tool, the agent, the time since the request and the time left."""
    whose = f"{one_line(approval.session, 60)}  {one_line(approval.tool, 64)} (agent {one_line(approval.agent, 40)})"
    left = "" if approval.expires is None else f", {time_left(approval.expires)} left"
    return f"{out.paint('approval', 'bold')}  {whose}, {output.ago(approval.asked)}{left}"


def describe_approval(out: Terminal, approval: Approval, path: Path, *, whole: bool) -> Iterator[str]:
    """The call behind bars, and the rule that asks. A shortened call also gets the command that shows all of it."""
    text = call_text(approval)
    shown = text if whole else text[:LISTED_LENGTH]
    yield from _fence_lines(out, shown.split("\n"))
    if len(shown) < len(text):
        rest = hint(path, "approve", approval.id, "--show")
        yield f"  ... {len(text) - len(shown):,} more characters, shown by: {rest}"
    if approval.sandbox is not None:
        yield f"  sandbox  {escape_invisible(approval.sandbox)}"
    yield f"  rule     {escape_invisible(approval.rule)}"
    yield f"  why      {escape_invisible(approval.why)}"


def answer_commands(approval: Approval, path: Path) -> tuple[str, str]:
    """The command that approves, and the one that denies."""
    return hint(path, "approve", approval.id), hint(path, "deny", approval.id, "--reason", "TEXT")


def diff_arguments(out: Terminal, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """The changed arguments as lines of a diff."""
    styles: dict[str, output.Style] = {"+": "green", "-": "red"}
    for name in {**before, **after}:
        old, new = (
            f"{output.format_json(name)}: {output.format_json(arguments[name])}".split("\n")
            if name in arguments
            else []
            for arguments in (before, after)
        )
        changes = difflib.unified_diff(old, new, n=max(len(old), len(new)), lineterm="")
        for line in [f" {same}" for same in new] if old == new else [*changes][3:]:
            style = styles.get(line[:1])
            yield from (part if style is None else out.paint(part, style) for part in _fence_lines(out, [line]))


def rule_text(body: str) -> str:
    """A stored rule in words; its body if it can't be read."""
    try:
        return escape_invisible(parse_stored_rule(body).written)
    except errors.PolicyInvalid:
        return f"{escape_invisible(body)} (can't be read, and allows nothing)"


def _fence_lines(out: Terminal, lines: list[str]) -> Iterator[str]:
    columns = shutil.get_terminal_size().columns - 2 if out.live else None
    return (f"  {line}" for line in output.fence_lines(lines, columns))


# ---- approve and deny ------------------------------------------------------------------------------------------------

_ALWAYS_ASKED: Final = {
    "taint": "the turn has read untrusted input and private data, and then every such call is asked about",
    "hook": "a hook of the program wants to be sure of each call",
}
"""Rules that no stored rule can answer, and why."""


@dataclass(frozen=True, slots=True)
class _ApprovalDialog:
    """A call that a person is about to approve."""

    approval: Approval
    store: Path
    by: str
    agent: Agent | None
    """The agent that wants to make the call, if it is there."""
    asks: bool
    """True if the person at the terminal confirms."""

    def confirm(self, arguments: dict[str, Any] | None) -> bool:
        length = len(call_text(self.approval))
        long = f" ({length:,} characters)" if length > LISTED_LENGTH else ""
        how = "" if arguments is None else " with the changed arguments"
        return not self.asks or ask_yes_no(f"Approve this call of {self.approval.tool}{long}{how}?")

    def leave_open(self) -> int:
        stdout().line(f"nothing was approved; {self.approval.id} still waits")
        return FAILED

    def parse_arguments(self, text: str) -> tuple[dict[str, Any], str | None]:
        """The arguments in a text, and the reason why the tool or the policy refuses them, as far as known."""
        try:
            found: object = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return {}, f"it is no JSON ({error})"
        if not isinstance(found, dict):
            return {}, "a JSON object with the arguments is wanted"
        arguments = cast("dict[str, Any]", found)
        try:
            canonical(arguments)
        except errors.InvalidValue as error:
            return {}, str(error)
        if self.agent is None:
            return arguments, None
        bound = self.agent.tools[self.approval.tool].bind(arguments)
        if isinstance(bound, Complaint):
            reasons = "; ".join(line.removeprefix("- ") for line in bound.text.split("\n")[1:-1])
            return arguments, escape_invisible(reasons or bound.text)
        decision = decide(self.agent.policy, prepare(self.agent).subject(self.approval.tool, arguments), CLEAN)
        if decision.verdict != "deny":
            return arguments, None
        return arguments, f"{escape_invisible(decision.why)} ({escape_invisible(decision.rule)})"

    def print_changes(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Print the difference to the arguments of the call, and return the new ones; None without changes."""
        out = stdout()
        if canonical(arguments) == canonical(self.approval.arguments):
            out.line("nothing was changed")
            return None
        out.line("changed:")
        out.lines(diff_arguments(out, self.approval.arguments, arguments))
        return arguments

    def edit(self) -> int:
        """Let a person edit the arguments until they are valid, and approve the call with them."""
        draft = Draft(f"{self.approval.tool}.json", f"{output.format_json(self.approval.arguments, width=0)}\n")
        while True:
            text = draft.edit()
            if not text.strip():
                draft.remove()
                return self.leave_open()
            arguments, problem = self.parse_arguments(text)
            if problem is not None:
                stdout().line(f"this can't be used: {problem}")
                if not self.asks or not ask_yes_no("Edit it again?", usual=True):
                    raise draft.left("nothing was approved")
                continue
            changed = self.print_changes(arguments)
            if changed is None and not self.asks:
                draft.remove()
                raise CallInvalid(
                    "nothing was changed, so nothing was approved; without --edit it is approved as it is"
                )
            if not self.confirm(changed):
                if changed is not None:
                    raise draft.left("nothing was approved")
                draft.remove()
                return self.leave_open()
            code = asyncio.run(self.approve(changed))
            draft.remove()
            return code

    async def approve(self, arguments: dict[str, Any] | None, always: str | None = None) -> int:
        approval = self.approval
        async with edit_runtime(self.store) as runtime:
            if self.agent is not None:
                runtime.register(self.agent)
            await runtime.approve(approval.id, by=self.by, arguments=arguments, always=always, digest=approval.digest)
            how = "" if arguments is None else ", with changed arguments"
            stdout().line(f"approved {approval.id}: {approval.tool} of {approval.session}{how}")
            if always is not None:
                stdout().line(f"stored that rule for agent {approval.agent}: {hint(self.store, 'rules')}")
            await _print_next_step(runtime, self.store, approval)
        return 0


def approve(
    id: ApprovalArgument,
    *,
    by: ByOption = None,
    edit: Annotated[bool, flag("Change the arguments first, in $VISUAL or $EDITOR.", "--edit")] = False,
    arguments: Annotated[str | None, option("JSON", "Approve it with these arguments instead.")] = None,
    always: Annotated[
        bool, flag("Store a rule, too, that answers calls like this one from now on.", "--always")
    ] = False,
    show: Annotated[bool, flag("Only show the call, all of it.", "--show")] = False,
    yes: Annotated[bool, flag("Do not ask; for calls that lists show whole.", "--yes", "-y")] = False,
    yes_all: Annotated[bool, flag("Do not ask, however long the call is.", "--yes-all")] = False,
    agent: options.Agent = None,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Allow a call, once and exactly as it is shown. The first answer counts.

    The call is shown in full, and you are asked. --always and changed arguments need the agent: the one that the
    session was run with, or that of --agent. Exit code 1 if nothing was approved.
    """
    changes = edit or arguments is not None
    if edit and arguments is not None:
        raise CallInvalid("--edit opens an editor, --arguments gives the arguments: give one of them")
    if always and changes:
        raise CallInvalid("--always is for the call as it is: leave out --edit and --arguments")
    if show and (changes or always or yes or yes_all):
        raise CallInvalid("--show only shows the call, and answers nothing: give it alone")
    approval, recorded = asyncio.run(_read_approval(store, id))
    out = stdout()
    lines = [approval_title(out, approval), *describe_approval(out, approval, store, whole=True)]
    if show:
        out.lines([*lines, *(f"  {each}" for each in answer_commands(approval, store))])
        return 0
    asks, whole = not (yes or yes_all), hint(store, "approve", approval.id, "--show")
    if asks and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CallInvalid(f"this is no terminal, so you can't be asked: look at it with '{whole}', then --yes")
    if yes and not yes_all and is_long(approval):
        raise CallInvalid(
            f"the call has {len(call_text(approval)):,} characters, and lists show {LISTED_LENGTH:,}: look at all of "
            f"it with '{whole}', then --yes-all; or leave out --yes"
        )
    loaded = _load_agent(approval, agent, recorded) if changes or always else None
    rule = _rule_for(approval, loaded) if always else None
    if rule is not None:
        lines.append(f"  always   {rule_text(rule)}")
    out.lines(lines)
    dialog = _ApprovalDialog(approval, store, by or login(), loaded, asks)
    if edit:
        return dialog.edit()
    changed = None
    if arguments is not None:
        parsed, problem = dialog.parse_arguments(arguments)
        if problem is not None:
            raise CallInvalid(f"--arguments can't be used: {problem}")
        changed = dialog.print_changes(parsed)
    if not dialog.confirm(changed):
        return dialog.leave_open()
    if rule is not None and asks and not ask_yes_no(f"Store that rule for agent {approval.agent}, too?"):
        out.line("no rule is stored; the call is approved this once")
        rule = None
    return asyncio.run(dialog.approve(changed, rule))


async def deny(
    id: ApprovalArgument,
    *,
    reason: Annotated[str, option("TEXT", "Why, for the model.", show_default=False)] = "",
    by: ByOption = None,
    store: options.Store = DEFAULT_STORE,
) -> None:
    """Refuse a call; the model learns of it, and the turn goes on. The first answer counts."""
    async with edit_runtime(store) as runtime:
        found = await sessions.find_approval(runtime, id)
        denied = await runtime.deny(found.id, reason, by=by or login())
        stdout().line(f"denied {denied.id}: {denied.tool} of {denied.session}")
        await _print_next_step(runtime, store, denied)


async def _read_approval(path: Path, id: str) -> tuple[Approval, AgentReference | None]:
    """An approval, and the recorded reference of the agent if the session was started from the shell."""
    async with view_runtime(path) as runtime:
        approval = await sessions.find_approval(runtime, id)
        line = await runtime.store.journal(approval.session)
        return approval, await recorded_reference(path, runtime.store, line)


def _load_agent(approval: Approval, given: str | None, recorded: AgentReference | None) -> Agent | None:
    """Load the agent that wants to make the call. If the recorded one is missing, print a remark and return None."""
    try:
        reference = choose_reference(approval.session, given, recorded)
        agent = reference.load()
        if agent.name == approval.agent and approval.tool in agent.tools:
            return agent
        if agent.name == approval.agent and agent.providers:
            of_turn = f"{approval.tool!r} is a tool of the turn, which a provider has listed"
            stderr().line(f"holdfast: {of_turn}: changed arguments are checked when the turn goes on")
            return None
        why = f"{str(reference)!r} is not the agent {approval.agent!r} with the tool {approval.tool!r}"
        if given is not None:
            raise CallInvalid(f"{why}; it is that one which asks")
    except AgentUnavailable as error:
        if given is not None:
            raise
        why = str(error)
    stderr().line(f"holdfast: the agent is not there ({escape_invisible(why)}); --agent file.py:name names it")
    return None


def _rule_for(approval: Approval, agent: Agent | None) -> str:
    """The narrowest rule that allows the call."""
    if approval.rule in _ALWAYS_ASKED:
        raise CallInvalid(f"no rule can answer this: {_ALWAYS_ASKED[approval.rule]}. Approve it without --always")
    if agent is None:
        raise CallInvalid(
            "--always needs the agent, with the tool in its code, to make a rule of the call; approve it without, or "
            "give --agent"
        )
    rule = narrowest_rule(prepare(agent).subject(approval.tool, approval.arguments))
    if rule is None:
        raise CallInvalid(
            "no rule can tell calls like this one from others: rules compare commands, hosts, and arguments that are "
            "words, numbers or true and false; this call has others, or none. Approve it without --always"
        )
    return rule


async def _print_next_step(runtime: Runtime, path: Path, approval: Approval) -> None:
    """Print the next command for the session, and its remaining approvals."""
    err = stderr()
    if more := len(await runtime.approvals(approval.session)):
        err.line(f"{more} more of {approval.session} wait{'s' if more == 1 else ''}: {hint(path, 'inbox')}")
    line = await sessions.read_session_line(runtime.store, await runtime.store.journal(approval.session))
    if line.pid is None:
        err.line(f"go on with: {hint(path, 'resume', approval.session)}")
    else:
        err.line(f"process {line.pid} works on {approval.session}, and goes on with it")


def login() -> str:
    """The name of the logged-in user; not from the environment, which anyone can set."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return f"uid {os.getuid()}"


# ---- inbox -----------------------------------------------------------------------------------------------------------

_RECONCILE_ANSWER: Final = '{"done": ...}'
"""The answer about an interrupted call; also "not_done" and "unknown"."""


class InboxItem(msgspec.Struct, frozen=True):
    """One decision that only a person can take."""

    kind: Literal["approval", "wait", "unknown", "notification"]
    """A call needs an approval; a tool asks; a call was interrupted; a notification was given up."""
    session: str
    what: str
    """A description in one line."""
    since: int
    answer: str
    """The command that answers it."""
    wait: str | None = None
    tool: str | None = None
    deadline: int | None = None
    notification: int | None = None
    deny: str | None = None
    """The command that denies an approval."""
    approval: Approval | None = None


async def inbox(
    shell: Shell,
    *,
    refused: Annotated[
        bool, flag("List the last inputs that were not accepted, and why, instead.", "--refused")
    ] = False,
) -> None:
    """List what waits for a person, with the command that answers each.

    These are calls that want an approval, the waits of sessions, interrupted calls whose outcome is unknown, and
    notifications that were given up.
    """
    if refused:
        await _print_refusals(shell)
        return
    async with view_runtime(shell.store) as runtime:
        opened = runtime.store
        items = [_approval_item(found, shell.store) for found in await runtime.approvals()]
        items += await _wait_items(opened, shell.store)
        unsound = await opened.examine(lambda reader: [rule.id for rule, sound in reader.rules.raw() if not sound])
        given_up = await read_notifications(opened, None, "dead", 1_000)
        items += [await _notification_item(opened, found, shell.store) for found in given_up]
    for number in unsound:
        stderr().line(f"the stored rule {number} can't be trusted: another program has written it, or it is damaged;")
        stderr().line(f"  nothing is allowed by it. Remove it with: {hint(shell.store, 'rules', 'rm', str(number))}")
    shell.print_each(items, lambda out, item: _item_lines(out, item, shell.store), nothing="nothing waits for a person")


async def _print_refusals(shell: Shell) -> None:
    async with view_runtime(shell.store) as runtime:
        found = await runtime.refusals(limit=200)

    def lines(out: Terminal, refusal: RefusedInput) -> Iterator[str]:
        head = f"{out.paint(refusal.error, 'bold')}  {one_line(refusal.journal, 60)}"
        yield f"{head}, {output.ago(refusal.at)}, number {refusal.nth:,} of this session"
        yield f"  {one_line(refusal.message, 300)}"

    shell.print_each(found, lines, nothing="no input was refused")


def _approval_item(found: Approval, path: Path) -> InboxItem:
    approve, deny = answer_commands(found, path)
    item = InboxItem("approval", found.session, f"a call of {found.tool}", found.asked, approve, tool=found.tool)
    return msgspec.structs.replace(item, deadline=found.expires, deny=deny, approval=found)


async def _wait_items(store: Store, path: Path) -> list[InboxItem]:
    items: list[InboxItem] = []
    for kind in ("session", "process"):  # processes: background calls and durable functions
        async for line in read_pages(store.journals, kind=kind, status="waiting"):
            try:
                if line.moved:
                    continue
                if line.quarantine is not None:
                    raise not_served(line.id, line.quarantine)
                read = _process_waits if is_process_journal(line.id) else tool_waits
                items += await read(store, line, path)
            except errors.HoldfastError as error:  # a damaged journal must not hide the others
                stderr().line(f"{one_line(line.id)} can't be read: {one_line(str(error), 200)}")
    return items


async def tool_waits(store: Store, line: Journal, path: Path) -> list[InboxItem]:
    """The waits that tools of a session or a background call opened.

    Approvals are listed elsewhere, and sub-agents answer theirs.
    """
    names, caller = (await open_waits(store, line.id) if line.kind == "session" else ()), None
    if is_task_id(line.id):
        state = await glance_process(store, line.id)
        names, caller = state.waits, None if state.call is None else state.call.tool
    own = [
        name
        for name in names
        if approval_of_wait(name) is None and name.rpartition("/")[2].partition("#")[0] != SUB_AGENT_WAIT
    ]
    found = [wait for name in own if (wait := await _read_open_wait(store, line.id, name))]
    labels = [wait_label(wait.name) for wait in await store.waits(line.id, state="open")] if found else []
    items: list[InboxItem] = []
    for wait in found:
        label, tool, key = wait_label(wait.name), caller, keys.parse_key(wait.name)
        if tool is None and key is not None and key.call:
            tool = wait.name.split("/")[3 if key.nested else 2].partition(".")[2] or None
        name = label if labels.count(label) <= 1 else wait.name  # the whole name where a label would be ambiguous
        items.append(_wait_item(path, line, wait, label, "resolve", line.id, name, tool=tool))
    return items


async def _process_waits(store: Store, line: Journal, path: Path) -> list[InboxItem]:
    """The waits of a durable function that a person can answer."""
    state = await glance_process(store, line.id)
    id = process_id_of(line.id)
    items: list[InboxItem] = []
    for name in state.waits:
        wait, label = await _read_open_wait(store, line.id, name), label_of(name)
        if wait is None:
            continue
        if label.startswith("signal "):
            items.append(_wait_item(path, line, wait, label, "processes", "signal", id, signal_name(name)))
        elif label.startswith("its completion"):
            items.append(_wait_item(path, line, wait, label, "processes", "complete", id))
        elif name.rpartition("/")[2] == keys.DEFERRAL:
            items.append(_wait_item(path, line, wait, wait_label(name), "resolve", line.id, name))
    return items


def _wait_item(path: Path, line: Journal, wait: Wait, label: str, *answer: str, tool: str | None = None) -> InboxItem:
    """An open wait. `answer` is the command that answers it, up to the value."""
    unknown = is_reconciliation_wait(wait.name)
    if unknown:
        what = f"what became of {tool}: it was interrupted"
    else:
        what = label if tool is None else f"{label} ({tool} asks)"
    kind = "unknown" if unknown else "wait"
    command = hint(path, *answer, _RECONCILE_ANSWER if unknown else "JSON")
    return InboxItem(kind, line.id, what, line.updated, command, wait=wait.name, tool=tool, deadline=wait.deadline)


async def _read_open_wait(store: Store, journal: str, name: str) -> Wait | None:
    wait = await store.wait(journal, name)
    late = wait is not None and wait.deadline is not None and wait.deadline <= clock.wall_time()
    return None if wait is None or wait.state != "open" or late else wait


async def _notification_item(store: Store, found: Notification, path: Path) -> InboxItem:
    try:
        may_retry = (await store.journal(found.journal)).quarantine is None
    except errors.JournalMissing:
        may_retry = False
    may_retry = may_retry and (found.expires is None or found.expires > clock.wall_time())
    reason = f": {found.reason}" if found.reason else ""
    what = f"{found.title} was not told{reason}"
    command = hint(path, "notifications", "settle", str(found.id), "queued" if may_retry else "acknowledged")
    return InboxItem("notification", found.journal, what, found.updated, command, notification=found.id)


def _item_lines(out: Terminal, item: InboxItem, path: Path) -> Iterator[str]:
    if item.approval is not None:
        yield approval_title(out, item.approval)
        yield from describe_approval(out, item.approval, path, whole=False)
    else:
        left = "" if item.deadline is None else f", {time_left(item.deadline)} left"
        head = f"{one_line(item.session, 60)}  {one_line(item.what, 200)}, {output.ago(item.since)}{left}"
        yield f"{out.paint(item.kind, 'bold')}  {head}"
    yield from (f"  {printable(command)}" for command in (item.answer, item.deny) if command)


# ---- resolve ---------------------------------------------------------------------------------------------------------


async def resolve(
    shell: Shell,
    id: Annotated[str, argument("KEY|ID", "The key that a tool has given out, or a session.")],
    wait: Annotated[str | None, argument("[WAIT]", "The wait of a session, as 'ps' shows it.")] = None,
    value: Annotated[str | None, argument("JSON", "The answer.")] = None,
    *,
    error: Annotated[str | None, option("TEXT", "Fail the wait, with this reason.")] = None,
) -> int:
    """Give the result of a call that was deferred (KEY JSON), or answer a wait of a session (ID WAIT JSON).

    The first answer counts. Exit code 0 if it was this one, 1 if it was too late.
    """
    words = [id, *(word for word in (wait, value) if word is not None)]
    if len(words) != (1 if is_token(id) else 2) + (error is None):
        answer = "--error TEXT" if error is not None else "JSON"
        raise CallInvalid(f"give KEY {answer}, or ID WAIT {answer}; an answer is a value or an error")
    answer = None if error is not None else parse_json(words.pop())
    async with edit_runtime(shell.store) as runtime:
        key = id if is_token(id) else await _wait_key(runtime, *words)
        settlement = await runtime.resolve(key, answer, error=error)
        settled = settlement.wait
        journal = await runtime.store.journal(settled.journal)
        line = await sessions.read_session_line(runtime.store, journal)
    if shell.as_json:
        stdout().json({"won": settlement.won, "state": settled.state, "session": settled.journal, "wait": settled.name})
        return 0 if settlement.won else FAILED
    label = wait_label(settled.name)
    if not settlement.won:
        stderr().line(f"too late: {label!r} was {settled.state} before")
        return FAILED
    stdout().line(f"answered {label!r} of {settled.journal}")
    if line.pid is None:
        if is_process_journal(journal.id):
            command = hint(shell.store, "processes", "work", "MODULE")
        else:
            command = hint(shell.store, "resume", (journal.session if is_task_id(journal.id) else None) or journal.id)
        stderr().line(f"go on with: {command}")
    return 0


async def _wait_key(runtime: Runtime, given: str, name: str) -> str:
    """The key of the session's wait with this name or label."""
    session = (await find_target(runtime.store, given, others=True)).id
    names = [wait.name for wait in await runtime.waits(session)]
    for known in names:
        approval = approval_of_wait(known)
        if approval is not None and name in {known, wait_label(known), approval.id}:
            answers = f"use 'holdfast approve {approval.id}' or 'holdfast deny {approval.id}'"
            raise CallInvalid(f"{approval.id!r} of {session!r} is an approval, and no value answers it: {answers}")
    found = [name] if name in names else [known for known in names if wait_label(known) == name]
    if len(found) > 1:
        raise CallInvalid(f"{session!r} has several waits called {name!r}: {', '.join(found)}; give the whole name")
    if not found:
        waits = ", ".join(map(wait_label, names)) or "nothing"
        raise CallInvalid(f"{session!r} does not wait for {name!r}: it waits for {waits}")
    return runtime.wait_token(session, found[0])
