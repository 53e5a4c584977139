"""What the model sees of a conversation that was compacted, kept as the conversation grows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.errors import InvariantBroken
from holdfast.turns.compacting.applying import apply
from holdfast.turns.thread import Thread

if TYPE_CHECKING:
    from holdfast.turns.compacting.plans import Plan


@dataclass(frozen=True, slots=True)
class View:
    """The thread for the model, and how many messages of the whole conversation it stands for."""

    thread: Thread = field(default_factory=Thread)
    told: int = 0

    def follow(self, whole: Thread) -> View:
        """The view after the whole conversation has grown; what is new is seen as it is."""
        if len(whole) < self.told:
            message = f"a conversation of {self.told:,} messages has {len(whole):,} now"
            raise InvariantBroken(message)
        if not self.told:
            return View(whole, len(whole))
        added = whole.tail(len(whole) - self.told)
        return View(self.thread.add(*added), len(whole)) if added else self

    def compacted(self, plan: Plan, summary: str | None) -> View:
        """The view after a plan that was made for its thread."""
        return View(apply(self.thread, plan, summary), self.told)
