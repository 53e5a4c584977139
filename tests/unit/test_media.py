"""What bytes are, and whether that is what somebody says they are."""

from __future__ import annotations

import io
import zipfile

import pytest
from tests.every import every

from holdfast.errors import MediaTypeMismatch
from holdfast.media import media_type_of, sniff_media_type


def _zip(*names: str, first: bytes | None = None) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        if first is not None:
            archive.writestr(zipfile.ZipInfo("mimetype"), first)
        for name in names:
            archive.writestr(name, "x")
    return made.getvalue()


OFFICE = "application/vnd.openxmlformats-officedocument."
KINDS = {
    "image/png": b"\x89PNG\r\n\x1a\n....",
    "image/jpeg": b"\xff\xd8\xff\xe0....",
    "image/gif": b"GIF89a....",
    "image/webp": b"RIFF\x10\x00\x00\x00WEBPVP8 ",
    "image/bmp": b"BM\x0a\x00\x00\x00....",
    "image/heic": b"\x00\x00\x00\x18ftypheic....",
    "image/avif": b"\x00\x00\x00\x18ftypavif....",
    "application/pdf": b"%PDF-1.7\n",
    "audio/wav": b"RIFF\x10\x00\x00\x00WAVEfmt ",
    "audio/mpeg": b"\xff\xfb\x90\x64....",
    "audio/aac": b"\xff\xf1\x50\x80....",
    "audio/ogg": b"OggS\x00\x02....",
    "audio/flac": b"fLaC....",
    "audio/mp4": b"\x00\x00\x00\x18ftypM4A ....",
    "video/mp4": b"\x00\x00\x00\x18ftypisom....",
    "video/quicktime": b"\x00\x00\x00\x18ftypqt  ....",
    "video/webm": b"\x1aE\xdf\xa3....",
    "application/zip": _zip("a.txt"),
    f"{OFFICE}wordprocessingml.document": _zip("[Content_Types].xml", "word/document.xml"),
    f"{OFFICE}spreadsheetml.sheet": _zip("[Content_Types].xml", "xl/workbook.xml"),
    f"{OFFICE}presentationml.presentation": _zip("[Content_Types].xml", "ppt/slides.xml"),
    "application/epub+zip": _zip("a.xhtml", first=b"application/epub+zip"),
    "application/vnd.oasis.opendocument.text": _zip("a.xml", first=b"application/vnd.oasis.opendocument.text"),
    "text/plain": "Grüße, 7 €\n".encode(),
}


@every("kind", KINDS)
def test_bytes_are_known_by_how_they_begin(kind: str) -> None:
    assert sniff_media_type(KINDS[kind]) == kind


@every("kind", KINDS)
def test_a_claim_that_is_true_is_taken(kind: str) -> None:
    assert media_type_of(KINDS[kind], kind) == kind


@every("kind", [kind for kind in KINDS if kind != "image/png"])
def test_a_claim_that_is_not_true_is_refused(kind: str) -> None:
    with pytest.raises(MediaTypeMismatch):
        media_type_of(KINDS[kind], "image/png")
    with pytest.raises(MediaTypeMismatch):
        media_type_of(KINDS["image/png"], kind)


@pytest.mark.parametrize(
    "data",
    [b"BM is short for bone marrow", b"ID3 is a kind of tag", b"FORM follows function", b"RIFF RAFF", b"%PD"],
    ids=["bm", "id3", "form", "riff", "pd"],
)
def test_a_text_that_begins_like_a_file_is_a_text(data: bytes) -> None:
    assert sniff_media_type(data) == "text/plain"


@pytest.mark.parametrize("data", [b"\x00\x01\x02", b"\xff\xfe\x00\x00", b"caf\xe9", b"a\x00b"], ids=str)
def test_what_is_neither_known_nor_text_is_not_named(data: bytes) -> None:
    assert sniff_media_type(data) is None
    assert media_type_of(data, None) == "application/octet-stream"
    with pytest.raises(MediaTypeMismatch, match="do not begin"):
        media_type_of(data, "text/plain")


@pytest.mark.parametrize(
    ("claimed", "kind"),
    [
        ("text/csv; charset=utf-8", "text/csv"),
        ("application/json", "application/json"),
        ("image/svg+xml", "image/svg+xml"),
        ("TEXT/Markdown", "text/markdown"),
    ],
)
def test_a_text_may_be_any_kind_of_text(claimed: str, kind: str) -> None:
    assert media_type_of(b"a,b\n", claimed) == kind


@pytest.mark.parametrize(("claimed", "kind"), [("image/jpg", "image/jpeg"), ("audio/x-wav", "audio/wav")])
def test_another_name_for_the_same_is_the_usual_one(claimed: str, kind: str) -> None:
    assert media_type_of(KINDS[kind], claimed) == kind


@pytest.mark.parametrize(
    ("kind", "claimed"),
    [
        ("audio/ogg", "video/ogg"),
        ("video/webm", "audio/webm"),
        ("video/mp4", "audio/mp4"),
        ("video/quicktime", "video/mp4"),
    ],
)
def test_a_container_may_hold_one_or_the_other(kind: str, claimed: str) -> None:
    assert media_type_of(KINDS[kind], claimed) == claimed


def test_a_name_counts_only_where_it_can_be_true() -> None:
    assert media_type_of(b"a,b\n", None, "text/csv") == "text/csv"
    assert media_type_of(KINDS["image/png"], None, "application/pdf") == "image/png"


def test_a_claim_that_says_nothing_is_replaced_by_what_is_seen() -> None:
    assert media_type_of(KINDS["image/png"], "application/octet-stream") == "image/png"


def test_a_kind_that_nobody_knows_is_taken_at_its_word() -> None:
    assert media_type_of(b"\x00\x01", "model/gltf-binary") == "model/gltf-binary"
