"""What the mirror of memory decides: every case of what was mirrored, the file and the entry."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from tests.every import every

from holdfast.memory.decisions import (
    AUTHOR,
    DropEntry,
    EntryState,
    EraseFile,
    FileDigests,
    KeepBase,
    KeepBoth,
    MirrorBase,
    MirrorDecision,
    MirroredCopy,
    TakeFile,
    WriteFile,
    correct_base,
    decide,
    digest_of,
)
from holdfast.store import MemoryChange

ONE = MirrorBase(MirroredCopy(1, "one", "one"))
TWO = MirrorBase(MirroredCopy(2, "two", "two"))
CRASHED = MirrorBase(MirroredCopy(1, "one", "one"), MirroredCopy(2, "two", "two"))
FIRST = MirrorBase(None, MirroredCopy(1, "one", "one"))

TABLE: list[tuple[str, MirrorBase | None, str | None, EntryState, MirrorDecision]] = [
    # ---- nothing is known ----
    ("nothing anywhere", None, None, EntryState(), KeepBase(None)),
    ("a new entry", None, None, EntryState(1, "one"), WriteFile(None)),
    ("a new file", None, "one", EntryState(), TakeFile(0)),
    ("a new file of an entry that was removed once", None, "one", EntryState(7), TakeFile(0)),
    ("both, with the same text", None, "one", EntryState(1, "one"), KeepBase(ONE)),
    ("both, with different texts", None, "mine", EntryState(1, "one"), KeepBoth(1, "mine")),
    # ---- version 1 was mirrored ----
    ("nothing changed", ONE, "one", EntryState(1, "one"), KeepBase(ONE)),
    ("the entry changed", ONE, "one", EntryState(2, "two"), WriteFile("one")),
    (
        "the entry was written anew with its text",
        ONE,
        "one",
        EntryState(2, "one"),
        KeepBase(MirrorBase(MirroredCopy(2, "one", "one"))),
    ),
    ("the entry was removed", ONE, "one", EntryState(2), EraseFile("one")),
    ("the entry has expired", ONE, "one", EntryState(1), EraseFile("one")),
    ("the file was edited", ONE, "mine", EntryState(1, "one"), TakeFile(1)),
    ("the file was edited and the entry removed", ONE, "mine", EntryState(2), TakeFile(0)),
    ("both were changed in the same way", ONE, "two", EntryState(2, "two"), KeepBase(TWO)),
    ("both were changed", ONE, "mine", EntryState(2, "two"), KeepBoth(2, "mine")),
    ("the file was removed", ONE, None, EntryState(1, "one"), DropEntry(1)),
    ("the file was removed and the entry changed", ONE, None, EntryState(2, "two"), WriteFile(None)),
    ("both were removed", ONE, None, EntryState(2), KeepBase(None)),
    # ---- version 2 was about to be written when the process was killed ----
    ("it was not written", CRASHED, "one", EntryState(2, "two"), WriteFile("one")),
    ("it was written", CRASHED, "two", EntryState(2, "two"), KeepBase(TWO)),
    ("it was written, then the entry changed", CRASHED, "two", EntryState(3, "three"), WriteFile("two")),
    ("it was not written, then the entry changed", CRASHED, "one", EntryState(3, "three"), WriteFile("one")),
    ("the entry was removed, it was written", CRASHED, "two", EntryState(3), EraseFile("two")),
    ("the entry was removed, it was not written", CRASHED, "one", EntryState(3), EraseFile("one")),
    ("the file was edited, before or after", CRASHED, "mine", EntryState(2, "two"), KeepBoth(2, "mine")),
    ("the file was edited and the entry removed", CRASHED, "mine", EntryState(3), TakeFile(0)),
    ("the file is gone: which version was seen is not known", CRASHED, None, EntryState(2, "two"), WriteFile(None)),
    ("both are gone", CRASHED, None, EntryState(3), KeepBase(None)),
    ("a first file was not written", FIRST, None, EntryState(1, "one"), WriteFile(None)),
    ("a first file was written", FIRST, "one", EntryState(1, "one"), KeepBase(ONE)),
    # ---- the store was put back to an earlier state ----
    ("an entry as it was once", TWO, "two", EntryState(1, "one"), KeepBoth(1, "two")),
    ("an entry with another past", TWO, "two", EntryState(2, "other"), KeepBoth(2, "two")),
    ("an entry that is not there yet", TWO, "two", EntryState(1), TakeFile(0)),
    ("no file, and an entry as it was once", TWO, None, EntryState(1, "one"), WriteFile(None)),
]


@every(("base", "file", "entry", "decision"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table_holds(
    base: MirrorBase | None, file: str | None, entry: EntryState, decision: MirrorDecision
) -> None:
    assert decide(base, None if file is None else FileDigests(file, file), entry) == decision


def test_a_mark_at_the_beginning_of_a_file_is_no_change_of_its_text() -> None:
    base = MirrorBase(MirroredCopy(1, "one", "marked one"))
    assert decide(base, FileDigests("marked one", "one"), EntryState(1, "one")) == KeepBase(base)


COPIES = st.builds(MirroredCopy, st.integers(1, 3), *(st.shared(st.sampled_from("abc"), key="text"),) * 2)
BASES = st.none() | st.builds(MirrorBase, st.none() | COPIES, st.none() | COPIES)
SEEN = st.none() | st.sampled_from("abcd").map(lambda text: FileDigests(text, text))
ENTRIES = st.builds(EntryState, st.integers(1, 3), st.sampled_from("abce")) | st.builds(EntryState, st.integers(0, 3))


@given(BASES, SEEN, ENTRIES)
def test_a_text_that_was_never_mirrored_is_neither_overwritten_nor_removed(
    base: MirrorBase | None, file: FileDigests | None, entry: EntryState
) -> None:
    decision = decide(base, file, entry)
    known = {copy.file for copy in (base.mirrored, base.writing) if copy is not None} if base else set[str]()
    if file is not None and file.file not in known:
        assert isinstance(decision, TakeFile | KeepBoth | KeepBase)
        if isinstance(decision, KeepBase):
            assert entry.value is not None
            assert entry.value == file.value


@given(BASES, SEEN, ENTRIES)
def test_an_entry_is_changed_only_from_the_version_that_was_mirrored(
    base: MirrorBase | None, file: FileDigests | None, entry: EntryState
) -> None:
    decision = decide(base, file, entry)
    if isinstance(decision, TakeFile | DropEntry) and entry.value is not None:
        assert base is not None
        assert base.mirrored is not None
        assert decision.expected == entry.version == base.mirrored.version


@example(
    MirrorBase(MirroredCopy(1, "b", "b"), MirroredCopy(2, "b", "b")), None, EntryState(1, "b")
)  # the store was put back meanwhile
@given(BASES, SEEN, ENTRIES)
def test_an_entry_without_a_file_is_removed_only_if_its_file_was_surely_there(
    base: MirrorBase | None, file: FileDigests | None, entry: EntryState
) -> None:
    if isinstance(decide(base, file, entry), DropEntry):
        assert file is None
        assert base is not None
        assert base.writing is None


# ---- what the history adds -------------------------------------------------------------------------------------------


def _put(version: int, value: str, by: str | None = None) -> MemoryChange:
    return MemoryChange("s", "k", version, "put", value, at=version, by=by)


def _seen(text: str) -> FileDigests:
    digest = digest_of(text.encode())
    return FileDigests(digest, digest)


def _copy(version: int, text: str) -> MirroredCopy:
    return MirroredCopy(version, _seen(text).value, _seen(text).file)


def test_a_text_that_was_taken_in_before_a_crash_is_an_old_copy() -> None:
    changes = [_put(3, "agent's"), _put(2, "mine", AUTHOR), _put(1, "one")]
    assert correct_base(MirrorBase(_copy(1, "one")), _seen("mine"), changes) == MirrorBase(_copy(2, "mine"))


def test_a_text_that_somebody_else_wrote_is_an_edit_although_the_history_has_it() -> None:
    changes = [_put(3, "three"), _put(2, "mine"), _put(1, "one")]
    assert correct_base(MirrorBase(_copy(1, "one")), _seen("mine"), changes) == MirrorBase(_copy(1, "one"))


def test_a_person_who_brings_an_older_text_back_has_edited_the_file() -> None:
    changes = [_put(3, "three"), _put(2, "two"), _put(1, "one", AUTHOR)]
    assert correct_base(MirrorBase(_copy(2, "two")), _seen("one"), changes) == MirrorBase(_copy(2, "two"))


def test_where_nothing_is_known_a_file_that_the_history_has_is_an_old_copy() -> None:
    changes = [_put(2, "two"), _put(1, "one")]
    assert correct_base(None, _seen("one"), changes) == MirrorBase(_copy(1, "one"))


def test_a_copy_that_the_history_contradicts_is_not_trusted() -> None:
    changes = [_put(3, "three"), _put(2, "another two"), _put(1, "one")]
    assert correct_base(MirrorBase(_copy(2, "two")), _seen("two"), changes) == MirrorBase()
