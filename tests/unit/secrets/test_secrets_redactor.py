"""Secrets are found in all the forms that a tool may give them, and nothing else is touched."""

from __future__ import annotations

import html
import json
import time
from base64 import b64encode, urlsafe_b64encode
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.every import every
from tests.examples import examples

from holdfast.errors.caller import SecretExposed, SecretNameInvalid, SecretTooCommon, SecretTooLong, SecretTooShort
from holdfast.secrets.forms import schema_words
from holdfast.secrets.redactor import MAX_LENGTH, MAX_VALUES, Redactor

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
ODD = 'p@ss/wörd+"q\\u$(.*)[z]&=?'
PEM = (
    "-----BEGIN PRIVATE KEY-----\n"
    + "\n".join("MIIEvQ+/" * 8 for _ in range(3))
    + "\nshort=\n-----END PRIVATE KEY-----\n"
)

values = st.text(st.characters(codec="utf-8"), min_size=8, max_size=40).filter(lambda text: len(text.strip()) >= 8)


def knowing(**secrets: str) -> Redactor:
    redactor = Redactor()
    for name, value in secrets.items():
        redactor.register(name, value)
    return redactor


WRITTEN: dict[str, Callable[[str], str]] = {
    "as it is": lambda value: value,
    "as JSON": lambda value: json.dumps(value, ensure_ascii=False),
    "as JSON in ASCII": json.dumps,
    "as JSON in JSON": lambda value: json.dumps(json.dumps({"k": value})),
    "as JSON with escaped slashes": lambda value: json.dumps(value).replace("/", "\\/"),
    "in a path": quote,
    "in a query": lambda value: quote(value, safe=""),
    "in a form": quote_plus,
    "in a query with small hex digits": lambda value: _small(quote(value, safe="")),
    "as JavaScript writes an address": lambda value: quote(value, safe="!'()*"),
    "in a repr": repr,
    "in HTML": html.escape,
    "in base64": lambda value: b64encode(value.encode()).decode(),
    "in base64 without padding": lambda value: b64encode(value.encode()).decode().rstrip("="),
    "in base64 for addresses": lambda value: urlsafe_b64encode(value.encode()).decode(),
    "in base64 in a query": lambda value: quote(b64encode(value.encode()).decode(), safe=""),
    "in hex": lambda value: value.encode().hex(),
    "in hex with capitals": lambda value: value.encode().hex().upper(),
}


def _small(address: str) -> str:
    parts = address.split("%")
    return parts[0] + "".join(f"%{part[:2].lower()}{part[2:]}" for part in parts[1:])


@every("form", WRITTEN)
@every("value", [KEY, ODD, PEM.strip(), "päßwörd-日本語-😀"], ids=["key", "odd", "pem", "foreign"])
def test_a_secret_is_hidden_in_every_form(form: str, value: str) -> None:
    written = WRITTEN[form](value)
    clean = knowing(KEY=value).text(f"before {written} after")
    assert written not in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert "[secret KEY]" in clean


@settings(max_examples=examples(60))
@given(form=st.sampled_from(sorted(WRITTEN)), value=values)
def test_any_value_is_hidden_in_every_form(form: str, value: str) -> None:
    value = value.strip()
    clean = knowing(KEY=value).text(f"<{WRITTEN[form](value)}>")
    assert "[secret KEY]" in clean


@given(before=st.binary(max_size=7), after=st.binary(max_size=7))
def test_base64_of_something_around_a_secret_hides_all_digits_that_are_of_the_secret_alone(
    before: bytes, after: bytes
) -> None:
    clean = knowing(KEY=KEY).text(b64encode(before + KEY.encode() + after).decode())
    around, _, rest = clean.partition("[secret KEY]")
    assert len(around) <= len(before) * 8 // 6 + 1
    assert len(rest.rstrip("=")) <= len(after) * 8 // 6 + 2


def test_a_text_without_secrets_is_the_same_object() -> None:
    text = "nothing to see here"
    assert knowing(KEY=KEY).text(text) is text


def test_bytes_without_secrets_are_the_same_object() -> None:
    body = b'{"nothing": "to see"}'
    assert knowing(KEY=KEY).bytes(body) is body


def test_a_redactor_that_knows_nothing_gives_back_the_same_object() -> None:
    value = {"a": [KEY]}
    assert Redactor().value(value) is value


def test_a_kibibyte_is_looked_through_in_microseconds() -> None:
    redactor = knowing(**{f"K{n}": f"sk_live_{n}{'aBcDeFgHiJkLmNoPqRsTuVwXyZ'[n:]}{n}" for n in range(5)})
    text = ("the order 8817 was sent to a.b@example.org on Monday; " * 20)[:1024]
    best = min(_seconds(lambda: redactor.text(text)) for _ in range(200))
    assert best < 50e-6  # measured: 4.5; ten times that is a slow machine, a hundred times is another algorithm


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# ---- several secrets ----


def test_of_two_secrets_the_longer_one_that_has_the_other_in_it_is_named() -> None:
    redactor = knowing(INNER="abcdefgh", OUTER="xx-abcdefgh-yy")
    assert redactor.text("a xx-abcdefgh-yy b abcdefgh c") == "a [secret OUTER] b [secret INNER] c"


def test_of_secrets_that_overlap_nothing_is_left() -> None:
    redactor = knowing(ONE="abcdefgh", TWO="efghijklmn")
    assert redactor.text("<abcdefghijklmn>") == "<[secret TWO]>"


def test_secrets_side_by_side_are_two() -> None:
    redactor = knowing(ONE="abcdefgh", TWO="12345678")
    assert redactor.text("abcdefgh12345678") == "[secret ONE][secret TWO]"


def test_the_same_value_under_two_names_has_the_first_one() -> None:
    assert knowing(ONE=KEY, TWO=KEY).text(KEY) == "[secret ONE]"


def test_a_value_that_repeats_itself_is_hidden_as_a_whole() -> None:
    assert knowing(KEY="abababab").text("xabababababx") == "x[secret KEY]x"


def test_hiding_twice_is_hiding_once() -> None:
    redactor = knowing(A="[secret", B="secret B]")
    once = redactor.text("the [secret thing and a secret B] thing")
    assert redactor.text(once) == once


@given(
    texts=st.lists(st.sampled_from([KEY, ODD, "x", "[secret KEY]", "[secret ", '"', "KEY"]), max_size=8).map("".join)
)
def test_what_was_hidden_stays_as_it_is(texts: str) -> None:
    redactor = knowing(KEY=KEY, ODD=ODD)
    once = redactor.text(texts)
    assert redactor.text(once) == once


def test_an_old_value_stays_hidden_after_a_new_one() -> None:
    redactor = knowing(KEY=KEY)
    redactor.register("KEY", "another-value")
    assert redactor.text(f"{KEY} another-value") == "[secret KEY] [secret KEY]"


def test_of_a_secret_that_changes_all_the_time_the_newest_values_are_known(caplog: pytest.LogCaptureFixture) -> None:
    redactor = Redactor()
    for n in range(MAX_VALUES + 5):
        redactor.register("TOKEN", f"token-{n:06}")
    assert redactor.text(f"token-{MAX_VALUES + 4:06} token-000005") == "[secret TOKEN] [secret TOKEN]"
    assert len([line for line in caplog.records if "oldest" in line.message]) == 1


# ---- long values ----


def test_each_line_of_a_key_in_many_lines_counts() -> None:
    line = PEM.splitlines()[2]
    assert knowing(PEM=PEM).text(f"one line: {line}.") == "one line: [secret PEM]."


def test_the_frame_of_a_key_is_no_secret() -> None:
    frame = "-----BEGIN PRIVATE KEY-----"
    assert knowing(PEM=PEM).text(frame) == frame


def test_a_text_in_a_value_that_is_json_counts() -> None:
    account = json.dumps({"type": "service_account", "private_key": PEM, "token_uri": "https://oauth2.example/token"})
    redactor = knowing(ACCOUNT=account)
    assert redactor.text(PEM.splitlines()[1]) == "[secret ACCOUNT]"
    assert redactor.text("https://oauth2.example/token") == "https://oauth2.example/token"


def test_white_space_around_a_value_does_not_matter() -> None:
    assert knowing(KEY=f"{KEY}\n").text(f"<{KEY}>") == "<[secret KEY]>"


# ---- JSON and other bytes ----


def test_json_stays_json() -> None:
    body = json.dumps({"a": ODD, ODD: [1, 2.50, {"b": f"x{ODD}y"}]}, ensure_ascii=False).encode()
    assert json.loads(knowing(ODD=ODD).bytes(body)) == {
        "a": "[secret ODD]",
        "[secret ODD]": [1, 2.5, {"b": "x[secret ODD]y"}],
    }


def test_what_is_around_a_secret_in_json_stays_byte_for_byte() -> None:
    body = f'{{ "n": 1.50, "u": "\\u00e9\\/", "k":"{KEY}" }}'.encode()
    assert knowing(KEY=KEY).bytes(body) == b'{ "n": 1.50, "u": "\\u00e9\\/", "k":"[secret KEY]" }'


@given(
    value=st.sampled_from(
        [KEY, ODD, '","x":"', '":{"b":1', "[1,2,3]", "12345678", 'tab\tquote"', "true,false", "\\\\\\\\\\\\"]
    ),
    texts=st.lists(st.text(max_size=5), min_size=2, max_size=2),
    number=st.sampled_from([12345678, -12345678, 1712345678901, 0.5]),
)
def test_whatever_a_secret_is_json_stays_json(value: str, texts: list[str], number: float) -> None:
    said = f"{texts[0]}{value}{texts[1]}"
    document = {"said": [said, number, {"t": True, said: None}], "x": "x", "b": 1, "l": [1, 2, 3]}
    clean = json.loads(knowing(KEY=value).bytes(msgspec.json.encode(document)))
    assert value not in clean["said"][0]
    assert (clean["x"], clean["b"], clean["l"]) == ("x", 1, [1, 2, 3])


def test_a_number_that_is_a_secret_becomes_a_text() -> None:
    assert knowing(PIN="12345678").bytes(b'{"pin":12345678}') == b'{"pin":"[secret PIN]"}'


def test_a_number_that_only_has_the_digits_of_a_secret_stays() -> None:
    assert knowing(PIN="12345678").bytes(b'{"at":1712345678901}') == b'{"at":1712345678901}'


def test_numbers_of_records_stay_numbers() -> None:
    assert knowing(PIN="12345678").bytes(b'{"ms":12345678}', numbers=False) == b'{"ms":12345678}'


def test_bytes_that_are_text_stay_text() -> None:
    assert knowing(ODD=ODD).bytes(f"é {ODD}".encode()) == "é [secret ODD]".encode()


def test_in_bytes_of_another_kind_a_secret_becomes_as_many_stars() -> None:
    body = b"\x89PNG\xff" + KEY.encode() + b"\x00\xfe"
    assert knowing(KEY=KEY).bytes(body) == b"\x89PNG\xff" + b"*" * len(KEY) + b"\x00\xfe"


def test_a_value_is_looked_through_with_its_names() -> None:
    clean = knowing(KEY=KEY).value({KEY: [1, (KEY, b"x" + KEY.encode())], "n": None})
    assert clean == {"[secret KEY]": [1, ("[secret KEY]", b"x[secret KEY]")], "n": None}


def test_a_part_of_a_value_without_secrets_is_the_same_object() -> None:
    value = {"a": {"b": [1]}, "k": KEY}
    assert knowing(KEY=KEY).value(value)["a"] is value["a"]


# ---- what may be a secret ----


def test_a_short_value_is_refused() -> None:
    with pytest.raises(SecretTooShort) as caught:
        Redactor().register("PIN", "12345")
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize("value", ["", "   ", None, 7, b"bytes-value"])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(SecretTooShort):
        Redactor().register("KEY", value, short=True)  # type: ignore[arg-type]


def test_a_short_value_that_may_be_short_is_hidden_where_it_stands_alone() -> None:
    redactor = Redactor()
    redactor.register("PIN", "1234", short=True)
    assert (
        redactor.text("1234, x1234, 12345, (1234) and a_1234")
        == "[secret PIN], x1234, 12345, ([secret PIN]) and a_1234"
    )


def test_a_value_that_is_too_long_is_refused() -> None:
    with pytest.raises(SecretTooLong):
        Redactor().register("KEY", "x" * (MAX_LENGTH + 1))


def test_a_value_that_records_are_made_of_is_refused() -> None:
    class Told(msgspec.Struct, tag="announced"):
        importance: int

    redactor = Redactor(schema_words(Told))
    for word in ("announced", "announce", "importance"):
        with pytest.raises(SecretTooCommon):
            redactor.register("KEY", word)


@every("name", ["", "1st", "a b", 'a"b', "a]b", "ä", "x" * 65, 7])
def test_a_name_that_can_not_stand_in_a_text_is_refused_and_not_shown(name: object) -> None:
    with pytest.raises(SecretNameInvalid) as caught:
        Redactor().register(name, KEY)  # type: ignore[arg-type]
    assert len(str(name)) < 3 or repr(name) not in str(caught.value)


def test_a_name_that_holds_a_secret_is_refused() -> None:
    with pytest.raises(SecretExposed) as caught:
        knowing(KEY=KEY).check("input key", f"order-{KEY}")
    assert (caught.value.what, caught.value.name) == ("input key", "KEY")
    assert KEY not in str(caught.value)


def test_json_that_must_stay_as_it_is_is_refused_with_a_secret() -> None:
    with pytest.raises(SecretExposed):
        knowing(KEY=KEY).check_json("arguments", msgspec.json.encode({"deep": [KEY]}))


def test_a_name_without_secrets_passes() -> None:
    knowing(KEY=KEY).check("input key", "order-7")


def test_a_redactor_shows_names_and_no_values() -> None:
    assert repr(knowing(KEY=KEY)) == "Redactor(KEY)"
