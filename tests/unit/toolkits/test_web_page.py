"""HTML becomes text that reads well, whatever the page does."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.toolkits.web.page import render_html

BASE = "https://example.com/docs/page"


def text(source: str) -> str:
    return render_html(source, BASE).text


@every(
    ("source", "shown"),
    [
        ("<h1>Big <em>title</em></h1><p>Words", "# Big title\n\nWords"),
        ("<h3>\n Two\n lines</h3>", "### Two lines"),
        ("<p>One<p>Two", "One\n\nTwo"),
        ("<div>One</div><div>Two</div>", "One\n\nTwo"),
        ("a   b\n\tc&nbsp;d", "a b c d"),
        ("One<br>Two", "One\nTwo"),
        ("One<hr>Two", "One\n\n---\n\nTwo"),
        ("<ul><li>One<li>Two</ul>", "- One\n- Two"),
        ("<ul><li>One<ul><li>Deep</ul><li>Two</ul>End", "- One\n  - Deep\n- Two\n\nEnd"),
        ("<ul><li><p>One</p><p>More</p></ul>", "- One\n  More"),
        ("<ol start=3><li>c<li>d</ol>", "3. c\n4. d"),
        ("<blockquote><p>One<p>Two</blockquote>End", "> One\n>\n> Two\n\nEnd"),
        ("<dl><dt>Term<dd>Meaning</dl>", "Term\n: Meaning"),
        ("<pre>a\n  b &lt; c</pre>", "```\na\n  b < c\n```"),
        ("<pre>```</pre>", "````\n```\n````"),
        ("Call <code>f(x)</code> now", "Call `f(x)` now"),
        ("<h2></h2><p>Words", "Words"),
        ("<img src=x alt='A cat'>", "[image: A cat]"),
        ("<img src=x>", ""),
        ("<noscript>Without scripts</noscript>", "Without scripts"),
        ("1 < 2 & 3 > 2", "1 < 2 & 3 > 2"),
        ("&#0000000065;&#x42;&#99999999;", "AB\ufffd"),
        ("<p>x<![CDATA[y]]>z", "xz"),
        ("", ""),
    ],
)
def test_each_kind_of_element_has_its_form(source: str, shown: str) -> None:
    assert text(source) == shown


@every(
    ("source", "shown"),
    [
        ("<a href='/x'>Go</a>", "[Go](https://example.com/x)"),
        ("<a href=y>Go</a> on", "[Go](https://example.com/docs/y) on"),
        ("<a href='?a=1&amp;b=2&copy=3'>Go</a>", "[Go](https://example.com/docs/page?a=1&b=2&copy=3)"),
        ("<base href='https://other.example/d/'><a href=y>Go</a>", "[Go](https://other.example/d/y)"),
        ("<a href='mailto:a@example.com'>Mail</a>", "[Mail](mailto:a@example.com)"),
        ("<a href='#part'>Part</a>", "Part"),
        ("<a href='javascript:alert(1)'>Go</a>", "Go"),
        ("<a href=' java\nscript:alert(1)'>Go</a>", "Go"),
        ("<a href='data:text/html,x'>Go</a>", "Go"),
        ("<a href='http://[broken'>Go</a>", "Go"),
        ("<a href=/x></a>", ""),
        ("<a href=/x><div>Block</div><div>More</div></a>", "[Block](https://example.com/x)\n\nMore"),
        ("<a href=/x>One<a href=/y>Two</a>", "[One](https://example.com/x)[Two](https://example.com/y)"),
    ],
)
def test_a_link_tells_where_it_leads_if_that_is_a_page_or_a_person(source: str, shown: str) -> None:
    assert text(source) == shown


def test_a_table_has_its_rows_and_a_caption() -> None:
    source = (
        "<table><caption>Prices</caption><tr><th>What<th>How much<tr><td>Tea<td>3|4<tr><td>Milk<br>cold<td>1</table>"
    )
    assert text(source) == "Prices\n\n| What | How much |\n| --- | --- |\n| Tea | 3\\|4 |\n| Milk cold | 1 |"


def test_a_table_that_is_there_for_looks_is_shown_as_blocks() -> None:
    source = "<table><tr><td>Left<table><tr><td>a<td>b<tr><td>c<td>d</table><td>Right</table>"
    assert text(source) == "Left\n\n| a | b |\n| --- | --- |\n| c | d |\n\nRight"


def test_a_table_with_a_heading_in_a_cell_is_shown_as_blocks() -> None:
    assert text("<table><tr><td><h2>News</h2><p>Words<td>Side</table>") == "## News\n\nWords\n\nSide"


def test_the_title_is_one_line() -> None:
    assert render_html("<title> A &amp;\n b </title><svg><title>no</title></svg>", BASE).title == "A & b"


@every(
    "source",
    [
        "<script>secret</script>",
        "<SCRIPT>if (a</b) secret</SCRIPT>",
        "<style>secret</style>",
        "<template><p>secret</template>",
        "<template></p><p>secret</template>",
        "<svg><text>secret</text></svg>",
        "<!-- secret -->",
        "<!-- > secret -->",
        "<div hidden><p>secret</p></div>",
        "<p style='color:red; DISPLAY : none'>secret</p>",
        "<span style='visibility:hidden'>secret</span>",
        "<iframe>secret</iframe>",
        "<select><option>secret</select>",
        "<script>secret",
        "<!-- secret",
        "<a title='secret",
    ],
)
def test_what_a_reader_does_not_see_is_left_out(source: str) -> None:
    assert "secret" not in text(f"<p>before{source}")


def test_a_body_that_waits_for_a_script_to_show_it_is_read() -> None:
    assert text("<body style='visibility:hidden'><p>Words") == "Words"


@every("char", ["\u202e", "\u200b", "\u2066", "\U000e0041", "\U000e0100", "\x1b", "\x00", "\u00ad"])
def test_characters_that_nobody_sees_are_left_out(char: str) -> None:
    assert text(f"a{char}b") == "ab"


def test_a_number_with_thousands_of_digits_is_no_character_and_no_error() -> None:
    assert text(f"a&#{'9' * 10_000};b") == "a\ufffdb"


def test_the_text_is_cut_at_its_limit_and_says_so() -> None:
    page = render_html("<p>words" * 1000, BASE, most=500)
    assert page.cut
    assert len(page.text) <= 500


SLOW_PIECES = [
    *("<", "<!--", "<a ", "<a b='", "<div>", "<table><td>", "<a href=x>y", "<a href=x><p>y", "<blockquote>x"),
    *(
        "<ul><li>x",
        "<script>",
        "</p",
        "</p>",
        "&",
        "&#9",
        "<tr>",
        "<p hidden>",
        "<![CDATA[",
        "<?",
        "=",
        "<pre>",
        "`",
    ),
    *("<table><tr><td><p>x</p>", "<svg>", "<template></p>", "<b><i></b>", "<dl><dd>x", "<h1>x", "<title>"),
]


@every("piece", SLOW_PIECES)
def test_a_page_made_to_take_long_does_not(piece: str) -> None:
    _check_linear(piece, 4_000, least=0.002)


@pytest.mark.torture
@every("piece", SLOW_PIECES)
def test_a_large_page_made_to_take_long_does_not(piece: str) -> None:
    _check_linear(piece, 40_000, least=0.01)


def _check_linear(piece: str, size: int, least: float) -> None:
    def seconds(size: int) -> float:
        source = "<p><table><td>" + piece * (size // len(piece))
        begun = time.thread_time()
        render_html(source, f"https://example.com/{'d/' * 500}")
        return time.thread_time() - begun

    # Eight times the page: about eight times as long where it is linear, sixty times where it is not.
    assert seconds(8 * size) < 24 * max(seconds(size), least)


@given(st.text(alphabet="<>/!-='\"& abptdlirhue#x;\n`", max_size=200))
def test_no_page_is_an_error(source: str) -> None:
    page = render_html(source, BASE)
    assert isinstance(page.text, str)


TAGS = (
    *("<table>", "<tr>", "<td>", "</table>", "</td>", "<ul>", "<li>", "</ul>", "<a href=x>", "</a>", "<pre>", "</pre>"),
    *("<h1>", "</h1>", "<p>", "</p>", "<blockquote>", "</blockquote>", "<div>", "</div>", "<dd>", "<br>", "<hr>"),
)


@given(st.lists(st.sampled_from(TAGS), max_size=30))
def test_words_that_are_seen_are_never_lost(tags: list[str]) -> None:
    shown = text("".join(f"{tag}w{n}w" for n, tag in enumerate(tags)))
    assert all(f"w{n}w" in shown for n in range(len(tags)))


@given(st.lists(st.sampled_from(TAGS), max_size=20), st.sampled_from(["<template>", "<svg>"]))
def test_no_tags_within_bring_hidden_words_to_light(tags: list[str], wall: str) -> None:
    inside = "".join(f"{tag}secret" for tag in tags)
    assert "secret" not in text(f"<p><div><ul><li>seen{wall}{inside}</{wall[1:]}")
