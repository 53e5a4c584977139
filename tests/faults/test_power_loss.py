"""Power loss: the states that a cut could leave behind after a real run all open, with all that was acknowledged.

The control runs must show losses: the same workload without syncs, looked at in the same way.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import explorer
import pytest
import workers
from explorer import KILL, POWER, Ack, Create, Examiner, Op, States, Sync, Truncate, Unlink, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

_FRAMES = 24
"""A checkpoint every so many frames, so that a short run has many."""
_WAL_BYTES = 30 * 4_120
"""A log of more than 30 frames is reset, so that both kinds of checkpoint happen."""
_SEED = int(os.environ.get("TORTURE_SEED", "1"))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory: hundreds of states are opened, and what is tested here is not this disk."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=base) as name:
        yield Path(name)


def _record(directory: Path, *, journals: int = 3, records: int = 14, **options: object) -> list[Op]:
    """Run the workload under strace."""
    database = directory.resolve() / "store.db"
    limits = {"wal_bytes": _WAL_BYTES}
    run = workers.command(
        "power", database, frames=_FRAMES, journals=journals, records=records, limits=limits, **options
    )
    explorer.trace(directory / "trace", run)
    return explorer.parse(directory / "trace", database)


@dataclass
class Found:
    """What came out of looking at many states."""

    states: Counter[str] = field(default_factory=Counter[str])
    lost: list[str] = field(default_factory=list[str])
    corrupt: list[str] = field(default_factory=list[str])

    def describe(self) -> str:
        shown = "\n".join([*self.lost[:5], *self.corrupt[:5]])
        repro = "python -m pytest tests/faults/test_power_loss.py"
        return (
            f"{len(self.lost)} lost, {len(self.corrupt)} corrupt of {sum(self.states.values())} states; seed {_SEED}\n"
            f"{shown}\nrepro: TORTURE_SEED={_SEED} {repro}"
        )


async def _explore(ops: list[Op], cuts: list[int], variants: tuple[str, ...], scratch: Path) -> Found:
    states, examiner, found = States(ops), Examiner(scratch / "state", "store.db"), Found()
    for cut in cuts:
        due = explorer.promised(ops, cut)
        for variant in variants:
            seen = await examiner.examine(states.after(cut, variant, random.Random(f"{_SEED}/{cut}/{variant}")))
            found.states[variant] += 1
            where = f"cut {cut} of {len(ops)}, {variant}"
            found.corrupt += [f"{where}: {problem}" for problem in seen.problems[:1]]
            found.lost += [f"{where}: {missing}" for missing in seen.lost(due)[:1]]
    print(f"seed {_SEED}: {len(ops)} operations, {sum(found.states.values())} states, {examiner.opened} different")
    return found


def _opened(ops: list[Op]) -> int:
    """The first cut at which the store is there: opening it was acknowledged."""
    return ops.index(Ack(("ACK", "open"))) + 1


def _sample(ops: list[Op], count: int) -> list[int]:
    """Cuts that tell most: right after an acknowledgement, around checkpoints and changes of names, and anywhere."""
    seed = random.Random(_SEED)
    database = next(op.file for op in ops if isinstance(op, Create))
    after_acks = [at + 1 for at, op in enumerate(ops) if isinstance(op, Ack)]
    turning = [
        at + shift for at, op in enumerate(ops) if isinstance(op, Truncate | Create | Unlink) for shift in (0, 1)
    ]
    copying = [at + 1 for at, op in enumerate(ops) if isinstance(op, Write) and op.file == database]
    first = _opened(ops)
    cuts: set[int] = {first, len(ops)}
    for pool in (after_acks, turning, copying, list(range(len(ops)))):
        later = [cut for cut in pool if cut >= first]
        cuts.update(seed.sample(later, min(len(later), count // 4)))
    return sorted(cuts)


async def test_power_cuts_lose_nothing_acknowledged_and_corrupt_nothing(tmp_path: Path, scratch: Path) -> None:
    ops = _record(tmp_path)
    found = await _explore(ops, _sample(ops, 24), POWER, scratch)
    assert not found.lost, found.describe()
    assert not found.corrupt, found.describe()


async def test_a_first_page_that_a_cut_garbled_during_a_checkpoint_is_healed_from_the_log(
    tmp_path: Path, scratch: Path
) -> None:
    """The head of the file is unreadable then, but the log has the page, and SQLite reads it from there."""
    ops = _record(tmp_path)
    database = next(op.file for op in ops if isinstance(op, Create))
    heads = [at + 1 for at, op in enumerate(ops) if isinstance(op, Write) and (op.file, op.offset) == (database, 0)]
    cuts = [cut for cut in heads if cut > _opened(ops)]
    assert cuts, "no checkpoint has written the first page"
    found = await _explore(ops, cuts, ("first sector",), scratch)
    assert not found.lost, found.describe()
    assert not found.corrupt, found.describe()


@pytest.mark.timeout(300)  # it syncs thousands of times, which some disks take their time for
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.torture)])
async def test_a_power_cut_while_the_store_is_made_leaves_a_file_that_opens(
    tmp_path: Path, scratch: Path, every: int
) -> None:
    ops = _record(tmp_path, journals=1, records=2)
    found = await _explore(ops, list(range(0, _opened(ops), every)), POWER, scratch)
    assert not found.corrupt, found.describe()


async def test_kills_lose_nothing_acknowledged_when_only_the_process_may_end(tmp_path: Path, scratch: Path) -> None:
    ops = _record(tmp_path, durability="process")
    found = await _explore(ops, _sample(ops, 16), KILL, scratch)
    assert not found.lost, found.describe()
    assert not found.corrupt, found.describe()


async def test_power_cuts_corrupt_nothing_when_only_the_process_may_end(tmp_path: Path, scratch: Path) -> None:
    ops = _record(tmp_path, durability="process")
    found = await _explore(ops, _sample(ops, 12), POWER, scratch)
    assert not found.corrupt, found.describe()


async def test_the_explorer_sees_the_losses_of_a_store_that_never_syncs(tmp_path: Path, scratch: Path) -> None:
    ops = _record(tmp_path, no_sync=True)
    found = await _explore(ops, _sample(ops, 12), POWER, scratch)
    assert found.lost, "the control lost nothing: the explorer proves nothing"


async def test_the_explorer_sees_the_corruption_of_a_store_that_never_syncs(tmp_path: Path, scratch: Path) -> None:
    ops = _record(tmp_path, no_sync=True)
    found = await _explore(ops, _sample(ops, 32), POWER, scratch)
    assert found.corrupt, "the control corrupted nothing: the explorer proves nothing"


def test_the_workload_comes_to_checkpoints_resets_and_several_acknowledgements(tmp_path: Path) -> None:
    ops = _record(tmp_path)
    database = next(op.file for op in ops if isinstance(op, Create))
    acks = [op.words for op in ops if isinstance(op, Ack)]
    assert acks[-1] == ("ACK", "closed"), "the worker did not come to its end"
    assert len(acks) > 25
    assert any(isinstance(op, Truncate) for op in ops), "the log was never reset"
    synced = [op for op in ops if isinstance(op, Sync) and op.file == database]
    assert len(synced) > 3, "the log was hardly ever copied into the database"


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("durability", ["power", "process"])
async def test_every_cut_of_a_longer_run_loses_nothing(durability: str, tmp_path: Path, scratch: Path) -> None:
    ops = _record(tmp_path, journals=4, records=40, durability=durability)
    cuts = list(range(_opened(ops), len(ops) + 1))
    killed = await _explore(ops, cuts, KILL, scratch)
    assert not killed.lost, killed.describe()
    assert not killed.corrupt, killed.describe()
    cut = await _explore(ops, cuts, POWER, scratch)
    assert not cut.corrupt, cut.describe()
    if durability == "power":
        assert not cut.lost, cut.describe()
