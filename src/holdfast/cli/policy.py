"""`holdfast policy`: what an agent may do, tried before it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, cast

import msgspec
import typer

from holdfast.cli.options import (
    DEFAULT_STORE,
    FAILED,
    WAITING,
    AgentArgument,
    CallInvalid,
    JsonOption,
    Named,
    StoreOption,
    explained,
    finish,
)

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.cli.output import Style, Terminal
    from holdfast.policy import Decision, Policy, Taint, Verdict
    from holdfast.policy.decisions import Listed
    from holdfast.store import Store
    from holdfast.store.rules import StoredRule


DENIED: Final = 6
"""The exit code for a call that would be denied."""
_EXITS: Final[dict[Verdict, int]] = {"allow": 0, "ask": WAITING, "deny": DENIED}
_STYLES: Final[dict[str, Style]] = {"allow": "green", "ask": "yellow", "deny": "red"}
_HEADINGS: Final = ["RULE", "SAYS", "TOOLS", "CONDITIONS", "REACHES"]
_WIDTH: Final = 1_000
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show what an agent may do, and try a call without making it.",
)
PolicyOption: TypeAlias = Annotated[
    Path | None, typer.Option("--policy", metavar="PATH", help="This policy file, instead of the agent's policy.")
]


class Line(msgspec.Struct, frozen=True):
    """One rule or constraint, in the order in which they are tried."""

    number: int
    says: str
    tools: str
    conditions: tuple[str, ...]
    name: str | None
    reaches: tuple[str, ...]
    """The tools of the agent that it is about."""


class Shown(msgspec.Struct, frozen=True):
    """All that is said about what an agent may do."""

    agent: str
    policy: bool
    """Whether there is one."""
    taint: bool
    rules: tuple[Line, ...]


class Checked(msgspec.Struct, frozen=True):
    """A call, and what was decided about it."""

    tool: str
    args: dict[str, Any]
    decision: Decision


@app.command()
def check(
    agent: AgentArgument,
    call: Annotated[
        str,
        typer.Argument(metavar="CALL", help="A tool and its arguments: 'refund {\"cents\": 900}'.", show_default=False),
    ],
    *,
    taint: Annotated[
        str,
        typer.Option(
            metavar="KINDS",
            help="What the turn has taken in before: untrusted, private, or both with a comma.",
            show_default=False,
        ),
    ] = "",
    policy: PolicyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide about a call as if an agent had made it, and say which rule decided. Nothing is called.

    Exit codes: 0 allowed, 3 a person would be asked, 6 denied; 2 wrong call, 1 failed.
    """
    from holdfast.cli.agents import load_agent  # noqa: PLC0415
    from holdfast.cli.output import stdout  # noqa: PLC0415
    from holdfast.policy import decide  # noqa: PLC0415

    with explained():
        loaded = load_agent(agent)
        tool, args = _read_call(loaded, call)
        subject = loaded.subject(tool, args)
        decision = decide(_chosen(loaded, policy), subject, _read_taint(taint))
        out = stdout()
        if as_json:
            out.line(msgspec.json.encode(Checked(tool, dict(subject.args), decision)).decode())
        else:
            out.write("".join(f"{line}\n" for line in _told(out, tool, dict(subject.args), decision)))
    raise typer.Exit(_EXITS[decision.verdict])


def _chosen(agent: Agent, path: Path | None) -> Policy | None:
    from holdfast.policy import Policy  # noqa: PLC0415

    return agent.policy if path is None else Policy.load(path)


def _read_call(agent: Agent, call: str) -> tuple[str, dict[str, Any]]:
    from holdfast.tools import Complaint  # noqa: PLC0415

    words = call.split(maxsplit=1)
    tool = agent.tools.get(words[0]) if words else None
    if tool is None:
        named = ", ".join(agent.tools) or "none"
        raise CallInvalid(f"{agent.name!r} has no tool {words[0] if words else ''!r}; it has: {named}")
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


def _read_taint(text: str) -> Taint:
    from holdfast.policy import Taint  # noqa: PLC0415

    kinds = {word.strip() for word in text.split(",") if word.strip()}
    if not kinds <= {"untrusted", "private"}:
        raise CallInvalid(f"--taint is untrusted, private, or untrusted,private; not {text!r}")
    return Taint("untrusted" in kinds, "private" in kinds)


def _told(out: Terminal, tool: str, args: dict[str, Any], decision: Decision) -> list[str]:
    from holdfast.cli.output import duration, one_line, table  # noqa: PLC0415

    rows = [
        [decision.verdict, one_line(f"{tool} {msgspec.json.encode(args).decode()}", _WIDTH)],
        ["rule", one_line(decision.rule, _WIDTH)],
        ["why", one_line(decision.why, _WIDTH)],
    ]
    if decision.expires_ms is not None:
        rows.append(["open", f"{duration(decision.expires_ms)}, then it is denied"])
    verdict = out.paint(decision.verdict, "bold", _STYLES[decision.verdict])
    return table(rows, [[verdict, rows[0][1]], *rows[1:]])


@app.command()
def show(agent: AgentArgument, *, policy: PolicyOption = None, as_json: JsonOption = False) -> None:
    """List the rules of an agent in the order in which they are tried, and the tools that each is about.

    Closer rules go first, and of equally close ones the strictest that holds decides. Constraints come after the rules.
    """
    from holdfast.cli.agents import load_agent  # noqa: PLC0415
    from holdfast.cli.output import stdout  # noqa: PLC0415

    with explained():
        loaded = load_agent(agent)
        shown = _shown(loaded, _chosen(loaded, policy))
        out = stdout()
        if as_json:
            out.line(msgspec.json.encode(shown).decode())
        else:
            out.write("".join(f"{line}\n" for line in _listed(out, shown)))


def _shown(agent: Agent, policy: Policy | None) -> Shown:
    from holdfast.policy.decisions import tried  # noqa: PLC0415

    subjects = [agent.subject(tool, {}) for tool in agent.tools]
    lines = () if policy is None else tuple(_line(found) for found in tried(policy, subjects))
    return Shown(agent.name, policy is not None, policy is None or policy.taint, lines)


def _line(found: Listed) -> Line:
    from holdfast.policy import Rule  # noqa: PLC0415

    rule = found.rule
    says = rule.verdict if isinstance(rule, Rule) else "within"
    conditions = tuple(rule.conditions) if isinstance(rule, Rule) else rule.roots
    return Line(found.number, says, rule.tools.text, conditions, rule.name, found.reaches)


def _listed(out: Terminal, shown: Shown) -> list[str]:
    from holdfast.cli.output import table  # noqa: PLC0415

    lines: list[str] = []
    if shown.rules:
        rows = [_HEADINGS, *(_row(line) for line in shown.rules)]
        painted = [[out.paint(word, "bold") for word in _HEADINGS]]
        painted += [[row[0], _coloured(out, row[1]), *row[2:]] for row in rows[1:]]
        lines += table(rows, painted)
    ruled = any(line.says != "within" for line in shown.rules)
    why = "there are rules, and none holds" if ruled else "there are no rules"
    lines.append(f"otherwise: {'denied' if ruled else 'allowed where it only reads, else denied'} ({why})")
    asks = "external effects ask after untrusted input and private data" if shown.taint else "switched off"
    lines.append(f"taint: {asks}")
    return lines


def _coloured(out: Terminal, says: str) -> str:
    style = _STYLES.get(says)
    return says if style is None else out.paint(says, style)


def _row(line: Line) -> list[str]:
    from holdfast.cli.output import one_line  # noqa: PLC0415

    conditions = one_line(", ".join(line.conditions), 80) or "-"
    name = f" ({one_line(line.name, 40)})" if line.name else ""
    reaches = one_line(", ".join(line.reaches), 80) or "no tool of this agent"
    return [f"{line.number}{name}", line.says, line.tools, conditions, reaches]


_LIST: Final = "list"
_RULES_HEADINGS: Final = ["RULE", "AGENT", "BY", "SINCE", "SAYS"]
_PAGE: Final = 200


class _Rules(Named):
    """Takes an agent where a command may stand: `holdfast rules AGENT` lists its rules."""

    about_one = _LIST


rules_app = typer.Typer(
    cls=_Rules, invoke_without_command=True, rich_markup_mode=None, subcommand_metavar="[AGENT | rm NUMBER]"
)
AllOption = Annotated[bool, typer.Option("--all", "-a", help="Also those that were removed.")]
# Without a variable of its own: what `rules` has found to be the store is the default of its commands.
GivenStore = Annotated[Path, typer.Option("--store", "-s", metavar="PATH", help="The store file.")]


@rules_app.callback()
def rules(
    context: typer.Context,
    *,
    every: AllOption = False,
    as_json: JsonOption = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """List the rules that were stored with approvals ('holdfast approve ID --always'), of all agents or of one.

    A rule answers calls like the one that was approved. It never allows what the policy of the agent denies.
    """
    if context.invoked_subcommand is not None:
        context.default_map = {
            _LIST: {"store": store, "every": every, "as_json": as_json},
            "rm": {"store": store},
        }
        return
    finish(_list(store, None, every=every, as_json=as_json))


@rules_app.command(_LIST, hidden=True)
def listed(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name of an agent.", show_default=False)],
    *,
    every: AllOption = False,
    as_json: JsonOption = False,
    store: GivenStore = DEFAULT_STORE,
) -> None:
    """List the rules of one agent, with those for every one."""
    finish(_list(store, agent, every=every, as_json=as_json))


@rules_app.command()
def rm(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The rule.", show_default=False)],
    *,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who removes it; the login name where nobody is named.")
    ] = None,
    store: GivenStore = DEFAULT_STORE,
) -> None:
    """Remove a rule: calls that it answered are asked about again. Exit code 1 when it was removed before."""
    finish(_remove(store, number, by))


async def _list(path: Path, agent: str | None, *, every: bool, as_json: bool) -> int:
    from holdfast.cli.output import tell  # noqa: PLC0415
    from holdfast.cli.sessions import looking  # noqa: PLC0415

    async with looking(path) as runtime:
        found = await _read(runtime.store, agent, every=every)
        now = runtime.store.clock.read().wall
    nothing = "no rules are stored" if agent is None else f"no rules are stored for {agent!r}"
    tell(found, lambda out: _rows(out, found, now), nothing=nothing, as_json=as_json)
    return 0


async def _read(store: Store, agent: str | None, *, every: bool) -> list[StoredRule]:
    """Rules in the order in which they were stored."""
    from holdfast.store.rules import EVERY_AGENT  # noqa: PLC0415

    if agent is not None and not every:
        return await store.rules(agent)
    found: list[StoredRule] = []
    while page := await store.rule_history(before=found[-1] if found else None, limit=_PAGE):
        found += page
    return [
        rule
        for rule in reversed(found)
        if (every or rule.removed_at is None) and (agent is None or rule.agent in {agent, EVERY_AGENT})
    ]


async def _remove(path: Path, number: int, by: str | None) -> int:
    from holdfast.cli.approvals import (  # noqa: PLC0415
        login,
        rule_text,
    )
    from holdfast.cli.output import stdout  # noqa: PLC0415
    from holdfast.cli.sessions import changing  # noqa: PLC0415

    async with changing(path) as runtime:
        rule, done = await runtime.store.remove_rule(number, by=by or login())
    if not done:
        stdout().line(f"rule {number} was removed before, by {rule.removed_by}")
        return FAILED
    stdout().line(f"removed rule {number} of {rule.agent}: {rule_text(rule.body)}")
    return 0


def _rows(out: Terminal, found: list[StoredRule], now: int) -> list[str]:
    from holdfast.cli.approvals import rule_text  # noqa: PLC0415
    from holdfast.cli.output import duration, one_line, table  # noqa: PLC0415

    rows = [_RULES_HEADINGS]
    for rule in found:
        since = f"{duration(max(now - rule.at, 0))} ago"
        gone = "" if rule.removed_by is None else f", removed by {one_line(rule.removed_by, 40)}"
        agent = one_line(rule.agent, 40)
        rows.append([str(rule.id), agent, one_line(rule.by, 40), f"{since}{gone}", one_line(rule_text(rule.body), 400)])
    return table(rows, [[out.paint(word, "bold") for word in _RULES_HEADINGS], *rows[1:]])
