"""The traces in a journal of a call that was deferred or suspended and has no outcome."""

from __future__ import annotations

from holdfast.effects.replay import fold_history
from holdfast.records import EffectRequest, Intended
from holdfast.runtime.reconciliation import has_only_waited, was_suspended

KEY = "t1/2.tools/1.ask"


def _wait(name: str) -> Intended:
    return Intended(at=1, key=f"{KEY}/{name}", ask=EffectRequest("await_event", f"{KEY}/{name}", "0" * 64))


def test_a_call_that_was_interrupted_after_it_got_its_key_was_not_suspended() -> None:
    assert not was_suspended(fold_history([_wait("%defer")]), KEY)


def test_a_call_that_got_a_key_has_not_only_waited() -> None:
    assert not has_only_waited(fold_history([_wait("%defer")]), KEY)


def test_a_call_that_was_left_at_a_wait_of_its_own_was_suspended_and_has_only_waited() -> None:
    past = fold_history([_wait("go")])
    assert was_suspended(past, KEY)
    assert has_only_waited(past, KEY)
