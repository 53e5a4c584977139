"""What the mirror of memory decides: every case of what was mirrored, the file and the entry."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from tests.every import every

from holdfast.memory.decisions import (
    AUTHOR,
    Absent,
    Base,
    Conflict,
    Copy,
    Decision,
    Drop,
    Entry,
    Erase,
    Keep,
    Present,
    Seen,
    Take,
    Write,
    decide,
    digest_of,
    informed,
)
from holdfast.store import MemoryChange

ONE = Base(Copy(1, "one", "one"))
TWO = Base(Copy(2, "two", "two"))
CRASHED = Base(Copy(1, "one", "one"), Copy(2, "two", "two"))
FIRST = Base(None, Copy(1, "one", "one"))

TABLE: list[tuple[str, Base | None, str | None, Entry, Decision]] = [
    # ---- nothing is known ----
    ("nothing anywhere", None, None, Absent(), Keep(None)),
    ("a new entry", None, None, Present(1, "one"), Write(None)),
    ("a new file", None, "one", Absent(), Take(0)),
    ("a new file of an entry that was removed once", None, "one", Absent(7), Take(0)),
    ("both, with the same text", None, "one", Present(1, "one"), Keep(ONE)),
    ("both, with different texts", None, "mine", Present(1, "one"), Conflict(1, "mine")),
    # ---- version 1 was mirrored ----
    ("nothing changed", ONE, "one", Present(1, "one"), Keep(ONE)),
    ("the entry changed", ONE, "one", Present(2, "two"), Write("one")),
    ("the entry was written anew with its text", ONE, "one", Present(2, "one"), Keep(Base(Copy(2, "one", "one")))),
    ("the entry was removed", ONE, "one", Absent(2), Erase("one")),
    ("the entry has expired", ONE, "one", Absent(1), Erase("one")),
    ("the file was edited", ONE, "mine", Present(1, "one"), Take(1)),
    ("the file was edited and the entry removed", ONE, "mine", Absent(2), Take(0)),
    ("both were changed in the same way", ONE, "two", Present(2, "two"), Keep(TWO)),
    ("both were changed", ONE, "mine", Present(2, "two"), Conflict(2, "mine")),
    ("the file was removed", ONE, None, Present(1, "one"), Drop(1)),
    ("the file was removed and the entry changed", ONE, None, Present(2, "two"), Write(None)),
    ("both were removed", ONE, None, Absent(2), Keep(None)),
    # ---- version 2 was about to be written when the process was killed ----
    ("it was not written", CRASHED, "one", Present(2, "two"), Write("one")),
    ("it was written", CRASHED, "two", Present(2, "two"), Keep(TWO)),
    ("it was written, then the entry changed", CRASHED, "two", Present(3, "three"), Write("two")),
    ("it was not written, then the entry changed", CRASHED, "one", Present(3, "three"), Write("one")),
    ("the entry was removed, it was written", CRASHED, "two", Absent(3), Erase("two")),
    ("the entry was removed, it was not written", CRASHED, "one", Absent(3), Erase("one")),
    ("the file was edited, before or after", CRASHED, "mine", Present(2, "two"), Conflict(2, "mine")),
    ("the file was edited and the entry removed", CRASHED, "mine", Absent(3), Take(0)),
    ("the file is gone: which version was seen is not known", CRASHED, None, Present(2, "two"), Write(None)),
    ("both are gone", CRASHED, None, Absent(3), Keep(None)),
    ("a first file was not written", FIRST, None, Present(1, "one"), Write(None)),
    ("a first file was written", FIRST, "one", Present(1, "one"), Keep(ONE)),
    # ---- the store was put back to an earlier state ----
    ("an entry as it was once", TWO, "two", Present(1, "one"), Conflict(1, "two")),
    ("an entry with another past", TWO, "two", Present(2, "other"), Conflict(2, "two")),
    ("an entry that is not there yet", TWO, "two", Absent(1), Take(0)),
    ("no file, and an entry as it was once", TWO, None, Present(1, "one"), Write(None)),
]


@every(("base", "file", "entry", "decision"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table_holds(base: Base | None, file: str | None, entry: Entry, decision: Decision) -> None:
    assert decide(base, None if file is None else Seen(file, file), entry) == decision


def test_a_mark_at_the_beginning_of_a_file_is_no_change_of_its_text() -> None:
    base = Base(Copy(1, "one", "marked one"))
    assert decide(base, Seen("marked one", "one"), Present(1, "one")) == Keep(base)


COPIES = st.builds(Copy, st.integers(1, 3), *(st.shared(st.sampled_from("abc"), key="text"),) * 2)
BASES = st.none() | st.builds(Base, st.none() | COPIES, st.none() | COPIES)
SEEN = st.none() | st.sampled_from("abcd").map(lambda text: Seen(text, text))
ENTRIES = st.builds(Present, st.integers(1, 3), st.sampled_from("abce")) | st.builds(Absent, st.integers(0, 3))


@given(BASES, SEEN, ENTRIES)
def test_a_text_that_was_never_mirrored_is_neither_overwritten_nor_removed(
    base: Base | None, file: Seen | None, entry: Entry
) -> None:
    decision = decide(base, file, entry)
    known = {copy.file for copy in (base.mirrored, base.writing) if copy is not None} if base else set[str]()
    if file is not None and file.file not in known:
        assert isinstance(decision, Take | Conflict | Keep)
        if isinstance(decision, Keep):
            assert isinstance(entry, Present)
            assert entry.value == file.value


@given(BASES, SEEN, ENTRIES)
def test_an_entry_is_changed_only_from_the_version_that_was_mirrored(
    base: Base | None, file: Seen | None, entry: Entry
) -> None:
    decision = decide(base, file, entry)
    if isinstance(decision, Take | Drop) and isinstance(entry, Present):
        assert base is not None
        assert base.mirrored is not None
        assert decision.expected == entry.version == base.mirrored.version


@example(Base(Copy(1, "b", "b"), Copy(2, "b", "b")), None, Present(1, "b"))  # the store was put back meanwhile
@given(BASES, SEEN, ENTRIES)
def test_an_entry_without_a_file_is_removed_only_if_its_file_was_surely_there(
    base: Base | None, file: Seen | None, entry: Entry
) -> None:
    if isinstance(decide(base, file, entry), Drop):
        assert file is None
        assert base is not None
        assert base.writing is None


# ---- what the history adds -------------------------------------------------------------------------------------------


def _put(version: int, value: str, by: str | None = None) -> MemoryChange:
    return MemoryChange("s", "k", version, "put", value, at=version, by=by)


def _seen(text: str) -> Seen:
    digest = digest_of(text.encode())
    return Seen(digest, digest)


def _copy(version: int, text: str) -> Copy:
    return Copy(version, _seen(text).value, _seen(text).file)


def test_a_text_that_was_taken_in_before_a_crash_is_an_old_copy() -> None:
    changes = [_put(3, "agent's"), _put(2, "mine", AUTHOR), _put(1, "one")]
    assert informed(Base(_copy(1, "one")), _seen("mine"), changes) == Base(_copy(2, "mine"))


def test_a_text_that_somebody_else_wrote_is_an_edit_although_the_history_has_it() -> None:
    changes = [_put(3, "three"), _put(2, "mine"), _put(1, "one")]
    assert informed(Base(_copy(1, "one")), _seen("mine"), changes) == Base(_copy(1, "one"))


def test_a_person_who_brings_an_older_text_back_has_edited_the_file() -> None:
    changes = [_put(3, "three"), _put(2, "two"), _put(1, "one", AUTHOR)]
    assert informed(Base(_copy(2, "two")), _seen("one"), changes) == Base(_copy(2, "two"))


def test_where_nothing_is_known_a_file_that_the_history_has_is_an_old_copy() -> None:
    changes = [_put(2, "two"), _put(1, "one")]
    assert informed(None, _seen("one"), changes) == Base(_copy(1, "one"))


def test_a_copy_that_the_history_contradicts_is_not_trusted() -> None:
    changes = [_put(3, "three"), _put(2, "another two"), _put(1, "one")]
    assert informed(Base(_copy(2, "two")), _seen("two"), changes) == Base()
