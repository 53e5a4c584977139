"""`holdfast attachments`: put, list, get and collect files from the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell

PICTURE = b"\x89PNG\r\n\x1a\n and the rest"


@pytest.fixture(autouse=True)
def a_store_and_a_file(shell: Shell) -> None:
    shell("run", "agents.py:echo", "hello", "--as", "s")
    (shell.folder / "cat.png").write_bytes(PICTURE)


def test_what_was_put_is_listed_and_can_be_got(shell: Shell) -> None:
    digest = shell("attachments", "put", "cat.png", "--session", "s").stdout.strip()
    (line,) = shell.json("attachments", "list", "s")
    assert line == {"digest": digest, "media_type": "image/png", "size": len(PICTURE), "name": "cat.png"}
    assert digest in shell("attachments", "list", "s").stdout
    assert shell("attachments", "get", digest, "-o", "copy.png", "-S", "s").returncode == 0
    assert (shell.folder / "copy.png").read_bytes() == PICTURE


def test_a_file_is_got_on_the_standard_output(shell: Shell) -> None:
    (shell.folder / "note.txt").write_text("hello\n")
    digest = shell.json("attachments", "put", "note.txt")["digest"]
    assert shell("attachments", "get", digest).stdout == "hello\n"


def test_a_session_without_attachments_says_so(shell: Shell) -> None:
    assert shell("attachments", "list", "s").stdout == "no attachments of s\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["put", "missing.png"],
        ["put", "cat.png", "--type", "application/pdf"],
        ["get", "0" * 64, "-o", "x"],
        ["collect", "--older-than", "nan"],
        ["collect", "--older-than", "0"],
    ],
    ids=["missing", "type", "unknown", "nan", "grace"],
)
def test_what_can_not_be_is_refused_in_one_line(shell: Shell, arguments: list[str]) -> None:
    done = shell("attachments", *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_an_attachment_of_another_session_is_not_given(shell: Shell) -> None:
    digest = shell("attachments", "put", "cat.png", "--session", "other").stdout.strip()
    assert shell("attachments", "get", digest, "-o", "x", "--session", "s").returncode == 2


def test_collecting_counts_and_refuses_without_roots(shell: Shell) -> None:
    assert shell("attachments", "collect").stdout == "deleted 0 (0 bytes)\n"
    shell("attachments", "put", "cat.png")
    refused = shell("attachments", "collect")
    assert (refused.returncode, "nothing was collected" in refused.stderr) == (1, True)
    told = shell.json("attachments", "collect", "--dry-run", "--without-roots")
    assert told == {"blobs": 0, "bytes": 0, "dry_run": True}
