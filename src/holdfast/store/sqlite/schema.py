"""The tables, and the steps that bring an older file up to date.

`user_version` is the schema version. Migration number n takes version n-1 to n; all due ones run in one transaction. A
released migration is never edited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.crashpoints import crash_point

if TYPE_CHECKING:
    from holdfast.store.sqlite.files import Db


APPLICATION_ID: Final = 0x48464A31
"""``HFJ1`` in the header of every store."""
_V1: Final = """
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per open writer. `batch` is written in every transaction that appends no record: after a commit that failed,
-- it tells whether that commit took effect.
CREATE TABLE writers (
    instance TEXT PRIMARY KEY,
    owner    TEXT NOT NULL,
    batch    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE journals (
    no           INTEGER PRIMARY KEY,
    id           TEXT NOT NULL UNIQUE,
    kind         TEXT NOT NULL,
    agent        TEXT,
    status       TEXT NOT NULL,
    head         INTEGER NOT NULL,
    created      INTEGER NOT NULL,
    updated      INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    owner        TEXT,
    expires      INTEGER NOT NULL,
    mono_expires INTEGER NOT NULL,
    term         INTEGER NOT NULL,
    quarantine   TEXT,
    revoked      INTEGER NOT NULL
) STRICT;
CREATE INDEX journals_by_kind   ON journals (kind, updated, id);
CREATE INDEX journals_by_status ON journals (status, updated, id);
CREATE INDEX journals_by_agent  ON journals (agent, updated, id) WHERE agent IS NOT NULL;
CREATE INDEX journals_by_agent_and_status ON journals (agent, status, updated, id) WHERE agent IS NOT NULL;
CREATE INDEX journals_by_agent_and_kind ON journals (agent, kind, updated, id) WHERE agent IS NOT NULL;
CREATE INDEX journals_by_all ON journals (agent, kind, status, updated, id) WHERE agent IS NOT NULL;
CREATE INDEX journals_by_kind_and_status  ON journals (kind, status, updated, id);
CREATE INDEX journals_newest    ON journals (updated, id);
CREATE INDEX journals_in_quarantine ON journals (no) WHERE quarantine IS NOT NULL;
CREATE INDEX journals_held      ON journals (no) WHERE owner IS NOT NULL;

-- `pos` is the order of all records; (journal, seq) the place in one journal. The checksum covers journal, seq, epoch
-- and body. Append-only: nothing ever updates or deletes a row here.
CREATE TABLE records (
    pos     INTEGER PRIMARY KEY,
    journal INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    epoch   INTEGER NOT NULL,
    crc     INTEGER NOT NULL,
    body    BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX records_in_journal ON records (journal, seq);

CREATE TABLE inputs (
    journal INTEGER NOT NULL,
    input   INTEGER NOT NULL,
    key     TEXT NOT NULL,
    digest  TEXT NOT NULL,
    body    BLOB NOT NULL,
    at      INTEGER NOT NULL,
    pending INTEGER NOT NULL,
    PRIMARY KEY (journal, input)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX inputs_by_key ON inputs (journal, key);
CREATE INDEX inputs_pending ON inputs (journal, input) WHERE pending = 1;

CREATE TABLE waits (
    journal  INTEGER NOT NULL,
    name     TEXT NOT NULL,
    state    TEXT NOT NULL,
    deadline INTEGER,
    payload  BLOB,
    crc      INTEGER NOT NULL,
    opened   INTEGER NOT NULL,
    PRIMARY KEY (journal, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX waits_due ON waits (deadline) WHERE state = 'open' AND deadline IS NOT NULL;

CREATE TABLE blobs (
    id     INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    at     INTEGER NOT NULL,
    body   BLOB NOT NULL
) STRICT;
CREATE TABLE refs (
    digest  TEXT NOT NULL,
    journal INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (digest, journal, seq)
) STRICT, WITHOUT ROWID;
"""
_V2: Final = """
-- Who has work: `wakes` counts what came from outside, `seen` how much of that was attended to. Where forks begin.
-- `inputs` counts those accepted so far; in a fork they count on from those of the parent.
ALTER TABLE journals ADD COLUMN wakes      INTEGER NOT NULL DEFAULT 0;
ALTER TABLE journals ADD COLUMN seen       INTEGER NOT NULL DEFAULT 0;
ALTER TABLE journals ADD COLUMN parent     TEXT;
ALTER TABLE journals ADD COLUMN parent_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE journals ADD COLUMN inputs     INTEGER NOT NULL DEFAULT 0;
UPDATE journals SET inputs = (SELECT coalesce(max(input), 0) FROM inputs WHERE journal = no);
UPDATE journals SET wakes = inputs;
CREATE INDEX journals_with_work ON journals (no)
    WHERE quarantine IS NULL AND kind = 'session' AND (wakes > seen OR status = 'running');
"""
_V3: Final = """
-- What a process is, and for which session it works. `notices` counts the notifications that are not finished.
ALTER TABLE journals ADD COLUMN role    TEXT;
ALTER TABLE journals ADD COLUMN session TEXT;
ALTER TABLE journals ADD COLUMN notices INTEGER NOT NULL DEFAULT 0;
CREATE INDEX journals_by_role ON journals (role, updated, id) WHERE role IS NOT NULL;
CREATE INDEX journals_by_role_and_status ON journals (role, status, updated, id) WHERE role IS NOT NULL;
CREATE INDEX journals_by_session ON journals (session, updated, id) WHERE session IS NOT NULL;
CREATE INDEX journals_by_session_and_role ON journals (session, role, updated, id) WHERE session IS NOT NULL;
CREATE INDEX journals_by_session_and_status ON journals (session, status, updated, id) WHERE session IS NOT NULL;
CREATE INDEX journals_of_session ON journals (session, role, status, updated, id) WHERE session IS NOT NULL;
DROP INDEX journals_with_work;
CREATE INDEX journals_with_work ON journals (no)
    WHERE quarantine IS NULL AND (kind = 'session' OR role IS NOT NULL) AND (wakes > seen OR status = 'running');

-- `journal` is an id: a notification for a journal that does not exist is kept too, as a dead one. The checksum covers
-- what is said, which never changes. `woken` is 0 while the journal was not woken for it. Numbers are never used again.
CREATE TABLE notifications (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    journal  TEXT NOT NULL,
    no       INTEGER NOT NULL,
    kind     TEXT NOT NULL,
    title    TEXT NOT NULL,
    body     TEXT NOT NULL,
    source   TEXT,
    priority INTEGER NOT NULL,
    key      TEXT,
    state    TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    due      INTEGER NOT NULL,
    expires  INTEGER,
    created  INTEGER NOT NULL,
    updated  INTEGER NOT NULL,
    input    INTEGER,
    run      TEXT,
    reason   TEXT,
    woken    INTEGER NOT NULL,
    crc      INTEGER NOT NULL
) STRICT;
CREATE INDEX notifications_by_journal ON notifications (journal);
CREATE INDEX notifications_by_state ON notifications (state);
CREATE INDEX notifications_by_journal_and_state ON notifications (journal, state);
CREATE UNIQUE INDEX notifications_by_key ON notifications (journal, key) WHERE key IS NOT NULL;
CREATE INDEX notifications_queued ON notifications (journal, priority DESC, no, due, expires) WHERE state = 'queued';
CREATE INDEX notifications_claimed ON notifications (journal, input) WHERE state = 'claimed';
CREATE INDEX notifications_unwoken ON notifications (due) WHERE state = 'queued' AND woken = 0;
CREATE INDEX notifications_expiring ON notifications (expires) WHERE state = 'queued' AND expires IS NOT NULL;

-- `size` is that of key and value in bytes. A version is that of the last change, of which the newest are kept.
CREATE TABLE memories (
    id      INTEGER PRIMARY KEY,
    scope   TEXT NOT NULL,
    key     TEXT NOT NULL,
    version INTEGER NOT NULL,
    value   TEXT NOT NULL,
    size    INTEGER NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    expires INTEGER,
    author  TEXT,
    crc     INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX memories_by_key ON memories (scope, key);
CREATE INDEX memories_usage ON memories (scope, expires, size);
CREATE INDEX memories_expiring ON memories (expires) WHERE expires IS NOT NULL;
CREATE TABLE memory_changes (
    id      INTEGER PRIMARY KEY,
    scope   TEXT NOT NULL,
    key     TEXT NOT NULL,
    version INTEGER NOT NULL,
    change  TEXT NOT NULL,
    value   TEXT,
    at      INTEGER NOT NULL,
    author  TEXT,
    expires INTEGER
) STRICT;
CREATE UNIQUE INDEX memory_changes_by_key ON memory_changes (scope, key, version);
CREATE INDEX memory_changes_expiring ON memory_changes (expires) WHERE expires IS NOT NULL AND value IS NOT NULL;
CREATE VIRTUAL TABLE memory_words USING fts5 (
    key, value, content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);
"""
_V4: Final = """
-- What may be forgotten. And what waits for a journal in quarantine is given up: nobody would ever deliver it.
CREATE INDEX notifications_finished ON notifications (updated)
    WHERE state IN ('acknowledged', 'cancelled', 'expired');
UPDATE notifications SET state = 'dead', woken = 1, reason = (
        SELECT 'journal ''' || id || ''' is quarantined: ' || quarantine || '; restore it from a backup'
        FROM journals WHERE id = notifications.journal
    )
    WHERE state IN ('queued', 'claimed') AND journal IN (SELECT id FROM journals WHERE quarantine IS NOT NULL);
UPDATE journals SET notices = 0 WHERE quarantine IS NOT NULL;

-- What a wait asks, of what kind it is, when it was opened, and with which record its answer was used.
ALTER TABLE waits ADD COLUMN kind     TEXT;
ALTER TABLE waits ADD COLUMN body     BLOB;
ALTER TABLE waits ADD COLUMN at       INTEGER NOT NULL DEFAULT 0;
ALTER TABLE waits ADD COLUMN consumed INTEGER NOT NULL DEFAULT 0;
CREATE INDEX waits_asked ON waits (kind, at, journal, name) WHERE state = 'open' AND kind IS NOT NULL;

-- `counted` is 1 where the input was accepted under an admission. An alias is a key under which an input came again.
ALTER TABLE inputs ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;
CREATE INDEX inputs_counted ON inputs (journal, at) WHERE counted = 1;
CREATE INDEX inputs_counted_by_digest ON inputs (journal, digest, at) WHERE counted = 1;
CREATE TABLE input_aliases (
    journal INTEGER NOT NULL,
    key     TEXT NOT NULL,
    input   INTEGER NOT NULL,
    PRIMARY KEY (journal, key)
) STRICT, WITHOUT ROWID;

-- Rules that a person has stored. A rule that was removed stays, and may be stored again under another number.
CREATE TABLE rules (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    agent      TEXT NOT NULL,
    body       TEXT NOT NULL,
    digest     TEXT NOT NULL,
    author     TEXT NOT NULL,
    at         INTEGER NOT NULL,
    removed_by TEXT,
    removed_at INTEGER,
    crc        INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX rules_in_force ON rules (agent, digest) WHERE removed_at IS NULL;
CREATE INDEX rules_by_agent ON rules (agent);

-- What each agent ('' is none) has used up on a day (since 1970-01-01, UTC); day -1 is the sum of all days. A fold of
-- the records after the position `spending_since`: those before it were written by an older schema.
CREATE TABLE spending (
    agent         TEXT NOT NULL,
    day           INTEGER NOT NULL,
    model_calls   INTEGER NOT NULL,
    tool_calls    INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_micros   INTEGER NOT NULL,
    unpriced      INTEGER NOT NULL,
    tasks         INTEGER NOT NULL,
    PRIMARY KEY (agent, day)
) STRICT, WITHOUT ROWID;
INSERT OR REPLACE INTO meta (key, value)
    SELECT 'spending_since', CAST(CAST(coalesce(max(pos), 0) AS TEXT) AS BLOB) FROM records;
"""
_V5: Final = """
-- The time in which turns were worked on. It follows from the records, as all spending does, so all of it is counted
-- anew when the store is opened next by whoever knows what records spend.
ALTER TABLE spending ADD COLUMN wall_ms INTEGER NOT NULL DEFAULT 0;
DELETE FROM spending;
INSERT OR REPLACE INTO meta (key, value)
    SELECT 'spending_since', CAST(CAST(coalesce(max(pos), 0) AS TEXT) AS BLOB) FROM records;

-- What agents take in (JSON), and the last inputs that were refused; `nth` counts those of a journal.
CREATE TABLE terms (
    agent TEXT PRIMARY KEY,
    body  TEXT NOT NULL,
    at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE refusals (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    journal TEXT NOT NULL,
    agent   TEXT,
    key     TEXT,
    at      INTEGER NOT NULL,
    error   TEXT NOT NULL,
    message TEXT NOT NULL,
    nth     INTEGER NOT NULL
) STRICT;
CREATE INDEX refusals_of_journal ON refusals (journal, nth);

-- Blobs with what they are, and the session that may read them ('' is none). `refs` has what records refer to.
CREATE TABLE attachments (
    session    TEXT NOT NULL,
    digest     TEXT NOT NULL,
    media_type TEXT NOT NULL,
    size       INTEGER NOT NULL,
    name       TEXT,
    at         INTEGER NOT NULL,
    PRIMARY KEY (session, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX attachments_by_digest ON attachments (digest);

-- Records up to `base` were trimmed. What is left of journals that were pruned: `pos` is where the last record stood. A
-- record of journal 0 is nobody's: it keeps the newest position taken.
ALTER TABLE journals ADD COLUMN base INTEGER NOT NULL DEFAULT 0;
CREATE INDEX journals_by_parent ON journals (parent) WHERE parent IS NOT NULL;
CREATE TABLE tombstones (
    journal TEXT PRIMARY KEY,
    kind    TEXT NOT NULL,
    agent   TEXT,
    role    TEXT,
    session TEXT,
    status  TEXT NOT NULL,
    detail  TEXT NOT NULL,
    digest  TEXT NOT NULL,
    head    INTEGER NOT NULL,
    pos     INTEGER NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    spent   TEXT NOT NULL,
    crc     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_pos ON tombstones (pos);
CREATE INDEX refs_by_journal ON refs (journal, seq);
-- Processes that were given to another session.
CREATE INDEX inputs_that_transfer ON inputs (journal) WHERE key >= 'holdfast/transfer/' AND key < 'holdfast/transfer0';
"""
_V6: Final = """
-- MACs under a key that is not in the store, see `store/seals.py`. `meta` has `key_check`, which tells whether a key is
-- the right one, and in a store of an older schema the key of its wait tokens, covered with the new key.
ALTER TABLE waits ADD COLUMN mac BLOB;
ALTER TABLE rules ADD COLUMN mac BLOB;
"""
_V7: Final = """
-- What the records of forgotten sessions have spent, without their ids; day -1 of an agent: some of it is unknown.
-- Keyed hashes of the ids that are refused from now on. `meta` has `epoch_floor`: the leases of new journals begin
-- above those of forgotten ones; and `wipe_due` while forgotten bytes may still be in the write-ahead log.
CREATE TABLE forgotten_spending (
    agent         TEXT NOT NULL,
    day           INTEGER NOT NULL,
    model_calls   INTEGER NOT NULL,
    tool_calls    INTEGER NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost_micros   INTEGER NOT NULL,
    unpriced      INTEGER NOT NULL,
    tasks         INTEGER NOT NULL,
    wall_ms       INTEGER NOT NULL,
    PRIMARY KEY (agent, day)
) STRICT, WITHOUT ROWID;
CREATE TABLE forgotten_ids (
    hash BLOB PRIMARY KEY,
    at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tombstones_by_session ON tombstones (session) WHERE session IS NOT NULL;
-- The index of memory leaves no removed word behind, and can be rebuilt from its table.
DROP TABLE memory_words;
CREATE VIRTUAL TABLE memory_words USING fts5 (
    key, value, content = 'memories', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);
INSERT INTO memory_words (memory_words, rank) VALUES ('secure-delete', 1);
INSERT INTO memory_words (memory_words) VALUES ('rebuild');
-- What a notification brings for the host beside its text: canonical JSON, covered by the checksum.
ALTER TABLE notifications ADD COLUMN payload TEXT;
"""
_V8: Final = """
-- The state of a session after some of its records, sealed: a cache, which may be deleted at any time. `anchor` is the
-- checksum of record `seq`. And where a journal ended when an input was accepted: what follows from it comes later.
CREATE TABLE folds (
    id      INTEGER PRIMARY KEY,
    journal INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    anchor  INTEGER NOT NULL,
    body    BLOB NOT NULL,
    mac     BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX folds_of_journal ON folds (journal, seq);
ALTER TABLE inputs ADD COLUMN head INTEGER NOT NULL DEFAULT 0;
-- Who had a session at a record, for forks.
CREATE INDEX records_handed ON records (journal, seq) WHERE substr(body, 1, 14) = x'7b2274223a2268616e646564222c';
"""
_V9: Final = """
-- JSON values, summaries and metadata (JSON objects) in memory. `words` has the words of a value for the search: in
-- JSON, a word may follow an escape.
ALTER TABLE memories ADD COLUMN is_json  INTEGER NOT NULL DEFAULT 0;
ALTER TABLE memories ADD COLUMN summary  TEXT NOT NULL DEFAULT '';
ALTER TABLE memories ADD COLUMN metadata TEXT;
ALTER TABLE memories ADD COLUMN words    TEXT AS (
    CASE is_json WHEN 0 THEN value ELSE
        replace(replace(replace(replace(value, '\\\\', ' '), '\\n', ' '), '\\r', ' '), '\\t', ' ')
    END
) VIRTUAL;
ALTER TABLE memory_changes ADD COLUMN is_json  INTEGER NOT NULL DEFAULT 0;
ALTER TABLE memory_changes ADD COLUMN summary  TEXT NOT NULL DEFAULT '';
ALTER TABLE memory_changes ADD COLUMN metadata TEXT;
DROP TABLE memory_words;
CREATE VIRTUAL TABLE memory_words USING fts5 (
    key, words, summary, content = 'memories', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2'
);
INSERT INTO memory_words (memory_words, rank) VALUES ('secure-delete', 1);
INSERT INTO memory_words (memory_words) VALUES ('rebuild');
"""
MIGRATIONS: Final[tuple[str, ...]] = (_V1, _V2, _V3, _V4, _V5, _V6, _V7, _V8, _V9)
SEALED: Final = 6
"""The first schema with sealed waits and rules."""
VERSION: Final = len(MIGRATIONS)
"""The schema version of this release."""


def migrate(connection: Db, found: int) -> None:
    """Bring the file from version `found` to `VERSION`, in the caller's transaction."""
    for number, script in enumerate(MIGRATIONS[found:], found + 1):
        connection.execute(script)
        crash_point(f"store.migrated.{number}")
    if found == 0:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    crash_point("store.migrated")
