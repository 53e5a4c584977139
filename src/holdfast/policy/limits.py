"""Limits and budgets of an agent: of one turn, one session, one day, and in total; mandates of sub-agents. Pure.

The runtime checks limits before each effect. It counts steps, tool calls and background tasks ahead, so it never begins
one above the limit. The usage of a model call is unknown before it, so tokens and money stop the next effect; the call
that reaches the limit may exceed it. Time stops an effect under way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import reduce
from operator import add
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import astuple, replace

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.names import check_int
from holdfast.policy.rules import CLEAN, NO_RULES, Policy, Taint, milliseconds, narrow

LEASE_MS: Final = 10_000
"""Default term of a lease."""
CONCURRENCY: Final = 256
"""Sessions that one runtime drives at once."""
MAX_CALLS: Final = 512
"""Default limit of calls at once: one for each session and each background call that a runtime drives at once."""
TICK: Final = 5.0
"""Interval of searches for undelivered notifications, in seconds."""
MISSING_TOOL_MS: Final = 24 * 3_600_000
"""Default time that a background call waits for a process that has its tool."""
Scope = Literal["turn", "family", "session", "daily", "total"]
"""The span of a budget: one turn, one turn with its sub-agents, one session, one day (UTC), or all of an agent."""
Unpriced = Literal["stop", "free"]
Counted = Literal["steps", "tokens", "cost_usd", "tool_calls", "background", "wall_ms"]
"""A field of a consumption that a budget limits, under the same name."""
_COUNTED: Final[tuple[Counted, ...]] = get_args(Counted)
_KNOWN_AHEAD: Final = frozenset(("steps", "tool_calls", "background"))
"""Those whose use by the next effect is known before it."""
_WHOSE: Final[dict[Scope, str]] = {
    "turn": "the turn",
    "family": "the turn, with its sub-agents,",
    "session": "the session",
    "daily": "the agent, today,",
    "total": "the agent, in all,",
}


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget; None means no limit."""

    steps: int | None = None
    """Model calls that were answered."""
    tokens: int | None = None
    """Input and output together. Cached tokens are input, reasoning is output."""
    cost_usd: float | None = None
    """US dollars, by the prices at the time of each call."""
    tool_calls: int | None = None
    """Requested tool calls that no limit refused, however they ended."""
    background: int | None = None
    """Calls that were moved to the background."""
    wall_time: timedelta | None = None
    """Working time of turns, without the queue and without idle waits."""

    def __post_init__(self) -> None:
        _check_numbers("budget", self)

    @property
    def wall_ms(self) -> int | None:
        return None if self.wall_time is None else milliseconds(self.wall_time)


class Limits(Budget, frozen=True, kw_only=True):
    """Limits of one turn of an agent, and the budgets of its sessions, its days and in total.

    A batch of tool calls that would exceed the limit is refused as a whole.
    """

    steps: int | None = 50
    """Model calls. The runtime announces the last one to the model, and does not run tools that it still requests."""
    depth: int = 4
    """Levels of sub-agents below the agent; 0: none."""
    handoffs: int = 5
    """Handoffs of one turn, by all agents; 0: this agent never hands over."""
    repeats: int | None = 3
    """Repetitions of the same calls with the same results that count as a loop; None for no check."""
    no_progress: int = 12
    """Model calls in a row without progress: all tool calls failed, or the answer was unusable."""
    repairs: int = 3
    """Answers of the wrong shape that go back to the model."""
    continuations: int = 2
    """Continuations of answers cut off by the output limit."""
    deadline: timedelta | float | None = None
    """A timedelta or seconds since the input was accepted, with its time in the queue."""
    session: Budget | None = None
    """Budget of all turns of one session together."""
    daily: Budget | None = None
    """Budget of all sessions of the agent together in one day (UTC)."""
    total: Budget | None = None
    """Budget of all sessions of the agent together, ever."""
    definition: timedelta | float = 30.0
    """Time for the functions, filters and tool providers that define the agent for a turn, all together."""
    unpriced: Unpriced = "stop"
    """With a limit on money, a call of unknown price ends the turn (``"stop"``) or costs nothing (``"free"``)."""

    def __post_init__(self) -> None:
        _check_numbers("limit", self)
        if self.repeats is not None:
            check_int("limit repeats", self.repeats, least=2, most=100)
        for name, least in (("depth", 0), ("handoffs", 0), ("no_progress", 1), ("repairs", 0), ("continuations", 0)):
            check_int(f"limit {name}", getattr(self, name), least=least)
        for span in (self.deadline, self.definition):
            if span is not None:
                milliseconds(span)
        for name in ("session", "daily", "total"):
            if type(given := getattr(self, name)) not in (Budget, type(None)):
                raise InvalidArgument(f"limit {name}", given, "a Budget")
        if self.unpriced not in ("stop", "free"):
            raise InvalidArgument("limit unpriced", self.unpriced, "'stop' or 'free'")

    @property
    def beyond_turn(self) -> bool:
        """True if a budget needs more than the records of the turn itself."""
        return any(limit is not None for limit in (self.wall_time, *self.budgets))

    @property
    def budgets(self) -> tuple[Budget | None, Budget | None, Budget | None]:
        return self.session, self.daily, self.total


class Consumption(msgspec.Struct, frozen=True, gc=False):
    """The usage of a turn, a session or an agent."""

    steps: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    """Of the calls with a known price."""
    tool_calls: int = 0
    background: int = 0
    unpriced: int = 0
    """Calls of unknown price."""
    wall_ms: int = 0
    """Working time of turns, in milliseconds."""

    def __add__(self, other: Consumption) -> Consumption:
        return Consumption(*map(add, astuple(self), astuple(other)))


class OutOf(msgspec.Struct, frozen=True, gc=False):
    """A reached limit, which ends a turn. `code` names it, for example ``tokens`` (of the turn) or ``daily_tokens``."""

    code: str
    message: str
    allowed: int | float | None = None
    used: int | float | None = None


_BEYOND: Final[tuple[Scope, Scope, Scope]] = ("session", "daily", "total")
NOTHING: Final = Consumption()
ONE_STEP: Final = Consumption(steps=1)
"""The certain usage of a model call."""


def use_of_calls(calls: int, background: int = 0) -> Consumption:
    """The certain usage of tool calls: the calls, and the step that reads their results."""
    return Consumption(steps=1, tool_calls=calls, background=background)


def find_exceeded_budget(
    limits: Limits,
    *,
    turn: Consumption = NOTHING,
    session: Consumption = NOTHING,
    day: Consumption = NOTHING,
    total: Consumption = NOTHING,
    ahead: Consumption = ONE_STEP,
) -> OutOf | None:
    """The budget beyond the turn without room for the usage `ahead`; None if all have room.

    `session`, `day` and `total` include the running turn. The turn machine checks the limits of the turn itself; `turn`
    gives only its working time, and if one of its calls had no known price. Such calls of earlier turns cost nothing
    here, or a single one would close a session for good.
    """
    if limits.wall_ms is not None and turn.wall_ms >= limits.wall_ms:
        return limit_reached("turn", "wall_ms", limits.wall_ms, turn.wall_ms)
    for scope, budget, used in zip(_BEYOND, limits.budgets, (session, day, total), strict=True):
        if budget is None:
            continue
        if budget.cost_usd is not None and turn.unpriced and limits.unpriced == "stop":
            return price_unknown(scope, budget.cost_usd, used.cost_usd)
        found = find_exceeded_limit(budget, used, ahead, scope)
        if found is not None:
            return found
    return None


def background_room(
    limits: Limits, turn: Consumption, session: Consumption, day: Consumption, total: Consumption
) -> tuple[int | None, int | None]:
    """Background calls and milliseconds that all budgets beyond the turn leave; None for no limit."""
    tasks: list[int] = []
    spans = [] if limits.wall_ms is None else [limits.wall_ms - turn.wall_ms]
    for budget, used in zip(limits.budgets, (session, day, total), strict=True):
        if budget is None:
            continue
        if budget.background is not None:
            tasks.append(budget.background - used.background)
        if budget.wall_ms is not None:
            spans.append(budget.wall_ms - used.wall_ms)
    return min(tasks, default=None), min(spans, default=None)


def find_exceeded_limit(budget: Budget, used: Consumption, ahead: Consumption, scope: Scope) -> OutOf | None:
    """The limit of `budget` without room for the usage `ahead`; None if all have room."""
    for name in _COUNTED:
        allowed, so_far, more = getattr(budget, name), getattr(used, name), getattr(ahead, name)
        if allowed is None or (name == "background" and not more):
            continue
        full = so_far + more > allowed if name in _KNOWN_AHEAD else so_far >= allowed
        if full:
            return limit_reached(scope, name, allowed, so_far, 0 if name == "steps" else more)
    return None


def background_limit_reached(allowed: int | None, used: Consumption, ahead: Consumption) -> OutOf | None:
    """The end of a turn that would exceed its background calls."""
    if allowed is None or used.background + ahead.background <= allowed:
        return None
    return limit_reached("turn", "background", allowed, used.background, ahead.background)


def price_unknown(scope: Scope, allowed: float, used: float) -> OutOf:
    """The end of a turn with a limit in dollars and a model call of unknown price."""
    code = "cost_unknown" if scope == "turn" else f"{scope}_cost_unknown"
    message = (
        f"{_WHOSE[scope]} may use {_money(allowed)}, and a model call had no known price: give the model a price, or "
        'allow it with Limits(unpriced="free")'
    )
    return OutOf(code, message, allowed, used)


def beyond_turn(code: str) -> bool:
    """True if `code` names a limit that the records of the turn alone don't show: a wider budget, or working time."""
    return code == "wall_time" or code.startswith(("family_", "session_", "daily_", "total_"))


_UNITS: Final[dict[Counted, str]] = {
    "steps": "steps",
    "tokens": "tokens",
    "tool_calls": "tool calls",
    "background": "calls in the background",
    "wall_ms": "seconds",
}


def limit_reached(scope: Scope, name: Counted, allowed: float, used: float, ahead: int = 0) -> OutOf:
    """The end of a turn, in words and numbers; `ahead` more were requested."""
    code = "wall_time" if name == "wall_ms" else name
    code = code if scope == "turn" else f"{scope}_{code}"
    if name == "wall_ms":
        allowed, used = allowed / 1000, used / 1000
    if name == "cost_usd":
        message = f"{_WHOSE[scope]} used {_money(used)}, and may use {_money(allowed)}"
    else:
        message = f"{_WHOSE[scope]} used {used:,} {_UNITS[name]}, and may use {allowed:,}"
    if ahead:
        message += f"; a batch of {ahead:,} more was not begun"
    return OutOf(code, message, allowed, used)


def _money(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 0.01 or not amount else f"${amount:.6f}".rstrip("0")


def _check_numbers(what: str, given: Budget | Limits) -> None:
    for name, least in (("steps", 1), ("tokens", 1), ("tool_calls", 0), ("background", 0)):
        if (value := getattr(given, name)) is not None:
            check_int(f"{what} {name}", value, least=least)
    cost: Any = given.cost_usd
    if cost is not None and (type(cost) not in (int, float) or not math.isfinite(cost) or cost <= 0):
        raise InvalidNumber(f"{what} cost_usd", cost, "it must be a number of dollars above zero")
    if given.wall_time is not None:
        milliseconds(given.wall_time)


# ---- mandates of sub-agents ----
#
# A mandate is part of the input with which the session of a sub-agent begins, and holds for all of that session. It
# names the agents above, so that their policies of today decide; it only makes limits and permissions narrower.

ROLE: Final = "agent"
"""The role of the session of a sub-agent; the session that it works for is that of its parent."""
T = TypeVar("T", int, float, timedelta)


class Mandate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The parents of a sub-agent session, and its share of their limits."""

    session: str
    """The session of the parent."""
    turn: str
    key: str
    """The key of the parent's call, in the journal where it began."""
    call: str
    """The idempotency key of that call, the same wherever it continues."""
    above: tuple[str, ...]
    """The agents above, from the top down to the parent."""
    depth: int = 0
    """Levels of sub-agents allowed below."""
    budget: Budget = Budget()
    """Budget of the session together with all sub-agents below it."""
    untrusted: bool = False
    """The parent had read untrusted text."""
    private: bool = False
    """The parent had read private data."""
    untrusted_by: str = ""
    """The record that brought the untrusted text."""
    private_by: str = ""


class Account(msgspec.Struct, frozen=True):
    """A budget, its span, and the usage and promises counted against it."""

    budget: Budget
    used: Consumption
    scope: Scope


def limits_under_mandate(limits: Limits, mandate: Mandate) -> Limits:
    """The limits of a sub-agent: its own, within its share."""
    budget = mandate.budget
    own = Budget() if limits.session is None else limits.session
    return replace(
        limits,
        steps=_least(limits.steps, budget.steps),
        depth=min(limits.depth, mandate.depth),
        session=smaller_budget(own, budget),
    )


def smaller_budget(one: Budget, other: Budget) -> Budget:
    """A budget within both."""
    return Budget(**{name: _least(getattr(one, name), getattr(other, name)) for name in Budget.__struct_fields__})


def _least(one: T | None, other: T | None) -> T | None:
    return other if one is None else one if other is None else min(one, other)


def policy_of_sub_agent(above: Sequence[Policy | None], own: Policy | None) -> Policy:
    """The policy of a sub-agent below agents with these policies, from the top down."""
    # By default read only, also below an agent that may write.
    return reduce(narrow, [NO_RULES if policy is None else policy for policy in (*above, own)])


def taint_under(mandate: Mandate | None) -> Taint:
    """The initial taint of a session under this mandate."""
    if mandate is None:
        return CLEAN
    return Taint(mandate.untrusted, mandate.private, mandate.untrusted_by, mandate.private_by)


def promised_use(budget: Budget, used: Consumption) -> Consumption:
    """The most usage that a running sub-agent may have at its end."""
    return replace(used, **{name: max(getattr(used, name), getattr(budget, name) or 0) for name in _COUNTED})


def share_budget(fraction: float, accounts: Iterable[Account]) -> Budget | OutOf:
    """A share of the rest of all accounts; `OutOf` if one has none."""
    given = Budget()
    for account in accounts:
        part = _part(fraction, account)
        if isinstance(part, OutOf):
            return part
        given = smaller_budget(given, part)
    return given


def _part(fraction: float, account: Account) -> Budget | OutOf:
    parts: dict[str, Any] = {}
    for name in _COUNTED:
        allowed, used = getattr(account.budget, name), getattr(account.used, name)
        if allowed is None:
            continue
        part = (allowed - used) * fraction
        part = part if name == "cost_usd" else math.floor(part)
        if name == "background":
            part = max(part, 0)
        elif part < 0 or (not part and name != "tool_calls"):
            return limit_reached(account.scope, name, allowed, used)
        parts[name] = part
    span = parts.pop("wall_ms", None)
    return Budget(**parts, wall_time=None if span is None else timedelta(milliseconds=span))
