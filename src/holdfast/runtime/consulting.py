"""Hooks around a question to a model, and around making room for it: what they decide is recorded first.

The record stands below the question, and is durable before anything else happens: whoever goes on after a crash acts on
it and asks nobody again. What was decided is about the question as it was; only the denial of a step stands whatever
has changed since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from holdfast.crashpoints import crash_point
from holdfast.effects.canonical import digest_of_bytes
from holdfast.errors import ModelError
from holdfast.messages import ModelReply, Text, Usage, decode_reply, encode
from holdfast.policy.hooks import Answer, Deny, ModelDecision
from holdfast.records import Ask, Done
from holdfast.runtime.decided import HOOK, body_of, noted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.effects.performer import Performer
    from holdfast.policy.hooks import HookRequest, RequestKind
    from holdfast.records import Record
    from holdfast.runtime.hooking import Hooked
    from holdfast.turns.thread import Thread

    _Kind: TypeAlias = RequestKind | Literal["compaction"]
    Keep: TypeAlias = Callable[[list[Record]], Awaitable[object]]

_decisions: Final = msgspec.json.Decoder(list[ModelDecision])


@dataclass(frozen=True, slots=True)
class _Stands:
    """What was decided about one question; nothing, where hooks let it pass."""

    target: str
    content: str
    decided: ModelDecision | None

    def holds(self, kind: _Kind, content: str) -> bool:
        if self.target != f"hook.{kind}":
            return False
        return self.content == content or (kind == "turn" and isinstance(self.decided, Deny))


class Consulting:
    """Puts questions to the hooks of one run. `keep` makes records durable."""

    def __init__(self, performer: Performer, hooked: Hooked, keep: Keep) -> None:
        self._performer = performer
        self._hooked = hooked
        self._keep = keep
        self._asks = hooked.has("before_model")
        self.judges = hooked.has("after_model")
        """Whether anybody has a say about replies."""
        self._known: dict[str, list[_Stands]] = {}
        """What was decided, by the effect that is under way."""

    def idle(self, key: str) -> bool:
        """Whether nobody has a say about questions and replies, and nothing that they said is recorded below `key`."""
        return not self._asks and not self.judges and key not in self._performer.past.order

    def forget(self, key: str) -> None:
        """The effect has its outcome: what was decided about it is not needed any more."""
        self._known.pop(key, None)

    async def settled(self, key: str, content: str) -> bool:
        """Whether it is recorded that the model is not to be asked in the step `key`, with this content."""
        found = _find(await self._recall(key), "turn", content)
        return found is not None and found.decided is not None

    async def before(self, key: str, asked: HookRequest, content: str) -> ModelReply | None:
        """What a hook says in place of the model; None: it is to be asked. A denial is a `ModelError`."""
        known = await self._recall(key)
        found = _find(known, asked.kind, content)
        if found is None and self._asks:
            said = await self._hooked.before_model(asked)
            found = await self._note(key, known, asked.kind, content, said)
        match None if found is None else found.decided:
            case Deny(reason):
                raise ModelError(reason, kind="denied")
            case Answer(value):
                return ModelReply((Text(str(value)),), "stop", Usage(), "hook", cost=0.0)
            case None:
                return None

    async def before_compaction(self, key: str, thread: Thread, tokens: int) -> bool:
        """Whether the context of the step `key` may be shortened."""
        # Of how many tokens it is, is not known as well after a restart.
        content = digest_of_bytes("compaction", thread.chain)
        known = await self._recall(key)
        found = _find(known, "compaction", content)
        if found is None and self._hooked.has("before_compaction"):
            said = await self._hooked.before_compaction(len(thread), tokens)
            found = await self._note(key, known, "compaction", content, said)
        return found is None or found.decided is None

    async def after(self, asked: HookRequest, reply: ModelReply) -> ModelReply:
        """A reply that was paid for, as hooks let it be: itself, or what one says in its place.

        A denial is a `ModelError`.
        """
        if not self.judges:
            return reply
        shown = self._cleaned(reply)
        told = await self._hooked.after_model(asked, shown)
        if isinstance(told, Deny):
            denied = ModelError(told.reason, kind="denied")
            denied.attempts = reply.attempts
            raise denied
        return reply if told is shown else told

    def _cleaned(self, reply: ModelReply) -> ModelReply:
        """A reply without secrets."""
        redactor = self._performer.redactor
        if not redactor.active:
            return reply
        return decode_reply(redactor.bytes(encode(reply), numbers=False))

    async def _recall(self, key: str) -> list[_Stands]:
        known = self._known.get(key)
        if known is not None:
            return known
        known = list[_Stands]()
        for found in self._performer.below(key, HOOK):
            if isinstance(found.outcome, Done):
                decided = _decisions.decode(await body_of(self._performer, found.outcome))
                ask = found.ask()
                known.append(_Stands(ask.target, ask.content, decided[0] if decided else None))
        self._known[key] = known
        return known

    async def _note(
        self, key: str, known: list[_Stands], kind: _Kind, content: str, said: ModelDecision | None
    ) -> _Stands:
        """Make what was decided durable."""
        place = f"{key}{HOOK}-{len(known) + 1}"
        ask = Ask("sample", f"hook.{kind}", content)
        decided, record = await noted(self._performer, place, ask, [] if said is None else [said])
        crash_point("hook.before_decision")
        await self._keep([record])
        crash_point("hook.after_decision")
        # What takes the place of a decision that can't be recorded is a denial, and no other kind is given here.
        found = next((each for each in decided if isinstance(each, Deny | Answer)), None)
        known.append(_Stands(ask.target, content, found))
        return known[-1]


def _find(known: list[_Stands], kind: _Kind, content: str) -> _Stands | None:
    return next((each for each in reversed(known) if each.holds(kind, content)), None)
