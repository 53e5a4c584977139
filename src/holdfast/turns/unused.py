"""A reply that was paid for and not used, as the journal holds it: below its model call, without its words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.messages import encode
from holdfast.records import Done

if TYPE_CHECKING:
    from holdfast.messages import ModelReply
    from holdfast.records import Failed

MARK: Final = "/%paid"
"""What is put to the key of a model call to name what was paid for a reply that hooks did not let pass."""


def paid_for(reply: ModelReply, failed: Failed) -> Done:
    """The record that says what a reply took, where the call counts as failed. The tries are in that record."""
    bare = msgspec.structs.replace(reply, parts=(), finish="cancelled", attempts=())
    return Done(at=failed.at, key=failed.key + MARK, ask=failed.ask, value=msgspec.Raw(encode(bare)))


def is_paid(key: str) -> bool:
    """Whether `key` is that of what was paid for a reply that was not used."""
    return key.endswith(MARK)
