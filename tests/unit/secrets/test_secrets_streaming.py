"""A secret that comes in pieces is not shown, and nothing else is held back for long."""

from __future__ import annotations

from base64 import b64encode

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.every import every
from tests.examples import examples

from holdfast.secrets.redactor import Redactor

KEY = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
PLAIN = ["abcdefgh", "efghijkl", "abcdefghij", "aaaaaaaa"]


def knowing(*values: str) -> Redactor:
    redactor = Redactor()
    for number, value in enumerate(values):
        redactor.register(f"K{number}", value)
    return redactor


def shown(redactor: Redactor, pieces: list[str]) -> str:
    stream = redactor.stream()
    return "".join([*map(stream.feed, pieces), stream.end()])


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@every("place", range(len(KEY) + 1))
def test_a_secret_that_is_cut_anywhere_is_not_shown(place: int) -> None:
    assert shown(knowing(KEY), [f"a {KEY[:place]}", f"{KEY[place:]} b"]) == "a [secret K0] b"


def test_a_secret_that_comes_letter_by_letter_is_not_shown() -> None:
    assert shown(knowing(KEY), list(f"a {KEY} b")) == "a [secret K0] b"


def test_a_secret_in_base64_that_is_cut_is_not_shown() -> None:
    coded = b64encode(KEY.encode()).decode()
    assert shown(knowing(KEY), [f"<{coded[:9]}", f"{coded[9:]}>"]) == "<[secret K0]>"


@settings(max_examples=examples(150))
@given(
    parts=st.lists(st.sampled_from([*PLAIN, "a", "abc", "efg", "x", "ij", "kl", " "]), max_size=8),
    places=st.lists(st.integers(0, 80), max_size=6),
)
def test_whatever_the_pieces_the_same_is_shown_as_of_the_whole(parts: list[str], places: list[int]) -> None:
    redactor, text = knowing(*PLAIN), "".join(parts)
    pieces = shown(redactor, cut(text, places))
    assert _unnamed(pieces) == _unnamed(redactor.text(text))


def _unnamed(text: str) -> str:
    """Of secrets that overlap, the stream names the first that it sees."""
    for number in range(len(PLAIN)):
        text = text.replace(f"[secret K{number}]", "[secret]")
    return text


def test_a_piece_that_no_secret_can_begin_in_is_shown_at_once() -> None:
    assert knowing(KEY).stream().feed("What would you like? ") == "What would you like? "


def test_a_piece_that_may_be_a_beginning_is_held_back() -> None:
    assert knowing(KEY).stream().feed("it is sk_l") == "it is "


def test_what_was_held_back_is_shown_when_it_was_no_secret() -> None:
    stream = knowing(KEY).stream()
    stream.feed("it is sk_l")
    assert stream.feed("ater") == "sk_later"


def test_the_end_shows_what_was_held_back() -> None:
    stream = knowing(KEY).stream()
    stream.feed("it is sk_l")
    assert stream.end() == "sk_l"


def test_no_more_is_held_back_than_the_longest_form() -> None:
    stream = knowing("aaaaaaaa").stream()
    fed = "".join(stream.feed("a" * 7) for _ in range(300))
    assert fed == "[secret K0]"
    assert len(stream.end()) < 8 * 8


def test_nothing_is_held_back_while_no_secret_is_known() -> None:
    assert Redactor().stream().feed("sk_l") == "sk_l"


def test_a_secret_that_becomes_known_in_the_midst_is_hidden_from_then_on() -> None:
    redactor = Redactor()
    stream = redactor.stream()
    stream.feed("first ")
    redactor.register("KEY", KEY)
    assert stream.feed(f"{KEY}.") == "[secret KEY]."
