"""Bodies within bounds, and what they are."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

from holdfast.toolkits.web.fetch import BodyBroken, choose_decoder
from holdfast.toolkits.web.page import ShowableContent, WebPage, classify_content, decode_body, render_page

PNG = b"\x89PNG\r\n\x1a\n...."


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data)[2:-4]


def read(encoding: str, data: bytes, *, piece: int = 7, room: int = 1 << 20) -> bytes:
    body = choose_decoder(encoding)
    assert body is not None
    found = b""
    for start in range(0, len(data), piece):
        found += body.feed(data[start : start + piece], room - len(found))
        if len(found) > room:
            return found
    body.end()
    return found


@given(st.binary(max_size=2000), st.integers(1, 300))
def test_a_body_comes_out_as_it_went_in_however_it_is_cut(data: bytes, piece: int) -> None:
    assert read("gzip", gzip.compress(data), piece=piece) == data
    assert read("deflate", zlib.compress(data), piece=piece) == data
    assert read("deflate", raw_deflate(data), piece=piece) == data
    assert read("", data, piece=piece) == data


def test_several_members_are_one_body() -> None:
    assert read("x-gzip", gzip.compress(b"one") + gzip.compress(b"two")) == b"onetwo"


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_padding_behind_the_body_is_ignored(piece: int) -> None:
    assert read("gzip", gzip.compress(b"one") + bytes(50), piece=piece) == b"one"


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1, (1 << 18) + 100, (1 << 18) + 257, 1 << 20])
def test_a_body_that_fills_its_steps_exactly_is_whole(size: int) -> None:
    assert read("gzip", gzip.compress(bytes(size)), piece=1 << 16, room=1 << 21) == bytes(size)
    assert read("deflate", raw_deflate(bytes(size)), piece=1 << 16, room=1 << 21) == bytes(size)


def test_a_bomb_gives_one_byte_more_than_there_is_room_for() -> None:
    assert len(read("gzip", gzip.compress(bytes(50_000_000)), piece=1 << 16, room=1000)) == 1001


def test_members_without_end_are_broken() -> None:
    with pytest.raises(BodyBroken, match="too many"):
        read("gzip", gzip.compress(b"") * 2000, piece=1 << 16)


@pytest.mark.parametrize("data", [b"not gzip", gzip.compress(b"words" * 100)[:-20]], ids=["none", "half"])
def test_what_is_no_gzip_or_only_half_of_one_is_broken(data: bytes) -> None:
    with pytest.raises(BodyBroken):
        read("gzip", data)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
def test_an_encoding_that_was_not_asked_for_is_not_read(encoding: str) -> None:
    assert choose_decoder(encoding) is None


@every(
    ("header", "body", "kind", "media_type"),
    [
        ("text/html; charset=utf-8", b"<p>", "page", "text/html"),
        ("application/xhtml+xml", b"<p>", "page", "application/xhtml+xml"),
        ("application/json", b"{}", "text", "application/json"),
        ("application/problem+json", b"{}", "text", "application/problem+json"),
        ("text/csv", b"a,b", "text", "text/csv"),
        ("image/svg+xml", b"<svg/>", "text", "image/svg+xml"),
        ("", b"<!DOCTYPE html><p>", "page", "text/html"),
        ("application/octet-stream", b"plain words", "text", "text/plain"),
        ("application/octet-stream", b"%PDF-1.7", "file", "application/pdf"),
        ("image/png", PNG, "file", "image/png"),
        ("text/plain", PNG, "file", "image/png"),
        ("text/plain; charset=utf-16le", "wide".encode("utf-16-le"), "text", "text/plain"),
    ],
)
def test_an_answer_is_known_by_its_header_and_its_first_bytes(
    header: str, body: bytes, kind: str, media_type: str
) -> None:
    found = classify_content(header, body)
    assert isinstance(found, ShowableContent)
    assert (found.kind, found.media_type) == (kind, media_type)


@every(
    ("header", "body", "said"),
    [
        ("application/zip", b"PK\x03\x04", "application/zip"),
        ("image/png", b"<script>", "not"),
        ("application/pdf", b"<html>", "not"),
        ("video/mp4", b"....ftyp", "video/mp4"),
        ("image/tiff", b"II*\x00", "image/tiff"),
        ("text/plain", b"MZ\x00\x01", "binary"),
        ("", b"\x7fELF\x00\x00", "binary"),
    ],
)
def test_other_binaries_are_refused_by_name(header: str, body: bytes, said: str) -> None:
    found = classify_content(header, body)
    assert isinstance(found, str)
    assert said in found


@every(
    ("data", "header", "shown"),
    [
        ("grün".encode(), "text/html", "grün"),
        ("grün".encode("cp1252"), "text/html; charset=ISO-8859-1", "grün"),
        ("grün".encode("cp1252"), "text/html", "grün"),
        ("﻿grün".encode(), "text/html; charset=latin1", "grün"),
        ("grün".encode("utf-16"), "text/html", "grün"),
        ("日本".encode("shift_jis"), "text/html; charset='Shift_JIS'", "日本"),
        (b"<meta charset=koi8-r>" + "да".encode("koi8-r"), "text/html", "<meta charset=koi8-r>да"),
        (b"a\xff" + "grün grün grün".encode() * 50, "text/html; charset=utf-8", "a\ufffd" + "grün grün grün" * 50),
        (b"+AGE-", "text/html; charset=utf-7", "+AGE-"),
        (b"xn--a", "text/html; charset=punycode", "xn--a"),
        (b"\\u0041", "text/html; charset=unicode_escape", "\\u0041"),
        (b"abc", "text/html; charset=no-such", "abc"),
    ],
)
def test_text_is_read_in_its_character_set_if_that_is_one_of_the_web(data: bytes, header: str, shown: str) -> None:
    assert decode_body(data, header, page=True, whole=True) == shown


def test_a_character_that_was_cut_in_two_is_left_out() -> None:
    assert decode_body("grü".encode()[:-1], "", page=False, whole=False) == "gr"


def parts(text: str, most: int) -> list[str]:
    page = WebPage("", text, cut=False)
    found: list[str] = []
    start = 0
    while True:
        told = render_page("https://example.com/", 0, "text/plain", page, start=start, most=most)
        head, _, part = told.partition("\n\n")
        found.append(part)
        if "go on with start=" not in head:
            return found
        start = int(head.rpartition("start=")[2])


def test_a_long_text_comes_in_parts_that_end_at_lines() -> None:
    lines = "".join(f"line {n}\n" for n in range(100))
    found = parts(lines, 100)
    assert len(found) > 5
    assert "\n".join(found) == lines.rstrip()


def test_a_text_without_lines_comes_in_parts_of_the_limit() -> None:
    assert parts("x" * 250, 100) == ["x" * 100, "x" * 100, "x" * 50]


def test_a_start_behind_the_end_says_so() -> None:
    page = WebPage("T", "words", cut=False)
    assert render_page("https://example.com/", 2, "text/plain", page, start=99, most=100) == (
        "URL: https://example.com/ (after 2 redirects)\nTitle: T\nType: text/plain\n"
        "Characters: 5; there is nothing from 5 on"
    )
