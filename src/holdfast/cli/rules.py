"""`holdfast rules`: what persons have decided once for all, and how to take it back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.failures import FAILED
from holdfast.cli.finishing import finish
from holdfast.cli.groups import Named
from holdfast.cli.options import DEFAULT_STORE, JsonOption, StoreOption

if TYPE_CHECKING:
    from holdfast.cli.terminal import Terminal
    from holdfast.store import Store
    from holdfast.store.rules.contract import StoredRule

_LIST: Final = "list"
_HEADINGS: Final = ["RULE", "AGENT", "BY", "SINCE", "SAYS"]
_PAGE: Final = 200


class _Rules(Named):
    """Takes an agent where a command may stand: `holdfast rules AGENT` lists its rules."""

    about_one = _LIST


app = typer.Typer(
    cls=_Rules, invoke_without_command=True, rich_markup_mode=None, subcommand_metavar="[AGENT | rm NUMBER]"
)
AllOption = Annotated[bool, typer.Option("--all", "-a", help="Also those that were removed.")]
# Without a variable of its own: what `rules` has found to be the store is the default of its commands.
GivenStore = Annotated[Path, typer.Option("--store", "-s", metavar="PATH", help="The store file.")]


@app.callback()
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


@app.command(_LIST, hidden=True)
def listed(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name of an agent.", show_default=False)],
    *,
    every: AllOption = False,
    as_json: JsonOption = False,
    store: GivenStore = DEFAULT_STORE,
) -> None:
    """List the rules of one agent, with those for every one."""
    finish(_list(store, agent, every=every, as_json=as_json))


@app.command()
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
    from holdfast.cli.sessions import looking  # noqa: PLC0415
    from holdfast.cli.tables import tell  # noqa: PLC0415

    async with looking(path) as runtime:
        found = await _read(runtime.store, agent, every=every)
        now = runtime.store.clock.read().wall
    nothing = "no rules are stored" if agent is None else f"no rules are stored for {agent!r}"
    tell(found, lambda out: _rows(out, found, now), nothing=nothing, as_json=as_json)
    return 0


async def _read(store: Store, agent: str | None, *, every: bool) -> list[StoredRule]:
    """Rules in the order in which they were stored."""
    from holdfast.store.rules.contract import EVERY_AGENT  # noqa: PLC0415

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
    from holdfast.cli.approving import login  # noqa: PLC0415
    from holdfast.cli.question import rule_text  # noqa: PLC0415
    from holdfast.cli.sessions import changing  # noqa: PLC0415
    from holdfast.cli.terminal import stdout  # noqa: PLC0415

    async with changing(path) as runtime:
        rule, done = await runtime.store.remove_rule(number, by=by or login())
    if not done:
        stdout().line(f"rule {number} was removed before, by {rule.removed_by}")
        return FAILED
    stdout().line(f"removed rule {number} of {rule.agent}: {rule_text(rule.body)}")
    return 0


def _rows(out: Terminal, found: list[StoredRule], now: int) -> list[str]:
    from holdfast.cli.question import rule_text  # noqa: PLC0415
    from holdfast.cli.terminal import duration, one_line, table  # noqa: PLC0415

    rows = [_HEADINGS]
    for rule in found:
        since = f"{duration(max(now - rule.at, 0))} ago"
        gone = "" if rule.removed_by is None else f", removed by {one_line(rule.removed_by, 40)}"
        agent = one_line(rule.agent, 40)
        rows.append([str(rule.id), agent, one_line(rule.by, 40), f"{since}{gone}", one_line(rule_text(rule.body), 400)])
    return table(rows, [[out.paint(word, "bold") for word in _HEADINGS], *rows[1:]])
