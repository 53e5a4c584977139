"""Which strings may name something that is stored."""

from __future__ import annotations

import pytest
from tests.every import every

from holdfast.errors import InvalidId
from holdfast.names import MAX_ID, MAX_NAME, check_id, check_name


@every(
    "value",
    [
        "a", "customer-42", "A.b_c", "a b", "a/b/c", "a\\b", "...", "a..b", "..a", "a..", ".hidden", "tenant:7@x",
        "é", "☃", "\U0001f600", "日本", "x" * MAX_ID, "\U0001f600" * MAX_ID, "0", "-",
        "'; DROP TABLE journals; --", "%2e%2e",
        "a\u00a0b", "~", "*",
    ],
)  # fmt: skip
def test_these_are_ids(value: str) -> None:
    assert check_id("journal id", value) == value


BAD = [
    ("", "it is empty"),
    ("x" * (MAX_ID + 1), "it has 257 characters, the limit is 256"),
    ("x" * 10_000, "it has 10,000 characters, the limit is 256"),
    (".", "it has an empty, '.' or '..' part"),
    ("..", "it has an empty, '.' or '..' part"),
    ("a/../b", "it has an empty, '.' or '..' part"),
    ("../a", "it has an empty, '.' or '..' part"),
    ("a/..", "it has an empty, '.' or '..' part"),
    ("a\\..\\b", "it has an empty, '.' or '..' part"),
    ("a/./b", "it has an empty, '.' or '..' part"),
    ("/", "it has an empty, '.' or '..' part"),
    ("/etc/passwd", "it has an empty, '.' or '..' part"),
    ("a/", "it has an empty, '.' or '..' part"),
    ("a//b", "it has an empty, '.' or '..' part"),
    ("a\x00b", "it has the character U+0000"),
    ("a\nb", "it has the character U+000A"),
    ("a\x1b[31mb", "it has the character U+001B"),
    ("a\x7f", "it has the character U+007F"),
    ("a\x85b", "it has the character U+0085"),
    ("a\u202eb", "it has the character U+202E"),
    ("a\u200bb", "it has the character U+200B"),
    ("\ufeffa", "it has the character U+FEFF"),
    ("\ud800", "it has the character U+D800"),
    ("a\ue000", "it has the character U+E000"),
    ("a\u0378", "it has the character U+0378"),
    (" ", "it begins or ends with white space"),
    (" a", "it begins or ends with white space"),
    ("a ", "it begins or ends with white space"),
    ("\u3000a", "it begins or ends with white space"),
    (None, "it is a NoneType, not a string"),
    (7, "it is a int, not a string"),
    (True, "it is a bool, not a string"),
    (b"a", "it is a bytes, not a string"),
    (["a"], "it is a list, not a string"),
]


@every(("value", "reason"), BAD, ids=lambda item: repr(item)[:30])
def test_these_are_not_and_the_error_says_why(value: object, reason: str) -> None:
    with pytest.raises(InvalidId) as caught:
        check_id("input key", value)
    assert (caught.value.what, caught.value.reason) == ("input key", reason)


@every("value", [value for value, _ in BAD], ids=lambda item: repr(item)[:30])
def test_the_error_message_is_short_and_printable(value: object) -> None:
    with pytest.raises(InvalidId) as caught:
        check_id("journal id", value)
    message = str(caught.value)
    assert len(message) < 250
    assert message.isprintable()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029"])
def test_a_character_that_ends_a_line_is_refused(separator: str) -> None:
    with pytest.raises(InvalidId):
        check_id("journal id", f"a{separator}b")


@every("value", ["a", "a.b", "a b", "é", "日本", "notes.md", "a..b", "x" * MAX_NAME, "-", "*", "C:"])
def test_these_are_names(value: str) -> None:
    assert check_name("memory key", value) == value


@every(
    ("value", "reason"),
    [
        ("", "it is empty"),
        ("x" * (MAX_NAME + 1), "it has 201 characters, the limit is 200"),
        (".", "it has an empty, '.' or '..' part"),
        ("..", "it has an empty, '.' or '..' part"),
        ("a/b", "it has a separator (/ or \\)"),
        ("a\\b", "it has a separator (/ or \\)"),
        (".hidden", "it begins or ends with a dot"),
        ("a.", "it begins or ends with a dot"),
        (" a", "it begins or ends with white space"),
        ("a\tb", "it has the character U+0009"),
        ("e\u0301", "it is not in the normal form NFC"),
        (7, "it is a int, not a string"),
    ],
    ids=ascii,
)
def test_these_are_no_names(value: object, reason: str) -> None:
    with pytest.raises(InvalidId) as caught:
        check_name("memory key", value)
    assert caught.value.reason == reason
