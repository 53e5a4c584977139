"""How the context of an agent is kept within the window of its model. Data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import InvalidArgument
from holdfast.names import MAX_INT, check_int
from holdfast.turns.compaction import Budget as Room

if TYPE_CHECKING:
    from holdfast.turns.compaction import Counter


MOST_RESERVE: Final = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When and how a conversation that outgrows its model's window is made to fit. Nothing of the history is lost.

    Shares are of the room that instructions and tools leave.
    """

    enabled: bool = True
    """False: only when the provider says that a request does not fit."""
    window: int | None = None
    """Tokens that the model takes in and gives out; None: as it is known for the model. One that is not known is found
    out when a request does not fit."""
    reserve: int | None = None
    """Tokens for the answer; None: a quarter of the window, 16,000 at most."""
    full: float = 0.9
    """At this share room is made."""
    aim: float = 0.5
    """So much is left then."""
    recent: float = 0.25
    """The share of the last messages that stay as they are."""
    summary: int = 0
    """Most tokens of a summary; 0: an eighth of the room, from 200 to 4,000."""
    model: Any = None
    """Who writes summaries, a model or its name; None: the model of the agent."""
    counter: Counter | None = None
    """Counts the tokens of a message; None: an estimate."""

    def __post_init__(self) -> None:
        if type(self.enabled) is not bool:
            raise InvalidArgument("compaction enabled", self.enabled, "True or False")
        if self.window is not None:
            check_int("compaction window", self.window, least=1_000)
        if self.reserve is not None:
            check_int("compaction reserve", self.reserve, most=(self.window or MAX_INT) - 1)
        self.room(self.window or 100_000, 0)
        if self.model is not None and type(self.model) not in {str, list, tuple} and not hasattr(self.model, "stream"):
            raise InvalidArgument("compaction model", self.model, "a model, or a name such as 'provider:model',")
        if self.counter is not None and not callable(getattr(self.counter, "tokens", None)):
            raise InvalidArgument("compaction counter", self.counter, "something with tokens(message)")

    def room(self, window: int, fixed: int) -> Room:
        """The room of a request in a window of this size."""
        reserve = min(window // 4, MOST_RESERVE) if self.reserve is None else self.reserve
        return Room(
            window=window,
            reserve=min(reserve, window - 1),
            fixed=fixed,
            full=self.full,
            aim=self.aim,
            recent=self.recent,
            summary=self.summary,
        )
