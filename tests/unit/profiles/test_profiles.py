"""What a profile may say, and how it is changed word by word."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.every import every

from holdfast.errors import UsageError
from holdfast.profiles import (
    Profile,
    ProfileInvalid,
    ProfilePrice,
    ReferenceInvalid,
    SecretReference,
    SecretRefused,
    apply_assignments,
    decode_profile,
    encode_profile,
    looks_like_key,
    parse_reference,
)

KEYS = [
    "sk-ant-api03-abcdefgh12345678",
    "sk-proj-Abc123Def456Ghi789",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "ghp_abcdefghijklmnopqrstuv1234567890",
    "AKIAIOSFODNN7EXAMPLE",
    "gsk_abcdefghijklmnop12345678",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlMTIz",
    "Bearer abcdefghijklmnop1234",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "q7RkT2mXw9ZbV4nYc8LdF3hJ",
]
WHOLE = {
    "store": "/srv/work.db",
    "agent": "/srv/agents.py:support",
    "model": "openai:gpt-5",
    "output": "json",
    "deadline": 60.5,
    "prices": {"openai:gpt-5": {"input": 3, "output": 15.5, "cache_read": 0.3}, "own:*": {"input": 0, "output": 0}},
    "secrets": {"OPENAI_API_KEY": "env:WORK_KEY", "OTHER": "keyring:holdfast/work"},
}


def read(**fields: Any) -> Profile:
    return decode_profile("work", json.dumps(fields).encode())


def test_a_profile_with_every_field_reads_as_it_was_written() -> None:
    found = read(**WHOLE)
    assert (found.store, found.deadline, found.prices["own:*"]) == ("/srv/work.db", 60.5, ProfilePrice(0, 0))
    assert decode_profile("work", encode_profile(found)) == found


def test_an_empty_profile_says_nothing() -> None:
    assert read() == Profile()
    assert encode_profile(Profile()) == b"{}\n"


@every(
    ("fields", "word"),
    [
        ({"colour": "red"}, "colour"),
        ({"prices": {"a:b": {"input": 1, "output": 1, "tax": 1}}}, "tax"),
        ({"store": 7}, "store"),
        ({"store": ["a"]}, "store"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": True}, "deadline"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": -1}, "deadline"),
        ({"output": "xml"}, "output"),
        ({"secrets": ["env:A"]}, "secrets"),
        ({"secrets": {"A": 1}}, "secrets"),
        ({"secrets": {"A": "plain"}}, "secrets.A"),
        ({"secrets": {"A": "env:"}}, "secrets.A"),
        ({"secrets": {"A": "env:A B"}}, "secrets.A"),
        ({"secrets": {"A": "keyring:name"}}, "secrets.A"),
        ({"secrets": {"A": "keyring:/name"}}, "secrets.A"),
        ({"secrets": {"A": "file:/etc/passwd"}}, "secrets.A"),
        ({"secrets": {"A=B": "env:X"}}, "secrets.A=B"),
        ({"secrets": {"": "env:X"}}, "secrets"),
        ({"prices": {"nobody": {"input": 1, "output": 1}}}, "prices.nobody"),
        ({"prices": {"a:b": {"input": -1, "output": 1}}}, "prices.a:b"),
        ({"prices": {"a:b": {"input": 1}}}, "output"),
        ({"store": "relative.db"}, "store"),
        ({"store": ""}, "store"),
        ({"store": "/a\nb"}, "store"),
        ({"store": "/folder/"}, "store"),
        ({"store": "/" + "a" * 2_000}, "store"),
        ({"agent": "agents.py:a"}, "agent"),
        ({"agent": "/agents.py:not a name"}, "agent"),
        ({"agent": "a b"}, "agent"),
        ({"model": "gpt"}, "model"),
        ({"model": ":x"}, "model"),
        ({"secrets": {f"A{number}": "env:X" for number in range(101)}}, "secrets"),
    ],
)
def test_what_can_not_be_meant_is_refused_by_its_field(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(ProfileInvalid, match="'work'") as caught:
        read(**fields)
    assert word in caught.value.reason


@every("data", [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe", b'{"store": "\xff"}', b"[" * 5_000])
def test_a_file_that_holds_no_profile_is_refused(data: bytes) -> None:
    with pytest.raises(ProfileInvalid):
        decode_profile("work", data)


def test_something_nested_without_end_is_refused() -> None:
    for depth in range(800, 1_100):  # where it is too much depends on who calls
        with pytest.raises(ProfileInvalid):
            decode_profile("work", b'{"store": ' + b"[" * depth + b"]" * depth + b"}")


# ---- secrets ---------------------------------------------------------------------------------------------------------


@every("key", KEYS)
@every(
    "fields",
    [
        '{"secrets": {"VARIABLE": "KEY"}}',
        '{"secrets": {"VARIABLE": "env:KEY"}}',
        '{"secrets": {"VARIABLE": "keyring:holdfast/KEY"}}',
        '{"secrets": {"KEY": "env:A"}}',
        '{"model": "openai:KEY"}',
        '{"output": "KEY"}',
        '{"api_key": "KEY"}',
        '{"KEY": "x"}',
        '{"colour": [{"deep": "KEY"}]}',
    ],
)
def test_what_looks_like_a_key_is_refused_and_not_repeated(key: str, fields: str) -> None:
    with pytest.raises(SecretRefused) as caught:
        decode_profile("work", fields.replace("KEY", key).encode())
    assert key not in str(caught.value)
    assert key[-8:] not in str(caught.value)


@pytest.mark.parametrize("field", ["store", "agent"])
def test_a_key_in_a_path_is_refused(field: str) -> None:
    with pytest.raises(SecretRefused, match=field):
        read(**{field: "/srv/sk-ant-api03-abcdefgh12345678/x.py"})


@every(
    "text",
    [
        "anthropic:claude-sonnet-4-5-20250929",
        "together:meta-llama/Llama-3.3-70B-Instruct-Turbo",
        "fireworks:accounts/fireworks/models/llama-v3p1-405b-instruct",
        "bedrock:anthropic.claude-3-5-sonnet-20241022-v2:0",
        "azure:0b9e1c2d-1234-4abc-9def-0123456789ab",
        "WORK_ANTHROPIC_API_KEY",
    ],
)
def test_names_of_models_and_variables_do_not_look_like_keys(text: str) -> None:
    assert not looks_like_key(text)


def test_a_folder_may_have_a_random_name() -> None:
    assert read(store="/nix/store/9f86d081884c7d659a2feaa0c55ad015/x.db").store is not None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("env:A_B1", SecretReference("env", "", "A_B1")),
        ("keyring:holdfast/work", SecretReference("keyring", "holdfast", "work")),
        ("keyring:https:host/me", SecretReference("keyring", "https:host", "me")),
    ],
)
def test_a_reference_says_where_a_secret_is(text: str, found: SecretReference) -> None:
    assert parse_reference(text) == found
    assert str(found) == text


def test_what_is_no_reference_is_not_repeated() -> None:
    with pytest.raises(ReferenceInvalid) as caught:
        parse_reference("my-short-password")
    assert "password" not in str(caught.value)


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_fields_are_set_one_by_one_and_the_others_stay() -> None:
    first = apply_assignments("work", Profile(), ["store=a.db", "output=json"], "/here")
    second = apply_assignments("work", first, ["deadline=30", "secret.KEY=env:MINE"], "/there")
    assert second == Profile(store="/here/a.db", output="json", deadline=30, secrets={"KEY": "env:MINE"})


def test_an_empty_value_takes_a_field_away() -> None:
    before = read(**WHOLE)
    after = apply_assignments("work", before, ["store=", "price.own:*=", "secret.OTHER=", "model="], "/")
    assert (after.store, after.model, list(after.prices), list(after.secrets)) == (
        *(None, None),
        *(["openai:gpt-5"], ["OPENAI_API_KEY"]),
    )


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("agents.py:a", "/here/agents.py:a"),
        ("agents.py", "/here/agents.py"),
        ("/x/agents.py:a", "/x/agents.py:a"),
        ("~/agents.py:a", "~/agents.py:a"),
        ("package.module:a", "package.module:a"),
    ],
)
def test_the_file_of_an_agent_is_taken_from_the_folder_where_one_stands(given: str, kept: str) -> None:
    assert apply_assignments("work", Profile(), [f"agent={given}"], "/here").agent == kept


def test_a_price_has_two_to_four_amounts() -> None:
    made = apply_assignments("work", Profile(), ["price.a:b=3,15", "prices.a:c=3,15,0.3,3.75"], "/")
    assert made.prices == {"a:b": ProfilePrice(3, 15), "a:c": ProfilePrice(3, 15, 0.3, 3.75)}


@every(
    "change",
    ["store", "colour=red", "deadline=soon", "deadline=inf", "deadline=nan", "price.a:b=3", "price.a:b=1,2,3,4,5",
     "price.=1,2", "price.a:b=x,y", "secret.=env:A", "secret.A=hunter2", "=x", "prices=1",
     "secrets=env:A", "output=xml"],
)  # fmt: skip
def test_a_change_that_can_not_be_meant_is_refused(change: str) -> None:
    with pytest.raises(ProfileInvalid):
        apply_assignments("work", Profile(), [change], "/")


@every("key", KEYS)
@every("change", ["secret.KEY={}", "api_key={}", "{}", "{}=x", "model=a:{}", "secret.{}=env:A"])
def test_a_key_in_a_change_is_refused_and_not_repeated(key: str, change: str) -> None:
    with pytest.raises(UsageError) as caught:
        apply_assignments("work", Profile(), [change.format(key)], "/")
    assert key not in str(caught.value)
