"""The effect envelope: what it refuses, and the two digests that decide about replay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.every import every

from holdfast.effects.envelope import (
    MAX_ASK_BODY,
    MAX_KEY,
    EffectCommand,
    EffectSubject,
    Envelope,
    RunScope,
    identity,
    scope_of,
    segment,
)
from holdfast.errors import InvalidId, InvalidValue
from holdfast.records import Cause


def envelope(**changes: Any) -> Envelope:
    fields: dict[str, Any] = {
        "scope": RunScope("j", "main"),
        "subject": EffectSubject("refund", "tool_call"),
        "key": "main/refund",
        "command": EffectCommand("refund", {"order": "7", "cents": 1}),
    }
    return Envelope(**fields | changes)


IDENTITY = "0fa4d4ceadd2f3881df997321b3d0f20c41c1abd0a38e834e762b521fbd42b6e"
CONTENT = "bb4735047e15318c55c15bf1644754ceaea89db7728578cf05405c9d44644be2"


def test_both_digests_have_these_values() -> None:
    assert envelope().identity() == IDENTITY
    assert identity("tool_call", "main/refund", "refund") == IDENTITY
    assert envelope().ask().content == CONTENT


def test_what_is_asked_is_kept_in_canonical_form() -> None:
    ask = envelope().ask()
    assert (ask.kind, ask.target, bytes(ask.body)) == ("tool_call", "refund", b'{"cents":1,"order":"7"}')


def test_a_command_without_a_body_asks_for_null() -> None:
    ask = envelope(command=EffectCommand("refund")).ask()
    assert bytes(ask.body) == b"null"
    assert ask.content == "dd8b5e4ce0fc5969ea493d09bbd0792c8f83ddff738394320a10d445afaad150"


@pytest.mark.parametrize(
    "changes",
    [
        {"scope": RunScope("another", "main")},
        {"scope": RunScope("j", "main", 3)},
        {"scope": RunScope("j", "other run")},
        {"cause": Cause("input", "1")},
        {"subject": EffectSubject("another id", "tool_call")},
    ],
    ids=str,
)
def test_where_and_why_an_effect_is_asked_for_leaves_its_digests_alone(changes: dict[str, Any]) -> None:
    changed = envelope(**changes)
    assert (changed.identity(), changed.ask().content) == (IDENTITY, CONTENT)


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "main/refund#2"},
        {"subject": EffectSubject("refund", "step")},
        {"command": EffectCommand("repay", {"order": "7", "cents": 1})},
    ],
    ids=str,
)
def test_kind_key_and_target_are_the_identity(changes: dict[str, Any]) -> None:
    assert envelope(**changes).identity() != IDENTITY
    assert envelope(**changes).ask().content == CONTENT


def test_the_body_is_the_content() -> None:
    changed = envelope(command=EffectCommand("refund", {"order": "7", "cents": 2}))
    assert changed.identity() == IDENTITY
    assert changed.ask().content != CONTENT


def test_an_absent_optional_field_leaves_the_bytes_of_an_ask_unchanged() -> None:
    large = envelope(command=EffectCommand("refund", "x" * MAX_ASK_BODY)).ask()
    body = msgspec.json.encode(large)
    assert body == f'{{"kind":"tool_call","target":"refund","content":"{large.content}"}}'.encode()


def test_a_large_command_is_kept_by_its_digest_alone() -> None:
    fits = envelope(command=EffectCommand("refund", "x" * (MAX_ASK_BODY - 2))).ask()
    too_large = envelope(command=EffectCommand("refund", "x" * (MAX_ASK_BODY - 1))).ask()
    assert len(bytes(fits.body)) == MAX_ASK_BODY
    assert bytes(too_large.body) == b""


@every(
    ("changes", "what"),
    [
        ({"scope": RunScope("", "main")}, "journal id"),
        ({"scope": RunScope("../x", "main")}, "journal id"),
        ({"scope": RunScope("j", "a\x00b")}, "run"),
        ({"subject": EffectSubject("", "tool_call")}, "effect id"),
        ({"subject": EffectSubject("refund", "teleport")}, "effect kind"),  # pyright: ignore[reportArgumentType]
        ({"key": ""}, "replay key"),
        ({"key": "k" * (MAX_KEY + 1)}, "replay key"),
        ({"command": EffectCommand("")}, "target"),
        ({"command": EffectCommand("x" * 257)}, "target"),
        ({"command": EffectCommand(7)}, "target"),  # pyright: ignore[reportArgumentType]
    ],
    ids=str,
)
def test_an_envelope_that_can_not_be_found_again_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidId) as caught:
        envelope(**changes)
    assert caught.value.what == what


@pytest.mark.parametrize("key", [None, 7, b"main/x", ["main"]])
def test_a_key_that_is_not_a_string_is_refused(key: object) -> None:
    with pytest.raises(InvalidId):
        envelope(key=key)


@pytest.mark.parametrize("kind", [None, 7, ["step"], {"step"}])
def test_a_kind_that_is_not_a_string_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidId):
        envelope(subject=EffectSubject("refund", kind))


def test_the_longest_key_is_allowed() -> None:
    assert envelope(key="k" * MAX_KEY).key == "k" * MAX_KEY


def test_a_body_without_json_form_is_refused_when_it_is_asked_for() -> None:
    with pytest.raises(InvalidValue):
        envelope(command=EffectCommand("refund", {"cents": float("nan")})).ask()


@every(
    ("name", "occurrence", "part"),
    [
        ("fetch", 1, "fetch"),
        ("fetch", 2, "fetch#2"),
        ("a/b", 1, "a%2Fb"),
        ("a#2", 1, "a%232"),
        ("~a", 1, "%7Ea"),
        ("100%", 3, "100%25#3"),
        ("%2F", 1, "%252F"),
        ("é☃", 1, "é☃"),
    ],
)
def test_a_name_becomes_one_part_of_a_key(name: str, occurrence: int, part: str) -> None:
    assert segment(name, occurrence) == part


def test_different_uses_of_names_never_share_a_key_part() -> None:
    names = ["a", "a#2", "a/b", "a%2Fb", "~a", "%7Ea", "a%232", "a%"]
    parts = {segment(name, occurrence) for name in names for occurrence in (1, 2, 3)}
    assert len(parts) == len(names) * 3


@pytest.mark.parametrize(("key", "scope"), [("main/a", "main"), ("main/a/b#2", "main/a"), ("main", "")])
def test_the_scope_of_a_key_is_the_path_before_it(key: str, scope: str) -> None:
    assert scope_of(key) == scope
