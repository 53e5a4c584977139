"""Stored rules in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from msgspec.structs import replace

from holdfast.errors.rules import RuleCorrupt
from holdfast.store.rules.contract import EVERY_AGENT, StoredRule
from holdfast.store.sqlite.db import page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.store.rules.contract import RuleFilter
    from holdfast.store.seals import Seal
    from holdfast.store.sqlite.db import Db

_COLUMNS: Final = "id, agent, body, digest, author, at, removed_by, removed_at"
_SELECT: Final = f"SELECT {_COLUMNS}, crc, mac FROM rules"  # noqa: S608  constants
_BODY: Final = 2

IN_FORCE_QUERY: Final = (
    # The index is named: it holds nothing but what is in force.
    f"{_SELECT} INDEXED BY rules_in_force WHERE agent IN (?, ?) AND removed_at IS NULL ORDER BY id"
)
"""The statement that finds what decides for an agent."""


class RuleTable:
    """`RuleRows` on the writer's connection; `run` carries out a statement that changes something."""

    def __init__(self, connection: Db, run: Callable[[str, tuple[Any, ...]], object], seal: Seal) -> None:
        self._db = connection
        self._run = run
        self._seal = seal

    def find(self, number: int) -> StoredRule | None:
        found = self._db.execute(f"{_SELECT} WHERE id = ?", (number,)).get
        return None if found is None else _row(found, self._seal)[0]

    def same(self, agent: str, digest: str) -> StoredRule | None:
        found = self._db.execute(
            f"{_SELECT} WHERE agent = ? AND digest = ? AND removed_at IS NULL", (agent, digest)
        ).get
        return None if found is None else _sound(found, self._seal)

    def count(self, agent: str) -> int:
        sql = "SELECT count(*) FROM rules INDEXED BY rules_in_force WHERE agent = ? AND removed_at IS NULL"
        return self._db.execute(sql, (agent,)).get

    def add(self, rule: StoredRule) -> StoredRule:
        last = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'rules'").get
        added = replace(rule, id=(last or 0) + 1)  # the checksum covers the number
        self._run(
            f"INSERT INTO rules ({_COLUMNS}, crc, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            (
                *(added.id, added.agent, added.body, added.digest, added.by, added.at),
                *(added.removed_by, added.removed_at, _crc(added), self._seal.of_rule(added)),
            ),
        )
        return added

    def remove(self, rule: StoredRule) -> None:
        self._run(
            "UPDATE rules SET removed_by = ?, removed_at = ?, crc = ?, mac = ? WHERE id = ?",
            (rule.removed_by, rule.removed_at, _crc(rule), self._seal.of_rule(rule), rule.id),
        )

    def seal(self, rule: StoredRule) -> None:
        """Seal a rule of a store that had no seals."""
        self._run("UPDATE rules SET mac = ? WHERE id = ?", (self._seal.of_rule(rule), rule.id))


class RuleQueries:
    """`RuleReader` on a read-only connection."""

    def __init__(self, connection: Db, page_bytes: int, seal: Seal | None = None) -> None:
        self._db = connection
        self._page_bytes = page_bytes
        self._seal = seal

    def in_force(self, agent: str) -> list[StoredRule]:
        return [
            _sound(found, self._seal) for found in self._db.execute(IN_FORCE_QUERY, (agent, EVERY_AGENT)).fetchall()
        ]

    def newest(self, where: RuleFilter, limit: int) -> list[StoredRule]:
        sql, values = newest_query(where, limit)
        return [_sound(found, self._seal) for found in page(self._db, sql, values, _BODY, self._page_bytes)]

    def raw(self) -> Iterator[tuple[StoredRule, bool]]:
        for found in self._db.execute(f"{_SELECT} ORDER BY id"):
            yield _row(found, self._seal)


def newest_query(where: RuleFilter, limit: int) -> tuple[str, list[Any]]:
    """The statement that lists rules. Every combination of filters has an index that is in its order."""
    terms: list[str] = []
    values: list[Any] = []
    for term, value in (("agent = ?", where.agent), ("id < ?", where.before)):
        if value is not None:
            terms.append(term)
            values.append(value)
    chosen = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"{_SELECT}{chosen} ORDER BY id DESC LIMIT ?", [*values, limit]


def _row(found: tuple[Any, ...], seal: Seal | None) -> tuple[StoredRule, bool]:
    """A rule from its columns, and whether it is what was written; without a seal, by its checksum alone."""
    *columns, crc, mac = found
    rule = StoredRule(*columns)
    if not _is_rule(rule):
        return StoredRule(rule.id, str(rule.agent), str(rule.body), str(rule.digest), str(rule.by), 0), False
    return rule, _crc(rule) == crc and (seal is None or seal.matches_rule(rule, mac))


def _is_rule(rule: StoredRule) -> bool:
    """Whether columns have values that a rule can have. A damaged file, or a hostile one, gives anything."""
    texts = all(type(text) is str for text in (rule.agent, rule.body, rule.digest, rule.by))
    removed = (rule.removed_by is None or type(rule.removed_by) is str) and type(rule.removed_at) in {int, type(None)}
    return texts and removed and type(rule.at) is int


def _sound(found: tuple[Any, ...], seal: Seal | None) -> StoredRule:
    rule, sound = _row(found, seal)
    if not sound:
        raise RuleCorrupt(rule.id, rule.agent)
    return rule


def _crc(of: StoredRule) -> int:
    said = (of.id, of.agent, of.digest, of.by, of.at, of.removed_by, of.removed_at, of.body)
    return crc32("\0".join(map(str, said)).encode())
