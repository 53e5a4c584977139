"""Wait tokens: whatever is not exactly the token that was handed out is unknown, and nothing else is said."""

from __future__ import annotations

import base64
import itertools
import string

import pytest
from tests.every import every

from holdfast.errors import WaitUnknown
from holdfast.names import MAX_ID
from holdfast.store.waits import mint_token, verify_token

SECRET = bytes(range(32))
TOKEN = mint_token(SECRET, "customer-42", "approval")
OTHER = mint_token(SECRET, "customer-43", "refund")
ALPHABET = string.ascii_letters + string.digits + "-_.=+/ é\x00"


def refused(token: object, secret: bytes = SECRET) -> None:
    with pytest.raises(WaitUnknown) as caught:
        verify_token(secret, token)
    assert (str(caught.value), vars(caught.value), caught.value.__cause__) == (str(WaitUnknown()), {}, None)


def test_a_token_stands_for_its_wait() -> None:
    assert verify_token(SECRET, TOKEN) == ("customer-42", "approval")


def test_a_token_has_these_bytes() -> None:
    prefix, claim, signature = TOKEN.split(".")
    assert (prefix, claim) == ("hfw1", "WyJjdXN0b21lci00MiIsImFwcHJvdmFsIl0")
    assert signature == "4MN6AtRKLQWLoKCOJZWsM5l1b1J207StEp0KzLgT2cY"


def test_a_token_is_the_same_at_any_time() -> None:
    assert mint_token(SECRET, "customer-42", "approval") == TOKEN


@every("position", range(len(TOKEN)))
def test_no_character_can_be_changed(position: int) -> None:
    for character in ALPHABET:
        if character != TOKEN[position]:
            refused(TOKEN[:position] + character + TOKEN[position + 1 :])


@every("length", range(len(TOKEN)))
def test_no_beginning_of_a_token_is_one(length: int) -> None:
    refused(TOKEN[:length])


def test_no_part_can_be_taken_from_another_token() -> None:
    parts, others = TOKEN.split("."), OTHER.split(".")
    for choice in itertools.product((0, 1), repeat=3):
        mixed = ".".join((parts, others)[pick][index] for index, pick in enumerate(choice))
        if mixed not in (TOKEN, OTHER):
            refused(mixed)


def test_parts_can_not_be_reordered_doubled_or_left_out() -> None:
    parts = TOKEN.split(".")
    for count in range(5):
        for choice in itertools.product(parts, repeat=count):
            if list(choice) != parts:
                refused(".".join(choice))


@every(
    "token",
    [
        "", ".", "..", "...", "hfw1", "hfw1.", "hfw1..", TOKEN + ".", TOKEN + "=", TOKEN + "A", " " + TOKEN,
        TOKEN + "\n", TOKEN.upper(), TOKEN.replace("hfw1", "hfw2"), "x" * 10_000, TOKEN + "A" * 10_000,
        "\ud800", "hfw1.\ud800.\ud800", "hfw1.é.é", "\x00",
        None, 7, TOKEN.encode(), [TOKEN], {"token": TOKEN}, type,
    ],
    ids=lambda token: repr(token)[:30],
)  # fmt: skip
def test_what_is_no_token_at_all_is_refused_in_the_same_words(token: object) -> None:
    refused(token)


def test_a_token_of_another_store_is_refused() -> None:
    refused(TOKEN, bytes(32))


def test_a_signature_alone_does_not_make_a_claim() -> None:
    prefix, _, signature = TOKEN.split(".")
    forged = base64.urlsafe_b64encode(b'["customer-43","refund"]').rstrip(b"=").decode()
    refused(f"{prefix}.{forged}.{signature}")


def test_journal_and_name_can_not_be_shifted_into_each_other() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ('a","b', "c"), ("a", 'b","c')]
    tokens = {mint_token(SECRET, journal, name) for journal, name in pairs}
    assert len(tokens) == len(pairs)
    assert [verify_token(SECRET, mint_token(SECRET, *pair)) for pair in pairs] == pairs


@pytest.mark.parametrize("character", ["a", "é", "\U0001f600", '"', "\\"])
def test_the_longest_ids_have_a_token_that_is_accepted(character: str) -> None:
    longest = character * MAX_ID
    assert verify_token(SECRET, mint_token(SECRET, longest, longest)) == (longest, longest)
