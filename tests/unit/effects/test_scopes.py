"""Keys, scopes and recorded requests: what they refuse, and the digest that decides about replay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.every import every

from holdfast.effects.canonical import canonical
from holdfast.effects.keys import MAX_KEY, check_key, scope_of, segment
from holdfast.effects.replay import MAX_ASK_BODY, make_request
from holdfast.errors import InvalidId, InvalidValue
from holdfast.records import Cause, EffectRequest

BODY: dict[str, Any] = {"order": "7", "cents": 1}
CONTENT = "bb4735047e15318c55c15bf1644754ceaea89db7728578cf05405c9d44644be2"


def ask(body: object = BODY, cause: Cause | None = None, iteration: int = 0) -> EffectRequest:
    return make_request("tool_call", "refund", canonical(body), cause, iteration)


def test_the_digest_of_the_content_has_this_value() -> None:
    assert ask().content == CONTENT


def test_what_is_asked_is_kept_in_canonical_form() -> None:
    assert (ask().kind, ask().target, bytes(ask().body)) == ("tool_call", "refund", b'{"cents":1,"order":"7"}')


def test_a_command_without_a_body_asks_for_null() -> None:
    assert bytes(ask(None).body) == b"null"
    assert ask(None).content == "dd8b5e4ce0fc5969ea493d09bbd0792c8f83ddff738394320a10d445afaad150"


def test_where_and_why_an_effect_is_asked_for_leaves_its_digest_alone() -> None:
    assert ask(iteration=3).content == ask(cause=Cause("input", "1")).content == CONTENT


def test_another_body_has_another_digest() -> None:
    assert ask({"order": "7", "cents": 2}).content != CONTENT


def test_an_absent_optional_field_leaves_the_bytes_of_an_ask_unchanged() -> None:
    large = ask("x" * MAX_ASK_BODY)
    body = msgspec.json.encode(large)
    assert body == f'{{"kind":"tool_call","target":"refund","content":"{large.content}"}}'.encode()


def test_a_large_command_is_kept_by_its_digest_alone() -> None:
    fits = ask("x" * (MAX_ASK_BODY - 2))
    too_large = ask("x" * (MAX_ASK_BODY - 1))
    assert len(bytes(fits.body)) == MAX_ASK_BODY
    assert bytes(too_large.body) == b""


@pytest.mark.parametrize("key", ["", "k" * (MAX_KEY + 1)])
def test_an_empty_or_endless_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidId) as caught:
        check_key(key)
    assert caught.value.what == "replay key"


@pytest.mark.parametrize("key", [None, 7, b"main/x", ["main"]])
def test_a_key_that_is_not_a_string_is_refused(key: object) -> None:
    with pytest.raises(InvalidId):
        check_key(key)  # pyright: ignore[reportArgumentType]


def test_the_longest_key_is_allowed() -> None:
    assert check_key("k" * MAX_KEY) == "k" * MAX_KEY


def test_a_body_without_json_form_is_refused_when_it_is_asked_for() -> None:
    with pytest.raises(InvalidValue):
        ask({"cents": float("nan")})


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
