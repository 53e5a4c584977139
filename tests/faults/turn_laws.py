"""What must hold after a turn was killed and taken up again: the laws, and the table of rulings.

The laws compare the end with what was on disk at each kill, so they hold for any number of kills. The table says, for
one kill at each crash point, what exactly may have happened twice, or not at all.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import turn_scenario as scenario

import holdfast as hf
from holdfast.errors import JournalMissing
from holdfast.messages import AssistantMessage, ToolMessage, UserMessage
from holdfast.records import Admitted, Cancelled, Done, Ended, Failed, Intended, Unknown
from holdfast.testing import World, check
from holdfast.turns import keys
from holdfast.turns.conversation import CancelRequest, decode_input

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.messages import Message
    from holdfast.records import Record
    from holdfast.store import Store

TABLE: Final = Path(__file__).with_name("turn_rulings.md")
ONCE: Final = frozenset(("never", "waiting", "reconciled", "asking"))
"""Kinds of tools that must not run twice."""
FINDS_OUT: Final = frozenset(("reconciled", "asking"))
WAITS: Final = frozenset(("waiting", "asking"))


# ---- what is on disk -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """The journal, and what reached the world outside, at one instant."""

    records: tuple[Record, ...]
    pending: frozenset[str]
    """Keys of the inputs that wait in the inbox."""
    attempts: Counter[str]
    """How often each call reached the world, by its key."""
    asked: Counter[int]
    """How often the model was asked, by the place in the conversation."""
    drafts: int
    """How often the step before a wait was done."""
    told: tuple[tuple[str, str, str], ...]

    def outcomes(self) -> dict[str, Record]:
        return {
            record.key: record for record in self.records if isinstance(record, Done | Failed | Unknown | Cancelled)
        }

    def intents(self) -> set[str]:
        return {record.key for record in self.records if isinstance(record, Intended)}

    def endings(self) -> list[tuple[str, str]]:
        return [(record.run, record.status) for record in self.records if isinstance(record, Ended)]

    def admitted(self) -> list[Admitted]:
        return [record for record in self.records if isinstance(record, Admitted)]

    def replies(self) -> int:
        """Model calls that are recorded."""
        return sum(key.endswith(".model") for key in self.outcomes())

    def calls(self) -> dict[str, str]:
        """The key of each tool call that left anything, by the name of its tool."""
        known = {*self.outcomes(), *self.intents(), *self.attempts}
        found = {key: keys.parse_key(key) for key in known}
        return {
            key.rpartition(".")[2]: key
            for key, parsed in found.items()
            if parsed is not None and parsed.name == "tools" and not parsed.inner
        }

    def left_waiting(self, key: str) -> bool:
        """Whether the call was left in order, at a wait that has no answer yet."""
        inner = {name for name in self.intents() if name.startswith(f"{key}/")}
        return bool(inner - {*self.outcomes()})

    def drafted(self) -> bool:
        return any(key.endswith("/draft") for key in self.outcomes())


async def facts(store: Store, folder: Path) -> Facts:
    try:
        records = [entry.record async for entry in store.read_all(scenario.SESSION)]
        pending = await store.pending(scenario.SESSION)
    except JournalMissing:
        records, pending = [], []
    return Facts(
        tuple(records),
        frozenset(found.key for found in pending),
        Counter(attempt.key for attempt in World(folder / "world.log").attempts()),
        Counter(scenario.notes(folder / "model.log")),
        len(scenario.notes(folder / "draft.log")),
        tuple((run, status, text) for run, status, text in scenario.notes(folder / "told.log")),
    )


async def at_the_kill(folder: Path) -> Facts:
    """What a killed process left. A copy is opened, so that the next process finds the files as they were."""
    with TemporaryDirectory() as copy:
        _copy_store(folder, copy)
        async with hf.open_store(Path(copy) / "store.db") as store:
            return await facts(store, folder)


def _copy_store(folder: Path, to: str) -> None:
    for path in folder.glob("store.db*"):
        if path.is_file() and not path.name.endswith("-shm"):  # made anew by whoever opens the file
            shutil.copy(path, to)


@dataclass(frozen=True, slots=True)
class Finish:
    """How it all ended."""

    facts: Facts
    history: tuple[Message, ...]
    status: str
    text: str
    broken: tuple[str, ...]
    """What `check` found, and what observers do not agree about."""

    def states(self) -> dict[str, str]:
        """How each call ended, as the model was told, by the name of its tool."""
        return {
            result.name: result.state
            for message in self.history
            if isinstance(message, ToolMessage)
            for result in message.results
        }


async def at_the_end(folder: Path) -> Finish:
    async with hf.open(folder / "store.db", drive=False) as runtime:
        session = runtime.session(scenario.SESSION)
        turn = session.turn("t1")
        broken = [str(violation) for violation in await check(runtime.store, World(folder / "world.log"))]
        history = await session.history()
        if history != await session.history():
            broken.append("the history rebuilt a second time differs")
        outcome = await turn.outcome(timeout=5)
        seen = [event async for event in turn.events()]
        if type(seen[-1]).__name__ != f"Turn{outcome.status.title()}":
            broken.append(f"the outcome is {outcome.status}, the last event {seen[-1]}")
        if await turn.status() != outcome.status:
            broken.append(f"the outcome is {outcome.status}, the status {await turn.status()}")
        if open_waits := await runtime.waits(scenario.SESSION):
            broken.append(f"waits that nobody waits for are still open: {[wait.name for wait in open_waits]}")
        found = await facts(runtime.store, folder)
        return Finish(found, tuple(history), outcome.status, outcome.text, tuple(broken))


# ---- the laws --------------------------------------------------------------------------------------------------------


def laws(name: str, finish: Finish, kills: Sequence[Facts]) -> Iterator[str]:
    """Everything that is wrong."""
    yield from finish.broken
    yield from _one_ending(name, finish)
    yield from _inputs(finish, kills)
    yield from _valid_history(finish.history)
    yield from _words(name, finish)
    for number, kill in enumerate(kills, 1):
        yield from (f"kill {number}: {wrong}" for wrong in _nothing_recorded_was_lost_or_repeated(kill, finish))
        yield from (f"kill {number}: {wrong}" for wrong in _nothing_uncertain_was_repeated(kill, finish))
    yield from _calls_made_once(finish, kills)


def _one_ending(name: str, finish: Finish) -> Iterator[str]:
    endings = finish.facts.endings()
    allowed = {"completed", "cancelled"} if name.startswith("cancel") or name == "withdraw" else {"completed"}
    if [run for run, _ in endings].count("t1") != 1 or len(dict(endings)) != len(endings):
        yield f"there must be one terminal record a turn, not {endings}"
    if not {status for _, status in endings} <= allowed:
        yield f"it must end in one of {sorted(allowed)}: {endings}"
    told = {(status, text) for run, status, text in finish.facts.told if run == "t1"}
    if told != {(finish.status, finish.text)}:
        yield f"not everybody was told {finish.status!r}, {finish.text!r}: {told}"


def _inputs(finish: Finish, kills: Sequence[Facts]) -> Iterator[str]:
    if finish.facts.pending:
        yield f"inputs wait for ever: {sorted(finish.facts.pending)}"
    admitted = Counter(record.key for record in finish.facts.admitted())
    for key, count in admitted.items():
        if count != 1:
            yield f"the input {key!r} was admitted {count} times"
    for kill in kills:
        accepted = kill.pending | {record.key for record in kill.admitted()}
        if lost := accepted - {*admitted}:
            yield f"accepted and lost: {sorted(lost)}"
    said = [
        record for record in finish.facts.admitted() if not isinstance(decode_input(bytes(record.body)), CancelRequest)
    ]
    ids = [message.id for message in finish.history if isinstance(message, UserMessage)]
    for record in said:
        if [id.endswith(f".i{record.input}") for id in ids].count(True) != 1:
            yield f"the input {record.key!r} is not in exactly one place of {ids}"


def _valid_history(history: Sequence[Message]) -> Iterator[str]:
    ids = [message.id for message in history]
    if len({*ids}) != len(ids):
        yield f"message ids are not unique: {ids}"
    for before, message in zip((None, *history), (*history, None), strict=True):
        calls = [made.id for made in before.calls] if isinstance(before, AssistantMessage) else []
        results = [result.call_id for result in message.results] if isinstance(message, ToolMessage) else []
        if calls != results:
            yield f"the calls {calls} are followed by the results {results}"


def _words(name: str, finish: Finish) -> Iterator[str]:
    if finish.status != "completed":
        return
    states = finish.states()
    calls = ", ".join(f"{tool} {states[tool]}" for tool in scenario.STORIES[name].tools)
    expected = f"{calls}. {scenario.STEER if 'steer' in name else 'Done.'}"
    last = finish.history[-1]
    if not isinstance(last, AssistantMessage) or last.text != expected:
        yield f"the last words must be {expected!r}: {last}"


def _nothing_recorded_was_lost_or_repeated(kill: Facts, finish: Finish) -> Iterator[str]:
    now = finish.facts
    if now.records[: len(kill.records)] != kill.records:
        yield "what was on disk is no longer the beginning of the journal"
    for tool, key in kill.calls().items():
        if key in kill.outcomes() and now.attempts[key] != kill.attempts[key]:
            yield f"{tool} had an outcome and ran again"
    if kill.drafted() and now.drafts != kill.drafts:
        yield "a step that was recorded was done again"
    for position in range(kill.replies()):
        if now.asked[position] != kill.asked[position]:
            yield f"the model's reply {position} was recorded, and asked for again"


def _nothing_uncertain_was_repeated(kill: Facts, finish: Finish) -> Iterator[str]:
    now, states = finish.facts, finish.states()
    for tool, key in kill.calls().items():
        kind = scenario.TOOLS[tool]
        if kind not in ONCE or key in kill.outcomes():
            continue
        if key not in kill.intents():
            if kill.attempts[key]:
                yield f"{tool} reached the world before its intent was recorded"
            continue
        if kind in FINDS_OUT or kill.left_waiting(key):
            continue
        if states[tool] != "unknown" or now.attempts[key] != kill.attempts[key]:
            yield f"{tool} was interrupted: it must be unknown and not run again, but it is {states[tool]}"


def _calls_made_once(finish: Finish, kills: Sequence[Facts]) -> Iterator[str]:
    now, states, calls = finish.facts, finish.states(), finish.facts.calls()
    for position, made in now.asked.items():
        if made > 1 + sum(kill.replies() <= position for kill in kills):
            yield f"the model was asked {made} times for reply {position}, more often than it was lost"
    if now.drafts > 1 + sum(not kill.drafted() for kill in kills):
        yield f"a step was done {now.drafts} times, more often than it was lost"
    for tool, state in states.items():
        attempts, kind = now.attempts[calls.get(tool, "")], scenario.TOOLS[tool]
        if attempts > (1 if kind in ONCE else 1 + len(kills)):
            yield f"{tool} ran {attempts} times"
        if state == "ok" and not attempts:
            yield f"{tool} is told as done, but it never ran"
        if state == "skipped" and attempts:
            yield f"{tool} is told as never begun, but it ran"
        if state == "cancelled" and attempts and kind in ONCE:
            yield f"{tool} is told as without effect, but it ran"
        if state == "unknown" and kind in FINDS_OUT:
            yield f"{tool} can find out what happened, and must not be unknown"


# ---- the table of rulings --------------------------------------------------------------------------------------------


def read_table() -> dict[str, dict[str, frozenset[str]]]:
    """For each crash point, what is allowed in each column."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        row[0].strip("`"): {
            column: frozenset(cell.split(" / ")) for column, cell in zip(head[1:], row[1:], strict=True) if cell
        }
        for row in rows
    }


def row_of(name: str, act: int, point: str) -> str:
    """The row for a crash point; those of tools have one for each kind of tool. `point` is `name:count`."""
    what, _, count = point.partition(":")
    if not what.startswith("tool."):
        return re.sub(r"\.\d+$", "", what)
    kinds = scenario.STORIES[name].kinds
    if act:
        reached = [kind for kind in kinds if kind in WAITS]
    elif what == "tool.before_intent":
        reached = [kind for kind in kinds if kind in ONCE]
    elif what == "tool.after_intent":
        reached = [kind for kind in kinds if kind != "read_only"]
    elif what == "tool.before_run":
        reached = list(kinds)
    else:
        reached = [kind for kind in kinds if kind not in WAITS]
    again = " again" if act else ""
    return f"{what} ({reached[int(count) - 1]}{again})"


def observed(name: str, finish: Finish) -> dict[str, str]:
    """What came of one case, by the columns of the table."""
    now, states, calls = finish.facts, finish.states(), finish.facts.calls()
    seen = {
        "ends": str([run for run, _ in now.endings()].count("t1")),
        "pending": str(len(now.pending)),
        "model": str(now.asked.total() - now.replies()),
    }
    if any(kind in WAITS for kind in scenario.STORIES[name].kinds):
        seen["step"] = str(now.drafts)
    for tool, state in states.items():
        attempts, kind = now.attempts[calls.get(tool, "")], scenario.TOOLS[tool]
        column = "withdrawn" if name == "withdraw" else kind
        shown = str(attempts) if state == "ok" else f"{attempts} {state}"
        seen[column] = max(seen.get(column, ""), shown)
    return seen


def rulings(name: str, row: dict[str, frozenset[str]], finish: Finish) -> Iterator[str]:
    """What differs from the ruling."""
    if finish.status == "cancelled" and name != "withdraw":
        return  # where the cancel came decides how far the turn got; the laws bound it
    for column, seen in observed(name, finish).items():
        allowed = row.get(column, frozenset())
        if seen not in allowed:
            yield f"{column}: the ruling is {' / '.join(sorted(allowed)) or 'nothing'}, and it came to {seen}"
