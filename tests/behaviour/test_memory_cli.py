"""`holdfast memory`: what agents remember, from the shell."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.memory import Memory
from holdfast.memory.mirror import Mirror
from holdfast.store import MemoryEntry, open_store
from holdfast.store.paths import memory_folder

if TYPE_CHECKING:
    from tests.behaviour.shell import Shell


@pytest.fixture
def remembering(shell: Shell) -> Shell:
    """A shell beside a store."""
    put(shell, "notes", "a", "one\n")
    return shell


def put(shell: Shell, scope: str, key: str, value: str) -> MemoryEntry:
    async def work() -> MemoryEntry:
        async with open_store(shell.folder / ".holdfast" / "holdfast.db") as store:
            return await Memory(store, scope).put(key, value)

    return asyncio.run(work())


def values(shell: Shell, scope: str = "notes") -> dict[str, str]:
    async def work() -> dict[str, str]:
        async with open_store(shell.folder / ".holdfast" / "holdfast.db") as store:
            return {entry.key: entry.value async for entry in Memory(store, scope).entries()}

    return asyncio.run(work())


def editor(shell: Shell, *lines: str) -> str:
    """The command of an editor that does this with its file, `$1`."""
    script = shell.folder / "editor.sh"
    script.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    return f"sh {script}"


# ---- ls and get ------------------------------------------------------------------------------------------------------


def test_ls_lists_the_scopes(remembering: Shell) -> None:
    assert remembering.json("memory", "ls") == [{"scope": "notes", "entries": 1, "bytes": 5}]
    assert remembering("memory", "ls").stdout.split() == ["SCOPE", "ENTRIES", "BYTES", "notes", "1", "5"]


def test_ls_lists_the_entries_of_a_scope(remembering: Shell) -> None:
    head, line = remembering("memory", "ls", "notes").stdout.splitlines()
    assert head.split() == ["KEY", "VERSION", "CHANGED", "EXPIRES", "TEXT"]
    assert (line.split()[:2], line.split()[-1]) == (["a", "1"], "one")


def test_ls_finds_entries_by_their_words_in_all_scopes(remembering: Shell) -> None:
    put(remembering, "people", "ada", "likes numbers")
    found = remembering.json("memory", "ls", "--search", "numbers")
    assert [(entry["scope"], entry["key"]) for entry in found] == [("people", "ada")]


def test_search_finds_entries_in_all_scopes_or_in_one(remembering: Shell) -> None:
    put(remembering, "people", "ada", "likes numbers")
    put(remembering, "people", "bob", "numbers, numbers")
    put(remembering, "notes", "n", "numbers")
    every = remembering.json("memory", "search", "number")
    assert {(entry["scope"], entry["key"]) for entry in every} == {("people", "ada"), ("people", "bob"), ("notes", "n")}
    of_one = remembering.json("memory", "search", "NUMBERS likes", "--scope", "people")
    assert [entry["key"] for entry in of_one] == ["ada"]
    assert len(remembering.json("memory", "search", "numbers", "--limit", "1")) == 1
    assert "no entries" in remembering("memory", "search", "nothing-like-it").stdout


def test_ls_finds_entries_by_the_beginning_of_their_key(remembering: Shell) -> None:
    put(remembering, "notes", "bee", "x")
    assert [entry["key"] for entry in remembering.json("memory", "ls", "notes", "--prefix", "b")] == ["bee"]


def damage(shell: Shell, key: str) -> None:
    """Make one entry of the scope `notes` something that nobody wrote."""
    with sqlite3.connect(shell.folder / ".holdfast" / "holdfast.db") as connection:
        connection.execute("UPDATE memories SET crc = crc + 1 WHERE scope = 'notes' AND key = ?", (key,))
    connection.close()


@pytest.mark.parametrize("options", [["notes"], ["notes", "--search", "one"], ["--search", "one"]])
def test_ls_shows_what_is_sound_and_names_what_is_damaged(remembering: Shell, options: list[str]) -> None:
    put(remembering, "notes", "b", "one more")
    damage(remembering, "a")
    told = remembering("memory", "ls", *options, "--json")
    assert [entry["key"] for entry in json.loads(told.stdout)] == ["b"]
    assert "left out: the memory 'a' of 'notes' does not match its checksum" in told.stderr
    assert (told.returncode, told.stderr.count("left out")) == (1, 1)


def test_an_export_does_not_leave_out_what_is_damaged_without_a_word(remembering: Shell) -> None:
    put(remembering, "notes", "b", "two")
    damage(remembering, "a")
    told = remembering("memory", "export", "notes")
    assert (told.returncode != 0, "the memory 'a' of 'notes'" in told.stderr) == (True, True)


def test_get_prints_the_text_to_the_byte(remembering: Shell) -> None:
    put(remembering, "notes", "b", "no line break at the end")
    assert remembering("memory", "get", "notes", "b").stdout == "no line break at the end"


def test_get_of_what_is_not_there_is_exit_code_1(remembering: Shell) -> None:
    done = remembering("memory", "get", "notes", "nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "'notes' has no entry 'nothing'" in done.stderr


def test_get_shows_the_history_also_of_what_was_removed(remembering: Shell) -> None:
    remembering("memory", "rm", "notes", "a")
    changes = remembering.json("memory", "get", "notes", "a", "--history")
    assert [(change["change"], change["value"]) for change in changes] == [("deleted", None), ("put", "one\n")]


# ---- set and rm ------------------------------------------------------------------------------------------------------


def test_set_writes_an_argument_or_standard_input(remembering: Shell) -> None:
    assert remembering("memory", "set", "notes", "b", "two").stdout == "notes/b is at version 1\n"
    remembering("memory", "set", "notes", "c", stdin="three\n")
    assert values(remembering) == {"a": "one\n", "b": "two", "c": "three\n"}


def test_set_writes_json_with_a_summary_and_metadata(remembering: Shell) -> None:
    more = ("--parse", "--summary", "the sizes", "--metadata", '{"from":"crm"}')
    remembering("memory", "set", "notes", "b", '{"shoe":38}', *more)
    assert remembering("memory", "get", "notes", "b").stdout == '{\n  "shoe": 38\n}'
    entry = remembering.json("memory", "get", "notes", "b")
    assert (entry["value"], entry["summary"], entry["metadata"]) == ({"shoe": 38}, "the sizes", {"from": "crm"})
    (line,) = [line for line in remembering("memory", "ls", "notes").stdout.splitlines() if line.startswith("b ")]
    assert line.endswith("the sizes")
    assert "the sizes" in remembering("memory", "get", "notes", "b", "--history").stdout
    assert "notes/b" in remembering("memory", "search", "sizes").stdout


@pytest.mark.parametrize(
    "given", [("{", "--parse"), ("null", "--parse"), ("x", "--metadata", "[1]"), ("x", "--summary", " ")]
)
def test_set_of_what_can_not_be_stored_is_one_line_and_exit_code_2(remembering: Shell, given: tuple[str, ...]) -> None:
    done = remembering("memory", "set", "notes", "b", *given)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert values(remembering) == {"a": "one\n"}


def test_json_summary_and_metadata_are_exported_and_imported(remembering: Shell) -> None:
    more = ("--parse", "--summary", "the sizes", "--metadata", '{"from":"crm"}')
    remembering("memory", "set", "notes", "b", "[1]", *more)
    before = remembering.json("memory", "get", "notes", "b")
    export = remembering("memory", "export").stdout
    again = remembering("memory", "import", "-", stdin=export)
    assert again.stdout == "0 written, 2 there already\n"
    remembering("memory", "set", "notes", "b", "[1]", "--parse")
    other = remembering("memory", "import", "-", stdin=export)
    assert (other.returncode, "notes/b has another value" in other.stderr) == (1, True)
    remembering("memory", "import", "-", "--overwrite", stdin=export)
    after = remembering.json("memory", "get", "notes", "b")
    assert [after[name] == before[name] for name in ("value", "summary", "metadata")] == [True] * 3


def test_edit_shows_json_and_summary_in_a_front_matter(remembering: Shell) -> None:
    remembering("memory", "set", "notes", "b", '{"shoe":38}', "--parse", "--summary", "sizes")
    script = editor(remembering, """sed -i 's/38/39/; s/summary: .*/summary: new sizes/' "$1" """)
    assert remembering("memory", "edit", "notes", "b", EDITOR=script, VISUAL="").returncode == 0
    entry = remembering.json("memory", "get", "notes", "b")
    assert (entry["value"], entry["summary"]) == ({"shoe": 39}, "new sizes")
    bad = remembering("memory", "edit", "notes", "b", EDITOR=editor(remembering, "sed -i 's/39//' \"$1\""), VISUAL="")
    assert (bad.returncode, "no JSON" in bad.stderr, "your text is in" in bad.stderr) == (2, True, True)
    assert remembering.json("memory", "get", "notes", "b") == entry


def test_set_that_expects_another_version_is_refused(remembering: Shell) -> None:
    done = remembering("memory", "set", "notes", "a", "two", "--expect", "0")
    assert done.returncode == 2
    assert "has changed" in done.stderr
    assert values(remembering) == {"a": "one\n"}


def test_set_may_say_when_an_entry_is_gone(remembering: Shell) -> None:
    entry = json.loads(remembering("memory", "set", "notes", "b", "x", "--ttl", "60", "--json").stdout)
    assert 0 <= entry["updated"] + 60_000 - entry["expires"] < 5_000


@pytest.mark.parametrize("name", ["..", "a/b", "x" * 201, ""])
def test_a_name_that_can_not_be_one_is_one_line_and_exit_code_2(remembering: Shell, name: str) -> None:
    done = remembering("memory", "set", "notes", name, "x")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_rm_removes_entries_and_says_which_were_not_there(remembering: Shell) -> None:
    done = remembering("memory", "rm", "notes", "a", "b")
    assert (done.returncode, values(remembering)) == (1, {})
    assert "has no entry 'b'" in done.stderr


def test_without_a_store_nothing_is_made(shell: Shell) -> None:
    done = shell("memory", "set", "notes", "a", "x")
    assert done.returncode == 2
    assert "there is no store" in done.stderr
    assert not (shell.folder / ".holdfast" / "holdfast.db").exists()


# ---- export and import -----------------------------------------------------------------------------------------------


def test_what_was_exported_can_be_imported_elsewhere(remembering: Shell) -> None:
    put(remembering, "people", "ada", "likes\nnumbers")
    remembering("memory", "export", "--out", "all.jsonl")
    remembering("memory", "rm", "notes", "a")
    remembering("memory", "rm", "people", "ada")
    done = remembering("memory", "import", "all.jsonl")
    assert done.stdout == "2 written, 0 there already\n"
    assert (values(remembering), values(remembering, "people")) == ({"a": "one\n"}, {"ada": "likes\nnumbers"})


def test_an_export_of_one_scope_goes_to_standard_output(remembering: Shell) -> None:
    put(remembering, "people", "ada", "x")
    (line,) = remembering("memory", "export", "people").stdout.splitlines()
    assert (json.loads(line)["scope"], json.loads(line)["key"]) == ("people", "ada")


def test_an_import_does_not_overwrite_unless_it_is_told_to(remembering: Shell) -> None:
    export = remembering("memory", "export").stdout
    put(remembering, "notes", "a", "two")
    done = remembering("memory", "import", "-", stdin=export)
    assert (done.returncode, values(remembering)) == (1, {"a": "two"})
    assert "notes/a has another value" in done.stderr
    done = remembering("memory", "import", "-", "--overwrite", stdin=export)
    assert (done.returncode, values(remembering)) == (0, {"a": "one\n"})


def test_the_same_import_again_changes_nothing(remembering: Shell) -> None:
    export = remembering("memory", "export").stdout
    assert remembering("memory", "import", "-", stdin=export).stdout == "0 written, 1 there already\n"


BAD = ["{", "[]", '{"scope":"notes"}', '{"scope":"notes","key":"..","value":"x"}', '{"scope":1,"key":"a","value":"x"}']


@pytest.mark.parametrize("line", [*BAD, "[" * 100_000])
def test_an_import_with_a_bad_line_writes_nothing_and_names_the_line(remembering: Shell, line: str) -> None:
    good = '{"scope":"notes","key":"new","value":"x"}'
    done = remembering("memory", "import", "-", stdin=f"{good}\n{line}\n")
    assert (done.returncode, values(remembering)) == (2, {"a": "one\n"})
    assert "line 2 is no entry of an export" in done.stderr


def test_an_import_of_what_is_no_text_is_a_named_error(remembering: Shell) -> None:
    (remembering.folder / "binary").write_bytes(b"\xff\xfe")
    done = remembering("memory", "import", "binary")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


# ---- edit ------------------------------------------------------------------------------------------------------------


def test_edit_writes_what_the_editor_leaves(remembering: Shell) -> None:
    done = remembering("memory", "edit", "notes", "a", EDITOR=editor(remembering, 'echo two >> "$1"'), VISUAL="")
    assert (done.returncode, done.stdout) == (0, "notes/a is at version 2\n")
    assert values(remembering) == {"a": "one\ntwo\n"}


def test_edit_of_a_new_key_makes_an_entry(remembering: Shell) -> None:
    remembering("memory", "edit", "notes", "b", EDITOR=editor(remembering, 'echo new > "$1"'), VISUAL="")
    assert values(remembering)["b"] == "new\n"


def test_edit_that_changes_nothing_writes_nothing(remembering: Shell) -> None:
    done = remembering("memory", "edit", "notes", "a", EDITOR="true", VISUAL="")
    assert (done.returncode, done.stdout) == (0, "nothing was changed\n")
    assert len(remembering.json("memory", "get", "notes", "a", "--history")) == 1


def test_edit_keeps_what_a_person_wrote_when_the_entry_has_changed_meanwhile(remembering: Shell) -> None:
    script = editor(
        remembering, 'echo mine > "$1"', f"{sys.executable} -m holdfast memory set notes a theirs > /dev/null"
    )
    done = remembering("memory", "edit", "notes", "a", EDITOR=script, VISUAL="")
    assert done.returncode == 1
    assert "your text is kept as notes/a.conflict-2" in done.stdout
    assert values(remembering) == {"a": "theirs", "a.conflict-2": "mine\n"}


def test_edit_of_an_entry_that_was_removed_meanwhile_writes_it_again(remembering: Shell) -> None:
    script = editor(remembering, 'echo mine > "$1"', f"{sys.executable} -m holdfast memory rm notes a")
    done = remembering("memory", "edit", "notes", "a", EDITOR=script, VISUAL="")
    assert (done.returncode, values(remembering)) == (0, {"a": "mine\n"})


@pytest.mark.parametrize(
    "lines",
    [
        ['echo mine > "$1"', "exit 3"],
        ['head -c 300000 /dev/zero | tr "\\0" "x" > "$1"'],
        ["printf '\\377mine' > \"$1\""],
    ],
    ids=["the editor failed", "too large", "no text"],
)
def test_what_can_not_be_stored_stays_in_a_file_that_is_named(remembering: Shell, lines: list[str]) -> None:
    done = remembering("memory", "edit", "notes", "a", EDITOR=editor(remembering, *lines), VISUAL="")
    kept = Path(done.stderr.partition("your text is in ")[2].split()[0])
    assert done.returncode == 2
    assert kept.stat().st_size >= 4
    assert values(remembering) == {"a": "one\n"}


def test_an_editor_that_is_not_there_is_a_named_error(remembering: Shell) -> None:
    done = remembering("memory", "edit", "notes", "a", EDITOR="/no/such/editor", VISUAL="")
    assert done.returncode == 2
    assert "there is no editor '/no/such/editor'" in done.stderr


# ---- beside the files ------------------------------------------------------------------------------------------------


def mirrored(shell: Shell) -> Path:
    async def work() -> None:
        async with open_store(shell.folder / ".holdfast" / "holdfast.db") as store:
            await Mirror(store, memory_folder(shell.folder / ".holdfast" / "holdfast.db"), settle=0).sync()

    asyncio.run(work())
    return memory_folder(shell.folder / ".holdfast" / "holdfast.db") / "notes"


def test_an_edit_of_a_file_is_seen_by_the_next_command(remembering: Shell) -> None:
    (mirrored(remembering) / "a.md").write_text("mine", encoding="utf-8")
    assert remembering("memory", "get", "notes", "a").stdout == "mine"


def test_what_a_command_writes_is_in_the_files(remembering: Shell) -> None:
    folder = mirrored(remembering)
    remembering("memory", "set", "notes", "b", "two")
    assert (folder / "b.md").read_text(encoding="utf-8") == "two"


def test_a_file_that_is_left_alone_is_named_and_keeps_no_command_from_working(remembering: Shell) -> None:
    (mirrored(remembering) / "bad.md").write_bytes(b"\xff")
    done = remembering("memory", "get", "notes", "a")
    assert (done.returncode, done.stdout) == (0, "one\n")
    assert "left alone: notes/bad.md" in done.stderr


def test_where_memory_is_not_mirrored_no_folder_is_made(remembering: Shell) -> None:
    remembering("memory", "set", "notes", "b", "two")
    assert not memory_folder(remembering.folder / ".holdfast" / "holdfast.db").exists()
