"""Watching folders: which files fit, and when they have settled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from holdfast.triggers.definition import WatchSource, watch
from holdfast.triggers.folders import FoundFile, SettlingFiles, content_digest, file_key, file_payload, scan_folder

if TYPE_CHECKING:
    from pathlib import Path


def _watch(folder: Path, pattern: str, **options: Any) -> WatchSource:
    return watch(f"{folder}/{pattern}", **options)


def _made(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def _paths(source: WatchSource) -> list[str]:
    return [found.path for found in scan_folder(source).files]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.pdf", ["a.pdf"]),
        ("*", ["a.pdf", "b.txt"]),
        ("sub/*.pdf", ["c.pdf"]),
        ("*/*.pdf", ["sub/c.pdf"]),
        ("**/*.pdf", ["a.pdf", "sub/c.pdf", "sub/deep/d.pdf"]),
        ("**/deep/*.pdf", ["sub/deep/d.pdf"]),
        ("?.[pt]*", ["a.pdf", "b.txt"]),
        ("a.pdf", ["a.pdf"]),
        ("*.doc", []),
    ],
)
def test_files_fit_the_pattern(tmp_path: Path, pattern: str, found: list[str]) -> None:
    _made(tmp_path, "a.pdf", "b.txt", ".hidden.pdf", "sub/c.pdf", "sub/deep/d.pdf", ".git/e.pdf")
    assert _paths(_watch(tmp_path, pattern)) == found


def test_links_are_not_followed(tmp_path: Path) -> None:
    _made(tmp_path, "outside/x.pdf", "inbox/y.pdf")
    (tmp_path / "inbox" / "z.pdf").symlink_to(tmp_path / "outside" / "x.pdf")
    (tmp_path / "inbox" / "way").symlink_to(tmp_path / "outside")
    assert _paths(_watch(tmp_path / "inbox", "**/*.pdf")) == ["y.pdf"]


def test_a_listing_is_bounded_and_says_so(tmp_path: Path) -> None:
    _made(tmp_path, *(f"{n}.pdf" for n in range(5)))
    listing = scan_folder(_watch(tmp_path, "*.pdf", most=3))
    assert len(listing.files) == 3
    assert "more than 3" in listing.problem


def test_a_folder_that_is_not_there_is_a_problem_and_no_error(tmp_path: Path) -> None:
    listing = scan_folder(_watch(tmp_path / "gone", "*.pdf"))
    assert listing.files == ()
    assert "No such file" in listing.problem


def test_a_file_counts_when_it_has_looked_the_same_for_long_enough() -> None:
    settling = SettlingFiles(1_000)
    assert settling.look([FoundFile("a", 1, 1)], 0) == []
    assert settling.look([FoundFile("a", 2, 2)], 900) == []
    assert settling.look([FoundFile("a", 2, 2)], 1_800) == []
    assert settling.look([FoundFile("a", 2, 2)], 1_900) == [FoundFile("a", 2, 2)]


def test_a_file_that_was_told_is_told_again_only_when_it_has_changed() -> None:
    settling = SettlingFiles(0)
    settling.told(FoundFile("a", 1, 1))
    assert settling.look([FoundFile("a", 1, 1)], 0) == []
    assert settling.look([FoundFile("a", 1, 2)], 1) == [FoundFile("a", 1, 2)]


def test_a_file_that_could_not_be_taken_in_is_offered_again() -> None:
    settling = SettlingFiles(0)
    assert settling.look([FoundFile("a", 1, 1)], 0) == settling.look([FoundFile("a", 1, 1)], 1)


def test_a_file_that_went_away_and_came_back_is_offered_again() -> None:
    settling = SettlingFiles(0)
    settling.told(FoundFile("a", 1, 1))
    settling.look([FoundFile("a", 1, 1)], 0)
    settling.look([], 1)
    assert settling.look([FoundFile("a", 1, 1)], 2) == [FoundFile("a", 1, 1)]


def test_the_same_file_has_the_same_key_and_a_changed_one_another(tmp_path: Path) -> None:
    source = _watch(tmp_path, "*")
    key = file_key(source, FoundFile("a", 1, 1))
    assert key == file_key(source, FoundFile("a", 1, 1))
    assert len({key, file_key(source, FoundFile("a", 1, 2)), file_key(source, FoundFile("b", 1, 1))}) == 3


def test_by_content_a_file_that_was_only_touched_is_the_same(tmp_path: Path) -> None:
    _made(tmp_path, "a.pdf")
    source = replace(_watch(tmp_path, "*"), identity="content")
    before = scan_folder(source).files[0]
    os.utime(tmp_path / "a.pdf", (1, 1))
    after = scan_folder(source).files[0]
    assert before != after
    keys = {file_key(source, found, content_digest(source, found)) for found in (before, after)}
    assert len(keys) == 1


def test_a_name_that_is_no_text_can_still_be_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.pdf")).write_bytes(b"x")
    source = _watch(tmp_path, "*.pdf")
    (found,) = scan_folder(source).files
    assert file_payload(source, found)["name"] == "\\xff.pdf"
    assert file_key(source, found)
