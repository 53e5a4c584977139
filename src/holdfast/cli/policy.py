"""`holdfast policy` and `holdfast rules`: the permissions of an agent, and the rules that people stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec

from holdfast.agent import Agent, name_tools, prepare
from holdfast.cli import agents, approvals, options, output
from holdfast.cli.options import DEFAULT_STORE, CallInvalid, CommandGroup, Shell, argument, flag, option
from holdfast.cli.sessions import edit_runtime, view_runtime
from holdfast.policy.rules import Decision, ListedRule, Policy, Rule, Taint, Verdict, decide
from holdfast.policy.rules import list_rules as tried
from holdfast.processes.lists import read_pages
from holdfast.store.waits import EVERY_AGENT, StoredRule
from holdfast.tools import Complaint

DENIED: Final = 6
"""The exit code for a call that would be denied."""

_STYLES: Final[dict[str, output.Style]] = {"allow": "green", "ask": "yellow", "deny": "red"}

policy = CommandGroup(no_args_is_help=True, help="Show what an agent may do, and try a call without making it.")
PolicyOption = Annotated[Path | None, option("PATH", "This policy file, instead of the agent's policy.", "--policy")]


# ---- policy check ----------------------------------------------------------------------------------------------------


@policy.command()
def check(
    printer: options.Printer,
    agent: options.AgentName,
    call: Annotated[str, argument("CALL", "A tool and its arguments: 'refund {\"cents\": 900}'.")],
    *,
    taint: Annotated[
        str,
        option("KINDS", "What the turn has read before: untrusted, private, or both with a comma.", show_default=False),
    ] = "",
    file: PolicyOption = None,
) -> int:
    """Decide about a call as if an agent had made it, and print which rule decided. Nothing is called.

    Exit codes: 0 allowed, 3 a person would be asked, 6 denied; 2 wrong call, 1 failed.
    """
    loaded = agents.load_agent(agent)
    tool, args = _parse_call(loaded, call)
    kinds = {word.strip() for word in taint.split(",") if word.strip()}
    if not kinds <= {"untrusted", "private"}:
        raise CallInvalid(f"--taint is untrusted, private, or untrusted,private; not {taint!r}")
    subject = prepare(loaded).subject(tool, args)
    decision = decide(_policy_of(loaded, file), subject, Taint("untrusted" in kinds, "private" in kinds))
    args = dict(subject.args)
    report = {"tool": tool, "args": args, "decision": decision}
    printer.print(report, lambda out: _decision_lines(out, f"{tool} {output.json_text(args)}", decision))
    exits: dict[Verdict, int] = {"allow": 0, "ask": options.WAITING, "deny": DENIED}
    return exits[decision.verdict]


def _policy_of(agent: Agent, file: Path | None) -> Policy | None:
    return agent.policy if file is None else Policy.load(file)


def _parse_call(agent: Agent, call: str) -> tuple[str, dict[str, Any]]:
    words = call.split(maxsplit=1)
    tool = agent.tools.get(words[0]) if words else None
    if tool is None:
        raise CallInvalid(f"{agent.name!r} has no tool {words[0] if words else ''!r}; it has: {name_tools(agent)}")
    try:
        args: object = msgspec.json.decode(words[1]) if len(words) > 1 else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CallInvalid(f"the arguments of {tool.name!r} are no JSON: {error}") from None
    if not isinstance(args, dict):
        raise CallInvalid(f"the arguments of {tool.name!r} are no JSON object; write '{tool.name} {{\"name\": 1}}'")
    found = cast("dict[str, Any]", args)
    bound = tool.bind(found)
    if isinstance(bound, Complaint):
        raise CallInvalid(bound.text)
    return tool.name, found


def _decision_lines(out: output.Terminal, call: str, decision: Decision) -> list[str]:
    texts = {decision.verdict: call, "rule": decision.rule, "why": decision.why}
    rows = [[name, output.one_line(text, 1_000)] for name, text in texts.items()]
    if decision.expires_ms is not None:
        rows.append(["open", f"{output.duration(decision.expires_ms)}, then it is denied"])
    rows[0][0] = out.paint(decision.verdict, "bold", _STYLES[decision.verdict])
    return output.table(rows)


# ---- policy show -----------------------------------------------------------------------------------------------------


class RuleLine(msgspec.Struct, frozen=True):
    """One rule or constraint of a policy."""

    number: int
    says: str
    tools: str
    conditions: tuple[str, ...]
    name: str | None
    reaches: tuple[str, ...]
    """The tools of the agent that it is about."""


class PolicyListing(msgspec.Struct, frozen=True):
    """The policy of an agent: its rules in the order in which they are tried."""

    agent: str
    policy: bool
    """True if the agent has a policy."""
    taint: bool
    rules: tuple[RuleLine, ...]
    providers: tuple[str, ...] = ()
    """Its tool providers: rules may be about tools that only a turn knows."""


@policy.command()
def show(printer: options.Printer, agent: options.AgentName, *, file: PolicyOption = None) -> None:
    """List the rules of an agent in the order in which they are tried, and the tools that each is about.

    Closer rules go first, and of equally close ones the strictest that holds decides. Constraints come after the rules.
    """
    loaded = agents.load_agent(agent)
    found = _policy_of(loaded, file)
    subjects = [prepare(loaded).subject(tool, {}) for tool in loaded.tools]
    lines = () if found is None else tuple(map(_rule_line, tried(found, subjects)))
    listing = PolicyListing(loaded.name, found is not None, found is None or found.taint, lines, loaded.providers)
    printer.print(listing, lambda out: _listing_lines(out, listing))


def _rule_line(found: ListedRule) -> RuleLine:
    rule = found.rule
    says = rule.verdict if isinstance(rule, Rule) else "within"
    conditions = tuple(rule.conditions) if isinstance(rule, Rule) else rule.roots
    return RuleLine(found.number, says, rule.tools.text, conditions, rule.name, found.reaches)


def _listing_lines(out: output.Terminal, listing: PolicyListing) -> list[str]:
    def paint(says: str) -> str:
        return out.paint(says, _STYLES[says]) if says in _STYLES else says

    nothing = "no tool known before a turn" if listing.providers else "no tool of this agent"
    columns: output.Columns[RuleLine] = {
        "RULE": lambda line: f"{line.number} ({output.one_line(line.name, 40)})" if line.name else str(line.number),
        "SAYS": lambda line: line.says,
        "TOOLS": lambda line: line.tools,
        "CONDITIONS": lambda line: output.one_line(", ".join(line.conditions), 80) or "-",
        "REACHES": lambda line: output.one_line(", ".join(line.reaches), 80) or nothing,
    }
    lines = output.table_of(out, listing.rules, columns, paint, painted=("SAYS",)) if listing.rules else []
    ruled = any(line.says != "within" for line in listing.rules)
    why = "there are rules, and none holds" if ruled else "there are no rules"
    lines.append(f"otherwise: {'denied' if ruled else 'allowed where it only reads, else denied'} ({why})")
    asks = "external effects ask after untrusted input and private data" if listing.taint else "switched off"
    return [*lines, f"taint: {asks}"]


# ---- rules -----------------------------------------------------------------------------------------------------------


rules = CommandGroup(cls=options.NamedGroup, subcommand_metavar="[AGENT | rm NUMBER]")
AllOption = Annotated[bool, flag("Also those that were removed.", "--all", "-a")]


@rules.listing()
async def list_rules(shell: Shell, *, every: AllOption = False) -> None:
    """List the rules that were stored with approvals ('holdfast approve ID --always'), of all agents or of one.

    A rule answers calls like the one that was approved. It never allows a call that the policy of the agent denies.
    """
    await _print_rules(shell, None, every=every)


@rules.command(options.SHOW, hidden=True)
async def rules_of_agent(
    shell: Shell, agent: Annotated[str, argument("AGENT", "The name of an agent.")], *, every: AllOption = False
) -> None:
    """List the rules of one agent, with those for every agent."""
    await _print_rules(shell, agent, every=every)


@rules.command()
async def rm(
    number: Annotated[int, argument("NUMBER", "The rule.", min=1)],
    *,
    by: Annotated[str | None, option("NAME", "Who removes it, if not the user who is logged in.")] = None,
    store: options.Store = DEFAULT_STORE,
) -> int:
    """Remove a rule: calls that it answered are asked about again. Exit code 1 if it was removed before."""
    async with edit_runtime(store) as runtime:
        rule, done = await runtime.store.remove_rule(number, by=by or approvals.login())
    if not done:
        output.stdout().line(f"rule {number} was removed before, by {rule.removed_by}")
        return options.FAILED
    output.stdout().line(f"removed rule {number} of {rule.agent}: {approvals.rule_text(rule.body)}")
    return 0


async def _print_rules(shell: Shell, agent: str | None, *, every: bool) -> None:
    async with view_runtime(shell.store) as runtime:
        store = runtime.store
        if agent is not None and not every:
            found = await store.rules(agent)
        else:  # in the order in which they were stored
            rules = [rule async for rule in read_pages(store.rule_history)]
            whose = {rule.agent for rule in rules} if agent is None else {agent, EVERY_AGENT}
            found = [rule for rule in rules[::-1] if (every or rule.removed_at is None) and rule.agent in whose]

    def since(rule: StoredRule) -> str:
        removed = "" if rule.removed_by is None else f", removed by {output.one_line(rule.removed_by, 40)}"
        return f"{output.ago(rule.at)}{removed}"

    columns: output.Columns[StoredRule] = {
        "RULE": lambda rule: str(rule.id),
        "AGENT": lambda rule: output.one_line(rule.agent, 40),
        "BY": lambda rule: output.one_line(rule.by, 40),
        "SINCE": since,
        "SAYS": lambda rule: output.one_line(approvals.rule_text(rule.body), 400),
    }
    nothing = "no rules are stored" if agent is None else f"no rules are stored for {agent!r}"
    shell.print_table(found, columns, nothing=nothing)
