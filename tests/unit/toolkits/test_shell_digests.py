"""Digests of files that name programs, while a command replaces them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.toolkits.shell.guard import file_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def replace_at_open(monkeypatch: pytest.MonkeyPatch, replace: Callable[[], object]) -> None:
    real = os.open

    def swapped(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        monkeypatch.undo()
        replace()
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)


@pytest.mark.parametrize("has_writer", [False, True])
def test_a_pipe_in_the_place_of_a_file_has_no_digest(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch, *, has_writer: bool
) -> None:
    file = tmp_path / "config"
    file.write_text("text")
    silent: list[int] = []

    def replace() -> None:
        file.unlink()
        os.mkfifo(file)
        if has_writer:
            silent.append(os.open(file, os.O_RDWR))

    replace_at_open(monkeypatch, replace)
    assert file_digest(folder, "config") is None
    assert len(silent) == has_writer
    for descriptor in silent:
        os.close(descriptor)


def test_a_folder_in_the_place_of_a_file_has_no_digest_and_is_closed(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text("text")
    before = os.listdir("/proc/self/fd")  # only names are wanted
    replace_at_open(monkeypatch, lambda: (file.unlink(), file.mkdir()))
    assert file_digest(folder, "config") is None
    assert os.listdir("/proc/self/fd") == before  # only names are wanted


def test_a_file_that_is_too_large_is_not_even_opened(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "config").open("wb") as file:
        file.truncate(1_000_000)
    assert file_digest(folder, "config") is not None
    with (tmp_path / "config").open("ab") as file:
        file.write(b"1")
    opened: list[bool] = []
    replace_at_open(monkeypatch, lambda: opened.append(True))
    assert file_digest(folder, "config") is None
    assert not opened
