"""Letting notifications into a session: several in one input, claimed before they are said, at a moment that suits.

They are claimed and put into the inbox in one transaction; the turn that takes the input in acknowledges them with its
end, or they are queued again. All of that is in the store, so a crash at any place loses none and repeats none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.effects.canonical import canonical
from holdfast.errors import InboxFull
from holdfast.messages import Text
from holdfast.store.contract import Input
from holdfast.turns.conversation import Said
from holdfast.turns.notices import chosen, notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.store import Notification, Store
    from holdfast.store.contract import Lease

AT_ONCE: Final = 32
"""How many are looked at for one input."""


async def deliver(
    store: Store, lease: Lease, ready: Sequence[Notification], *, reads: bool
) -> tuple[Input, Said] | None:
    """Put the first of these into the inbox as one input; None when none can be claimed any more.

    `reads`: the agent has the tool that reads tasks.
    """
    picked = chosen(ready)
    if not picked:
        return None
    said = Said(parts=(Text(notice(picked, reads=reads)),), steer=True, origin="holdfast")
    content = msgspec.to_builtins(said)
    try:
        receipt = await store.carry(lease, [found.id for found in picked], content)
    except InboxFull:
        return None  # they wait until there is room
    if receipt is None:
        return None
    return Input(receipt.input, receipt.key, canonical(content), receipt.at), said
