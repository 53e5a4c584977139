"""What was paid for and not used, as the journal holds it: below its model call, without words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.messages import ModelReply, encode, used_by
from holdfast.records import Done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.messages import Attempt
    from holdfast.records import Cancelled, Failed

MARK: Final = "/%paid"
"""What is put to the key of a model call to name what was paid for a reply that hooks did not let pass, and for tries
that brought none."""


def paid_for(reply: ModelReply, failed: Failed | Cancelled) -> Done:
    """The record that says what a call took which counts as failed or cancelled. The tries are in that record."""
    bare = msgspec.structs.replace(reply, parts=(), finish="cancelled", attempts=())
    return Done(at=failed.at, key=failed.key + MARK, ask=failed.ask, value=msgspec.Raw(encode(bare)))


def paid_tries(tries: Sequence[Attempt]) -> ModelReply | None:
    """What tries took that brought no reply, as a reply without words; None where they took nothing."""
    used = used_by(tries)
    return ModelReply((), "cancelled", used, tries[-1].model, attempts=tuple(tries)) if used.total else None


def is_paid(key: str) -> bool:
    """Whether `key` is that of what was paid for a reply that was not used."""
    return key.endswith(MARK)
