"""`holdfast policy`: what an agent may do, tried before it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, cast

import msgspec
import typer

from holdfast.cli.failures import WAITING, CallInvalid, explained
from holdfast.cli.options import AgentArgument, JsonOption  # noqa: TC001  typer looks at the annotation at run time

if TYPE_CHECKING:
    from holdfast.agent import Agent
    from holdfast.cli.terminal import Style, Terminal
    from holdfast.policy import Decision, Policy, Taint, Verdict
    from holdfast.policy.listing import Listed

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


# ---- check -----------------------------------------------------------------------------------------------------------


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
    from holdfast.cli.loading import load_agent  # noqa: PLC0415
    from holdfast.cli.terminal import stdout  # noqa: PLC0415
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
    from holdfast.cli.terminal import duration, one_line, table  # noqa: PLC0415

    rows = [
        [decision.verdict, one_line(f"{tool} {msgspec.json.encode(args).decode()}", _WIDTH)],
        ["rule", one_line(decision.rule, _WIDTH)],
        ["why", one_line(decision.why, _WIDTH)],
    ]
    if decision.expires_ms is not None:
        rows.append(["open", f"{duration(decision.expires_ms)}, then it is denied"])
    verdict = out.paint(decision.verdict, "bold", _STYLES[decision.verdict])
    return table(rows, [[verdict, rows[0][1]], *rows[1:]])


# ---- show ------------------------------------------------------------------------------------------------------------


@app.command()
def show(agent: AgentArgument, *, policy: PolicyOption = None, as_json: JsonOption = False) -> None:
    """List the rules of an agent in the order in which they are tried, and the tools that each is about.

    Closer rules go first, and of equally close ones the strictest that holds decides. Constraints come after the rules.
    """
    from holdfast.cli.loading import load_agent  # noqa: PLC0415
    from holdfast.cli.terminal import stdout  # noqa: PLC0415

    with explained():
        loaded = load_agent(agent)
        shown = _shown(loaded, _chosen(loaded, policy))
        out = stdout()
        if as_json:
            out.line(msgspec.json.encode(shown).decode())
        else:
            out.write("".join(f"{line}\n" for line in _listed(out, shown)))


def _shown(agent: Agent, policy: Policy | None) -> Shown:
    from holdfast.policy.listing import tried  # noqa: PLC0415

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
    from holdfast.cli.terminal import table  # noqa: PLC0415

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
    from holdfast.cli.terminal import one_line  # noqa: PLC0415

    conditions = one_line(", ".join(line.conditions), 80) or "-"
    name = f" ({one_line(line.name, 40)})" if line.name else ""
    reaches = one_line(", ".join(line.reaches), 80) or "no tool of this agent"
    return [f"{line.number}{name}", line.says, line.tools, conditions, reaches]
