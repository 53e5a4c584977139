"""What was decided about a tool call before it began, as the journal has it: by hooks, and by a person.

What hooks decide about anything is put into a record here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.effects.canonical import check as check_json
from holdfast.effects.canonical import digest, digest_of_bytes
from holdfast.effects.values import encode_value
from holdfast.errors import HoldfastError
from holdfast.policy.approvals import MARK, Approved, Denied, approves
from holdfast.policy.hooks import Answer, Ask, Deny, Replace, ToolDecision
from holdfast.records import Ask as Asked
from holdfast.records import Done

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.effects.performer import Performer
    from holdfast.effects.replay import Recorded
    from holdfast.messages import ToolCall
    from holdfast.records import Outcome
    from holdfast.store.contract import Wait

HOOK: Final = "/%hook"
"""What is put to the key of a call to name what hooks decided about it."""

_EDITED: Final = f"{HOOK}-edit-"

_decisions: Final = msgspec.json.Decoder(list[ToolDecision])
_answers: Final = msgspec.json.Decoder(Approved | Denied)


@dataclass(frozen=True, slots=True)
class Decided:
    """What is known about one call."""

    hooks: tuple[ToolDecision, ...] | None = None
    """None: hooks were not asked yet."""
    judged: Mapping[str, tuple[ToolDecision, ...]] = field(default_factory=dict[str, "tuple[ToolDecision, ...]"])
    """What hooks decided about arguments that a person wrote, by `place_of_edit`."""
    answer: Approved | Denied | None = None
    """What a person answered, where that was used."""
    answered: str | None = None
    """The question to which that is the answer."""
    asked: tuple[str, ...] = ()
    """The questions that were put to a person."""
    open: tuple[str, ...] = ()
    """Those of them that nobody has answered yet, as far as it is recorded."""

    def call(self, call: ToolCall) -> ToolCall:
        """The call with the arguments that it is to be made with."""
        for decision in self.hooks or ():
            if isinstance(decision, Replace):
                call = msgspec.structs.replace(call, arguments=decision.arguments)
        if self.edited and isinstance(self.answer, Approved):
            call = msgspec.structs.replace(call, arguments=self.answer.arguments)
        return call

    @property
    def questioned(self) -> bool:
        """Whether a person was asked about it, or has answered."""
        return bool(self.asked) or self.answer is not None

    def forged(self, wait: Wait | None, *, begun: bool) -> str | None:
        """Why what the journal has of a person's answer can't be true; None where nothing speaks against it.

        `wait` is the sealed row of the question that was answered. An approval is recorded, used up and followed by the
        intent of its call in one commit, so a row that tells something else, or none at all, was not Holdfast's doing.
        """
        if begun and self.open:
            return f"a call was begun although nobody has answered {self.open[0]!r}"
        if begun and isinstance(self.answer, Denied):
            return f"a call was begun although {self.answered!r} was denied"
        if not isinstance(self.answer, Approved):
            return None  # a denial lets nothing run
        if wait is None:
            return f"{self.answered!r} counts as approved, and there is no such wait"
        used = wait.consumed and approves(wait.payload, self.answer.digest)
        if used or wait.state == "revoked":  # a wait that was revoked does not tell any more what it was
            return None
        return f"{self.answered!r} counts as approved, and its wait does not say so"

    @property
    def edited(self) -> bool:
        """Whether a person has changed its arguments."""
        return isinstance(self.answer, Approved) and self.answer.arguments is not None


NOTHING: Final = Decided()


async def recall(performer: Performer, key: str) -> Decided:
    """What is recorded below the call `key`."""
    if key not in performer.past.order:
        return NOTHING
    hooks: dict[str, tuple[ToolDecision, ...]] = {}
    for found in performer.below(key, HOOK):
        if isinstance(found.outcome, Done):
            decisions = tuple(_decisions.decode(await body_of(performer, found.outcome)))
            hooks[found.outcome.key.removeprefix(key)] = decisions
    questions = performer.below(key, MARK)
    used = _last(questions)
    answer = None if used is None else _answers.decode(await body_of(performer, used))
    intents = [(each.intent.key, each.outcome is None) for each in questions if each.intent is not None]
    return Decided(
        hooks=hooks.get(HOOK),
        judged={place: decisions for place, decisions in hooks.items() if place.startswith(_EDITED)},
        answer=answer,
        answered=None if used is None else used.key,
        asked=tuple(key for key, _ in intents),
        open=tuple(key for key, is_open in intents if is_open),
    )


def _last(found: list[Recorded]) -> Done | None:
    """The answer that was used last: a call that has changed meanwhile is asked about anew."""
    return next((each.outcome for each in reversed(found) if isinstance(each.outcome, Done)), None)


async def body_of(performer: Performer, done: Done) -> bytes:
    """The value of a record, wherever it is kept."""
    return bytes(done.value) if done.blob is None else await performer.large(done.blob)


def place_of_edit(arguments: dict[str, Any]) -> str:
    """What is put to the key of a call to name what hooks decided about these arguments, which a person wrote."""
    return _EDITED + digest("edit", arguments)[:16]


def asked_hooks(key: str) -> Asked:
    """What hooks are asked about the call `key`, as the journal has it."""
    return Asked("sample", "hook", digest_of_bytes("hook", key.encode()))


async def noted(
    performer: Performer, place: str, ask: Asked, decided: Sequence[ToolDecision]
) -> tuple[list[ToolDecision], Outcome]:
    """What hooks decided, as it can be recorded at `place`, and its record. What can't be is a denial."""
    try:
        plain = [_plain(decision) for decision in decided]
        # A secret among the arguments is no more than its name, also now: the call must be the same when it is made
        # again after a crash.
        body = performer.redactor.bytes(msgspec.json.encode(plain))
        outcome = await _recorded(performer, place, ask, body)
        known = _decisions.decode(body)
    except (HoldfastError, msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        said = performer.redactor.text(str(error))[:500]
        known: list[ToolDecision] = [Deny(f"what a hook decided can't be recorded: {said}")]
        outcome = await _recorded(performer, place, ask, msgspec.json.encode(known))
    return known, outcome


async def _recorded(performer: Performer, place: str, ask: Asked, body: bytes) -> Outcome:
    outcome = await performer.succeeded(place, ask, body, 0.0)
    if not isinstance(outcome, Done):
        message = "it is too large"
        raise ValueError(message)  # noqa: TRY004  it is about a size
    return msgspec.structs.replace(outcome, ms=0)


def _plain(decision: ToolDecision) -> ToolDecision:
    """The decision with nothing in it but JSON."""
    match decision:
        case Replace(arguments):
            check_json(arguments)
            return decision
        case Answer(value):
            given: Any = msgspec.json.decode(encode_value(value))
            return Answer(given)
        case Deny(reason):
            return Deny(str(reason))
        case Ask(why):
            return Ask(str(why))
