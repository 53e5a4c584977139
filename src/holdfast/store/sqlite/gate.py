"""The gate in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from holdfast.store.gate.contract import IN_ALL, PER_JOURNAL, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.store.gate.contract import NoteRefusal
    from holdfast.store.sqlite.db import Db

_COLUMNS: Final = "id, journal, agent, key, at, error, message, nth"
_SELECT: Final = f"SELECT {_COLUMNS} FROM refusals"  # noqa: S608  constants


class GateTable:
    """`GateRows` on the writer's connection; `run` carries out a statement that changes something."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._db = connection
        self._run = run

    def note(self, asked: NoteRefusal, at: int) -> Refusal:
        last = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'refusals'").get or 0
        nth = self._db.execute("SELECT max(nth) FROM refusals WHERE journal = ?", (asked.journal,)).get or 0
        made = Refusal(last + 1, asked.journal, asked.agent, asked.key, at, asked.error, asked.message, nth + 1)
        self._run(
            f"INSERT INTO refusals ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (made.id, made.journal, made.agent, made.key, made.at, made.error, made.message, made.nth),
        )
        self._run("DELETE FROM refusals WHERE journal = ? AND nth <= ?", (made.journal, made.nth - PER_JOURNAL))
        # Numbers have gaps where journals were trimmed: of all, at most so many are left.
        self._run("DELETE FROM refusals WHERE id <= ?", (made.id - IN_ALL,))
        return made

    def set_terms(self, agent: str, body: str | None, at: int) -> None:
        if body is None:
            self._run("DELETE FROM terms WHERE agent = ?", (agent,))
        else:
            self._run("INSERT OR REPLACE INTO terms (agent, body, at) VALUES (?, ?, ?)", (agent, body, at))


class GateQueries:
    """`GateReader` on a read-only connection."""

    def __init__(self, connection: Db) -> None:
        self._db = connection

    def terms(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT agent, body FROM terms").fetchall())

    def refusals(self, journal: str | None, limit: int) -> list[Refusal]:
        where, values = ("", ()) if journal is None else (" WHERE journal = ?", (journal,))
        found = self._db.execute(f"{_SELECT}{where} ORDER BY id DESC LIMIT ?", (*values, limit)).fetchall()
        return [Refusal(*columns) for columns in found]

    def raw_texts(self) -> Iterator[str]:
        for (text,) in self._db.execute("SELECT body FROM terms UNION ALL SELECT message FROM refusals"):
            yield text
