"""What the records of a journal say was spent. Pure: totals can be counted anew from the journals at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import InvariantBroken
from holdfast.messages import decode_reply
from holdfast.policy.limits import Used
from holdfast.processes.ids import is_process_key
from holdfast.records import TASK, Done, Opened, Outcome
from holdfast.store.spending.contract import MAX_SPEND, NOTHING, Spend
from holdfast.turns import keys
from holdfast.turns.compactions import decode_compaction, is_compaction
from holdfast.turns.unused import is_paid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.messages import Usage
    from holdfast.records import Blob, Record
    from holdfast.store.spending.contract import ReadBlob
    from holdfast.turns.compactions import Compaction

_CALL = Spend(tool_calls=1)
_TASK = Spend(tasks=1)


def spent_on(usage: Usage, cost: float | None) -> Spend:
    """What a model call used. What came out of a cache or went into one was read by the model, too."""
    return _spent(1, usage, cost)


def spent_unused(usage: Usage, cost: float | None) -> Spend:
    """What a model call used whose reply must not be used. It is no step: it brought the turn no further."""
    return _spent(0, usage, cost)


def spent_on_room(made: Compaction) -> Spend | None:
    """What making room in the context used; None when no model was asked. It is no step: that is for turns."""
    return _spent(0, made.usage, made.cost, made.calls) if made.calls else None


def _spent(steps: int, usage: Usage, cost: float | None, calls: int = 1) -> Spend:
    return Spend(
        model_calls=steps,
        input_tokens=_counted(usage.input + usage.cache_read + usage.cache_write),
        output_tokens=_counted(usage.output),
        cost_micros=0 if cost is None else _counted(cost * 1_000_000),
        unpriced=calls if cost is None else 0,
    )


def _counted(said: float) -> int:
    """A number that can be counted: what a model of somebody's own says may be any number."""
    return round(max(0, min(said, MAX_SPEND)))


def spend_of(record: Record, read: ReadBlob) -> Spend | None:  # noqa: PLR0911  one for each kind of record
    """What one record says was spent; None when it says nothing of the kind."""
    if type(record) is Opened:  # a task counts from the moment it is taken in, for the agent that it works for
        return _TASK if record.role == TASK and record.agent is not None else None
    if is_process_key(getattr(record, "key", "")):
        return _direct(record, read)
    key = keys.parse(getattr(record, "key", ""))
    if key is None or (key.inner and not (type(record) is Done and _is_spending(record.key))):
        return None
    if type(record) is Done and key.name == "model":
        body = bytes(record.value) if record.blob is None else read(record.blob)
        if body is None:
            return None
        if key.inner and is_compaction(record.key):
            return spent_on_room(decode_compaction(body))
        reply = decode_reply(body)
        return _spent(0 if key.inner else 1, reply.usage, reply.cost)
    return _CALL if key.name == "tools" and key.call and isinstance(record, Outcome) else None


def _is_spending(key: str) -> bool:
    """Whether what is below a model call took something by itself."""
    return is_compaction(key) or is_paid(key)


def _direct(record: Record, read: ReadBlob) -> Spend | None:
    """A model call of a process, outside any conversation; what else a process does is no spending of its own."""
    if type(record) is not Done or record.ask is None or record.ask.kind != "direct":
        return None
    body = bytes(record.value) if record.blob is None else read(record.blob)
    if body is None:
        return None
    reply = decode_reply(body)
    return _spent(0 if is_paid(record.key) else 1, reply.usage, reply.cost)


def spent_by(records: Iterable[Record]) -> Spend:
    """What records say was spent that hold their values themselves."""
    return sum((spend for record in records if (spend := spend_of(record, _no_blob)) is not None), NOTHING)


def _no_blob(blob: Blob) -> None:
    message = f"the value of a record is apart from it: {blob.digest}"
    raise InvariantBroken(message)


def used_of(spend: Spend) -> Used:
    """The same, as budgets count it."""
    return Used(
        spend.model_calls,
        spend.input_tokens + spend.output_tokens,
        spend.cost_micros / 1_000_000,
        spend.tool_calls,
        spend.tasks,
        spend.unpriced,
        spend.wall_ms,
    )
