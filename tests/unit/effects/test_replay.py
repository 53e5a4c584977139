"""The replay decision as a table: what is recorded, what is asked, what may be repeated."""

from __future__ import annotations

import msgspec
import pytest
from tests.every import every

from holdfast.effects.canonical import canonical, digest_of_bytes
from holdfast.effects.replay import (
    KEEPS_RECORDED,
    Mismatch,
    Miss,
    Perform,
    PerformAgain,
    RecordedEffect,
    Repeat,
    SettleAsUnknown,
    UseRecorded,
    decide_effect,
    fold_history,
)
from holdfast.errors import InvariantBroken
from holdfast.records import (
    EFFECT_KINDS,
    Cancelled,
    Done,
    EffectKind,
    EffectRequest,
    Ended,
    ErrorInfo,
    Failed,
    Intended,
    Outcome,
    Record,
    Started,
    Unknown,
)

KINDS: list[EffectKind] = sorted(EFFECT_KINDS)  # pyright: ignore[reportAssignmentType]
STRICT = every("strict", [False, True], ids=["driving", "checking"])
REPEAT = every("repeat", list(Repeat))
KIND = every("kind", KINDS)


def ask(kind: EffectKind = "tool_call", target: str = "refund", body: object = 1) -> EffectRequest:
    raw = canonical(body)
    return EffectRequest(kind, target, digest_of_bytes("content", raw), msgspec.Raw(raw))


def intent(asked: EffectRequest) -> Intended:
    return Intended(at=1, key="main/x", ask=asked)


def outcomes(asked: EffectRequest | None) -> list[Outcome]:
    error = ErrorInfo("E", "m")
    found: list[Outcome] = [
        Done(at=1, key="main/x", ask=asked, value=msgspec.Raw(b"1")),
        Failed(at=1, key="main/x", ask=asked, error=error),
        Cancelled(at=1, key="main/x", ask=asked),
    ]
    return found if asked else [*found, Unknown(at=1, key="main/x")]


def recordings(asked: EffectRequest) -> list[RecordedEffect]:
    """Every way in which an effect can be recorded with an outcome."""
    with_intent = [RecordedEffect(intent(asked), outcome) for outcome in outcomes(None)]
    return with_intent + [RecordedEffect(None, outcome) for outcome in outcomes(asked)]


@KIND
@every(("repeat", "due"), [(Repeat.FREE, False), (Repeat.KEYED, False), (Repeat.NEVER, True)])
def test_a_new_effect_begins_with_an_intent_where_a_repetition_would_do_harm(
    kind: EffectKind,
    repeat: Repeat,
    due: bool,
) -> None:
    assert decide_effect(None, ask(kind), repeat) == Perform(intent=due)


@REPEAT
@KIND
def test_a_checking_replay_performs_nothing_new(kind: EffectKind, repeat: Repeat) -> None:
    assert decide_effect(None, ask(kind), repeat, strict=True) == Miss()


@STRICT
@REPEAT
@KIND
def test_a_recorded_outcome_answers(kind: EffectKind, repeat: Repeat, strict: bool) -> None:
    for recorded in recordings(ask(kind)):
        decision = decide_effect(recorded, ask(kind), repeat, strict=strict)
        assert recorded.outcome is not None
        assert decision == UseRecorded(recorded.outcome)


@every(
    ("repeat", "decision"),
    [(Repeat.FREE, PerformAgain()), (Repeat.KEYED, PerformAgain()), (Repeat.NEVER, SettleAsUnknown())],
)
@KIND
def test_an_interrupted_effect_is_repeated_only_where_that_is_safe(
    kind: EffectKind, repeat: Repeat, decision: object
) -> None:
    assert decide_effect(RecordedEffect(intent(ask(kind))), ask(kind), repeat) == decision


@REPEAT
@KIND
def test_a_checking_replay_stops_at_an_interrupted_effect(kind: EffectKind, repeat: Repeat) -> None:
    assert decide_effect(RecordedEffect(intent(ask(kind))), ask(kind), repeat, strict=True) == Miss()


@STRICT
@REPEAT
@KIND
def test_other_content_stops_the_run_or_is_kept_with_a_warning(
    kind: EffectKind,
    repeat: Repeat,
    strict: bool,
) -> None:
    for recorded in recordings(ask(kind, body={"n": 1})):
        decision = decide_effect(recorded, ask(kind, body={"n": 2}), repeat, strict=strict)
        if kind in ("model_call", "direct"):
            assert isinstance(decision, UseRecorded)
            assert decision.outcome is recorded.outcome
            divergence = decision.drift
        else:
            assert isinstance(decision, Mismatch)
            divergence = decision.divergence
        assert divergence is not None
        assert [(d.path, d.recorded, d.asked) for d in divergence.first] == [("body.n", "1", "2")]


@STRICT
@REPEAT
def test_another_kind_or_target_is_never_kept(repeat: Repeat, strict: bool) -> None:
    for kind in KINDS:
        other: EffectKind = "step" if kind != "step" else "tool_call"
        for recorded in [*recordings(ask(kind)), RecordedEffect(intent(ask(kind)))]:
            for asked, path in ((ask(kind, "other"), "target"), (ask(other), "kind")):
                decision = decide_effect(recorded, asked, repeat, strict=strict)
                assert isinstance(decision, Mismatch)
                assert [d.path for d in decision.divergence.first] == [path]


@REPEAT
def test_other_content_of_an_interrupted_effect_stops_the_run_before_anything_is_repeated(repeat: Repeat) -> None:
    decision = decide_effect(RecordedEffect(intent(ask(body=1))), ask(body=2), repeat)
    assert isinstance(decision, Mismatch)


def test_large_commands_are_compared_by_their_digests() -> None:
    recorded, same, other = (EffectRequest("step", "x", content) for content in ("a" * 64, "a" * 64, "b" * 64))
    found = RecordedEffect(None, Done(at=1, key="main/x", ask=recorded))
    assert isinstance(decide_effect(found, same, Repeat.KEYED), UseRecorded)
    decision = decide_effect(found, other, Repeat.KEYED)
    assert isinstance(decision, Mismatch)
    assert [d.path for d in decision.divergence.first] == ["body.sha256"]


def test_every_mismatch_says_what_differs() -> None:
    found = RecordedEffect(None, Done(at=1, key="main/x", ask=ask(body=0.0)))
    decision = decide_effect(found, ask(body=-0.0), Repeat.KEYED)
    assert isinstance(decision, Mismatch)
    assert decision.divergence.total > 0


def test_an_outcome_that_was_never_asked_for_is_a_bug_of_ours() -> None:
    with pytest.raises(InvariantBroken):
        decide_effect(RecordedEffect(None, Done(at=1, key="main/x")), ask(), Repeat.KEYED)


def test_model_calls_and_completions_are_the_kinds_that_keep_what_was_recorded() -> None:
    assert frozenset(("model_call", "direct")) == KEEPS_RECORDED


def test_the_past_is_a_fold_of_the_records() -> None:
    story: list[Record] = [
        Started(at=1, run="main", code="v1"),
        Intended(at=1, key="main/a", ask=ask()),
        Done(at=1, key="main/g/1.y", ask=ask(), value=msgspec.Raw(b"2")),
        Failed(at=1, key="main/a", error=ErrorInfo("E", "m")),
        Done(at=1, key="main/g/0.x", ask=ask(), value=msgspec.Raw(b"1")),
        Ended(at=1, run="main", status="completed"),
    ]
    past = fold_history(story)
    assert past.order["main"] == ["main/a"]
    assert past.order["main/g"] == ["main/g/1.y", "main/g/0.x"]
    assert sorted(past.settled, key=lambda key: past.settled[key]) == ["main/g/1.y", "main/a", "main/g/0.x"]
    assert past.effects["main/a"] == RecordedEffect(intent=story[1], outcome=story[3])  # pyright: ignore[reportArgumentType]
    assert past.started["main"] == story[0]
    assert past.ended["main"] == story[5]
