"""Secrets whose letters are not there as they are: broken into lines, escaped one by one, or wide."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.every import every

from holdfast.secrets.redactor import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN: Final = "tok_live.9fK2-Zq/77+x"
QUOTED: Final = """it's "q" 42"""
WIDE: Final = "kl\u00fcchen-\u043a\u043b\u044e\u0447"
LONG: Final = "".join(f"{number:02d}-part/" for number in range(40))
VALUES: Final = {"plain": PLAIN, "quoted": QUOTED, "wide": WIDE, "long": LONG}


def mime(value: str, before: int = 0) -> str:
    return base64.encodebytes(b"u" * before + value.encode()).decode()


def percent(value: str) -> str:
    return "".join(f"%{byte:02X}" for byte in value.encode())


def utf16_escapes(value: str) -> str:
    data = value.encode("utf-16-be")
    return "".join(f"\\u{data[at]:02x}{data[at + 1]:02X}" for at in range(0, len(data), 2))


def wrapped(text: str, width: int, end: str) -> str:
    return end.join(text[at : at + width] for at in range(0, len(text), width))


FORMS: Final[dict[str, Callable[[str], str]]] = {
    "as it is": lambda value: value,
    "MIME base64": lambda value: mime(value, 50),
    "base64 in lines of 64": lambda value: wrapped(base64.b64encode(b"x" * 61 + value.encode()).decode(), 64, "\r\n"),
    "base64 in folded lines": lambda value: wrapped(base64.b64encode(b"x" * 61 + value.encode()).decode(), 64, "\n  "),
    "base64 in lines, in JSON": lambda value: json.dumps({"body": mime(value, 70)}),
    "base64 of UTF-16": lambda value: base64.b64encode(value.encode("utf-16-le")).decode(),
    "base64 of UTF-16, later": lambda value: base64.b64encode(("run " + value).encode("utf-16-le")).decode(),
    "base64 of UTF-16 with a mark": lambda value: base64.b64encode(b"\xfe\xff" + value.encode("utf-16-be")).decode(),
    "doubled single quotes": lambda value: "'" + value.replace("'", "''") + "'",
    "doubled double quotes": lambda value: '"' + value.replace('"', '""') + '"',
    "repr of bytes": lambda value: repr(value.encode()),
    "repr of bytes, in JSON": lambda value: json.dumps(repr(value.encode())),
    "ascii": ascii,
    "all percent-encoded": percent,
    "all percent-encoded, small": lambda value: percent(value).lower(),
    "percent-encoded twice": lambda value: percent(percent(value)),
    "decimal entities": lambda value: "".join(f"&#{ord(each)};" for each in value),
    "hex entities": lambda value: "".join(f"&#x{ord(each):x};" for each in value),
    "long hex entities": lambda value: "".join(f"&#X000{ord(each):X};" for each in value),
    "entities, in JSON": lambda value: json.dumps("".join(f"&#{ord(each)};" for each in value)),
    "some entities": lambda value: "".join(f"&#{ord(each)};" if at % 3 else each for at, each in enumerate(value)),
    "JSON escapes": utf16_escapes,
    "JSON escapes, in JSON": lambda value: json.dumps(utf16_escapes(value)),
    "braced escapes": lambda value: "".join(f"\\u{{{ord(each):04x}}}" for each in value),
    "byte escapes": lambda value: "".join(f"\\x{byte:02x}" for byte in value.encode()),
    "hex with colons": lambda value: value.encode().hex(":"),
    "capital hex with colons": lambda value: value.encode().hex(":").upper(),
    "hex with dashes": lambda value: value.encode().hex("-").upper(),
    "hex with spaces": lambda value: value.encode().hex(" "),
    "hex in lines": lambda value: wrapped(value.encode().hex(), 30, "\n"),
    "hex of UTF-16": lambda value: value.encode("utf-16-le").hex(),
    "UTF-16 read as text": lambda value: value.encode("utf-16-le").decode("latin-1"),
}


def redactor(*values: str) -> Redactor:
    made = Redactor()
    for number, value in enumerate(values):
        made.register(f"KEY{number}", value)
    return made


def traces(text: str, value: str, form: str) -> list[str]:
    """Pieces of the form that are still there."""
    length = 12 if len(form) < 200 else 40
    return [form[at : at + length] for at in range(len(form) - length + 1) if form[at : at + length] in text]


CASES = [
    pytest.param(value, form(value), id=f"{name}-{called}")
    for name, value in VALUES.items()
    for called, form in FORMS.items()
    if called != "UTF-16 read as text" or value.isascii()
]


def holds(text: str, value: str) -> bool:
    """Whether somebody who knows all the forms would find the value."""
    return any(form(value) in text for called, form in FORMS.items() if "base64" not in called and "MIME" not in called)


@every(("value", "form"), CASES)
def test_a_text_does_not_tell_it(value: str, form: str) -> None:
    told = redactor(value).text(f"before {form} after")
    assert "[secret KEY0]" in told
    assert form not in told
    assert not holds(told, value)
    assert told.startswith("before ")
    assert told.endswith(" after")


@every(("value", "form"), CASES)
def test_json_does_not_tell_it(value: str, form: str) -> None:
    body = json.dumps({"said": ["fine", f"before {form} after"]}).encode()
    told = redactor(value).bytes(body)
    (fine, said) = json.loads(told)["said"]
    assert fine == "fine"
    assert "[secret KEY0]" in said
    assert form not in said


def _below(length: int) -> list[Any]:
    return [case for case in CASES if len(str(case.values[1])) < length]


@every(("value", "form"), _below(400))
def test_a_stream_that_is_cut_in_many_places_does_not_tell_it(value: str, form: str) -> None:
    _check_cuts(value, form, every=7)


@pytest.mark.torture
@every(("value", "form"), _below(400))
def test_a_stream_that_is_cut_anywhere_does_not_tell_it(value: str, form: str) -> None:
    _check_cuts(value, form, every=1)


def _check_cuts(value: str, form: str, *, every: int) -> None:
    hiding = redactor(value)
    text = f"before {form} after"
    whole = hiding.text(text)
    for at in range(1, len(text), every):
        stream = hiding.stream()
        shown = [stream.feed(text[:at]), stream.feed(text[at:]), stream.end()]
        assert "".join(shown) == whole, at
    stream = hiding.stream()
    pieces = (text[at : at + every] for at in range(0, len(text), every))
    assert "".join([*map(stream.feed, pieces), stream.end()]) == whole


@every("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@every("value", VALUES.values(), ids=VALUES)
def test_bytes_of_utf_16_do_not_tell_it(value: str, encoding: str) -> None:
    body = f"before {value} after".encode(encoding)
    told = redactor(value).bytes(body)
    assert len(told) == len(body)
    text = told.decode(encoding)
    assert text.startswith("before ")
    assert text.endswith(" after")
    assert value not in text


def test_bytes_that_are_no_text_do_not_tell_a_form_that_is_broken_into_lines() -> None:
    form = mime(PLAIN, 50).encode()
    told = redactor(PLAIN).bytes(b"\xff\xfe\xfd" + form)
    assert len(told) == len(form) + 3
    assert b"".join(form.split())[-20:-4] not in b"".join(told.split())


PROSE: Final = [
    "100% of 5 & more: a\\b, C:\\new\\temp, %zz, &#; \\u12 and 12:34:56 - 7\n\nEnd %",
    "let me in: it is 5-6-7",
    '{"a": "b\\nc", "d": "\\u00e9"}',
]


@pytest.mark.parametrize("text", PROSE)
def test_a_text_without_it_is_the_same_object(text: str) -> None:
    assert redactor("letmein-9", "abcdef", "567567").text(text) is text


@pytest.mark.parametrize("text", PROSE)
def test_a_stream_without_it_is_shown_whole(text: str) -> None:
    stream = redactor("letmein-9", "abcdef", "567567").stream()
    assert "".join([*(stream.feed(letter) for letter in text), stream.end()]) == text


def test_words_that_only_make_it_together_are_not_hidden() -> None:
    assert redactor("letmein").text("let me in") == "let me in"


@every("value", ["50%25off!", "a\\u0041b\\", "&#65;x;;y", "%41%42%43", "\\x41\\n\\\\"])
@every("called", FORMS)
def test_a_value_that_looks_like_an_escape_is_hidden(value: str, called: str) -> None:
    told = redactor(value).text(f"before {FORMS[called](value)} after")
    assert "[secret KEY0]" in told


def test_what_is_hidden_stays_as_it_is_when_it_is_looked_through_again() -> None:
    hiding = redactor(*VALUES.values())
    for form in FORMS.values():
        told = hiding.text(" ".join(form(value) for value in VALUES.values()))
        assert hiding.text(told) == told
