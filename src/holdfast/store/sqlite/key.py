"""The key of a store, in a file beside it or in the environment. It seals waits, rules and folds.

The key file of a new store is written before the store is committed and gets its final name afterwards. So a key file
with the final name beside a store of an older schema shows that an older copy replaced a sealed store.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import closing, suppress
from hashlib import blake2b
from hmac import compare_digest
from itertools import chain, count
from typing import TYPE_CHECKING, Any, Final, NoReturn

import apsw
import msgspec
from msgspec.structs import astuple, replace

from holdfast.crashpoints import crash_point
from holdfast.errors import RecordUnreadable, StoreKeyMissing, StoreKeyWrong, StoreRefused
from holdfast.plainfiles import sync_folder, write_new_file
from holdfast.records import Cancelled, Done, Failed, Intended, Unknown, decode
from holdfast.store.folds import Fold
from holdfast.store.lease import is_gone
from holdfast.store.paths import key_file
from holdfast.store.sqlite import files
from holdfast.store.sqlite.rows import WAIT_COLUMNS, owner_of, raw_wait, wait_crc
from holdfast.store.sqlite.schema import SEALED, VERSION, migrate
from holdfast.store.sqlite.tables import SqliteTables
from holdfast.store.waits import SIGNAL_MEMO_PREFIX, StoredRule, signal_memo_payload

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store.contract import Wait


ENVIRONMENT: Final = "HOLDFAST_STORE_KEY"
_RENEW_BUSY_MS: Final = 1_000
_AT_ONCE: Final = 1_000
_LONGEST: Final = 200
_NEW_KEY: Final = "holdfast doctor --new-key"
_WAITS: Final = (
    f"SELECT w.journal, j.id, {', '.join(f'w.{name}' for name in WAIT_COLUMNS.split(', '))}"  # constants
    " FROM waits w JOIN journals j ON j.no = w.journal WHERE (w.journal, w.name) > (?, ?)"
    " ORDER BY w.journal, w.name LIMIT ?"
)
_SEAL_WAIT: Final = (
    "UPDATE waits SET state = ?, payload = ?, consumed = ?, crc = ?, mac = ? WHERE journal = ? AND name = ?"
)


KEY_BYTES: Final = 32
_SEAL_BYTES: Final = 16
_encode: Final = msgspec.msgpack.Encoder().encode


class Seal:
    """Makes and checks the seals (keyed digests) of one store."""

    __slots__ = ("_key", "_rows", "check", "peers")

    def __init__(self, key: bytes, store_id: bytes) -> None:
        self._key = blake2b(store_id, key=key, person=b"holdfast:store", digest_size=KEY_BYTES).digest()
        self._rows = self._derived(b"rows")
        self.check: Final = self._derived(b"check")
        """Stored to recognise the right key."""
        self.peers: Final = self._derived(b"peers")
        """The key by which processes prove to each other that they may open the store."""

    def _derived(self, purpose: bytes) -> bytes:
        return blake2b(purpose, key=self._key, person=b"holdfast:derive", digest_size=KEY_BYTES).digest()

    def token_key(self, covered: bytes | None) -> bytes:
        """The key of wait tokens; a store of an older schema keeps its first one, `covered`."""
        return self._derived(b"tokens") if covered is None else self.cover(covered)

    def cover(self, secret: bytes) -> bytes:
        """Encrypt the token key of an older schema for the store; the same call decrypts it."""
        return bytes(one ^ other for one, other in zip(secret, self._derived(b"cover"), strict=True))

    def of(self, row: Wait | StoredRule | Fold) -> bytes:
        """The seal of a row. It covers all fields in order, so another field needs a migration that seals anew."""
        fields = row if isinstance(row, Fold) else astuple(row)
        said = (type(row).__name__.removeprefix("Stored").lower(), *fields)
        return blake2b(_encode(said), key=self._rows, digest_size=_SEAL_BYTES).digest()

    def id_hash(self, id: str) -> bytes:
        """The keyed hash of an id that was forgotten."""
        return blake2b(id.encode(), key=self._derived(b"forgotten"), digest_size=KEY_BYTES).digest()

    def file_mac(self, digest: bytes) -> str:
        """The MAC of a session file with this digest."""
        return blake2b(digest, key=self._derived(b"session file"), digest_size=KEY_BYTES).hexdigest()

    def matches(self, row: Wait | StoredRule | Fold, mac: object) -> bool:
        """True if `mac` is the seal of the row."""
        return isinstance(mac, bytes) and compare_digest(self.of(row), mac)


def load_seal(path: Path, connection: files.Db, *, look: bool = False) -> tuple[Seal, bytes]:
    """The seal of the store at `path` and the key of its wait tokens.

    Raises `StoreKeyMissing` or `StoreKeyWrong`. With `look`, no file is changed.
    """
    store_id, check = _value(connection, "store_id"), _value(connection, "key_check")
    if not isinstance(store_id, bytes) or not isinstance(check, bytes):
        raise apsw.CorruptError("a value that every store has is missing")
    named = key_file(path)
    found = _from_environment(path)
    if found is not None:
        seal = Seal(found, store_id)
        if seal.check != check:
            reason, helps = f"the variable {ENVIRONMENT} has another key", "set the one it was made with"
            if _fitting(path, named, store_id, check) is not None:
                reason, helps = f"{reason}, and {named} fits", f"unset {ENVIRONMENT}"
            raise StoreKeyWrong(path, reason, helps)
        return seal, seal.token_key(_value(connection, "tokens"))
    # The final name is tried twice: another process may rename the new file in between.
    for file in (named, _new(named), named):
        seal = _fitting(path, file, store_id, check)
        if seal is not None:
            if file != named and not look:
                keep_key(path, connection)  # its process was killed before it could
            return seal, seal.token_key(_value(connection, "tokens"))
    if named.exists():
        raise StoreKeyWrong(path, f"{named} is the key of another store", "put the key back that was beside this store")
    raise StoreKeyMissing(path, named)


def seals_of_files(path: Path | None, store_id: bytes, given: Path | None) -> list[Seal]:
    """The seals that a store with this id would have with the keys at hand: that in a `given` file, and our own."""
    keys = [None if given is None else _read(given, given)]
    if given is not None and keys[0] is None:
        _refuse(given, f"the file {given}")
    if path is not None:
        keys += [_from_environment(path), _read(path, key_file(path))]
    return [Seal(key, store_id) for key in keys if key is not None]


def _fitting(path: Path, file: Path, store_id: bytes, check: bytes) -> Seal | None:
    """The seal with the key in a file, if the key belongs to the store with this `check`."""
    key = _read(path, file)
    if key is None:
        return None
    seal = Seal(key, store_id)
    return seal if seal.check == check else None


def _value(connection: files.Db, key: str) -> Any:  # a damaged file may hold anything
    return connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).get


def make_seal(path: Path, connection: files.Db, found: int, now: int) -> None:
    """Give a store of schema `found` its key and seal its rows, in the transaction of the caller.

    A key file beside an older schema shows that a sealed store was replaced by an older copy. A key in the environment
    leaves no such trace, so the rows of an older store are not trusted then: see `replace_key`.
    """
    named = key_file(path)
    key = _from_environment(path)
    if key is not None and found:
        _replace(connection, Seal(key, _value(connection, "store_id")), now, f"upgrade under {ENVIRONMENT}")
        return
    if key is None:
        key = _read(path, named)
        if key is not None and found:
            raise StoreKeyWrong(
                path,
                f"its schema is version {found}, which has no key, but there is {named}: it was set back, and its "
                "rules and answers may be forged",
                f"if you restored an older backup, '{_NEW_KEY} {path}' keeps the rest and drops these",
            )
        key = key or _made(path, _new(named))
    seal = Seal(key, _value(connection, "store_id"))
    secret = _value(connection, "secret")
    if isinstance(secret, bytes) and len(secret) == KEY_BYTES:
        connection.execute("INSERT INTO meta (key, value) VALUES ('tokens', ?)", (seal.cover(secret),))
    _set_check(connection, seal)
    _seal_rows(connection, seal)


def keep_key(path: Path, connection: files.Db) -> None:
    """Give the new key file its final name, if it belongs to the committed store.

    A key file of another store under that name is put aside. A new key file of another store stays: its process was
    killed, or is about to commit.
    """
    named = key_file(path)
    handle = os.open(named.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # one process at a time renames key files in this folder
        store_id, check = _value(connection, "store_id"), _value(connection, "key_check")
        if _fitting(path, _new(named), store_id, check) is None or _fitting(path, named, store_id, check) is not None:
            return
        if named.exists():
            named.rename(_free(named.with_name(f"{named.name}.away")))
        _new(named).rename(named)
        sync_folder(named.parent)
    finally:
        os.close(handle)
    crash_point("store.key_named")


def replace_key(path: Path, connection: files.Db, now: int) -> None:
    """Give a store with a lost key a new one, in the transaction of the caller; call `keep_key` after it.

    A present key file belongs to another store and is put aside. Without the old key, answers and rules can't be told
    from forged ones. So unused answers are dropped and their questions reopened, rules are removed, and tokens become
    invalid.
    """
    key = _from_environment(path)
    if key is None:
        key = _made(path, _new(key_file(path)))
    _replace(connection, Seal(key, _value(connection, "store_id")), now, _NEW_KEY)


def _replace(connection: files.Db, seal: Seal, now: int, by: str) -> None:
    connection.execute("DELETE FROM meta WHERE key = 'tokens'")
    _set_check(connection, seal)
    _seal_rows(connection, seal, (now, by))


def _set_check(connection: files.Db, seal: Seal) -> None:
    """Store the check of the key, and remove the token key of an older schema."""
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("DELETE FROM meta WHERE key = 'secret'")
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('key_check', ?)", (seal.check,))


def _seal_rows(connection: files.Db, seal: Seal, replaced: tuple[int, str] | None = None) -> None:
    """Seal all rows that match their checksum; the others stay unsealed and untrusted.

    After a replacement (its time and author), answers and rules no longer count.
    """
    answers = None if replaced is None else _AnswerRollback(connection)
    last: tuple[int, str] = (0, "")
    while rows := connection.execute(_WAITS, (*last, _AT_ONCE)).fetchall():
        for number, journal, *found in rows:
            wait, sound = raw_wait(journal, tuple(found))
            if not sound:
                continue
            kept = wait if answers is None else answers.take_back(number, wait)
            if kept is None:
                connection.execute("DELETE FROM waits WHERE journal = ? AND name = ?", (number, wait.name))
                # If its session waits for it, it asks again.
                connection.execute("UPDATE journals SET wakes = wakes + 1 WHERE no = ?", (number,))
                continue
            changed = (kept.state, kept.payload, kept.consumed, wait_crc(kept), seal.of(kept))
            connection.execute(_SEAL_WAIT, (*changed, number, kept.name))
        last = rows[-1][0], rows[-1][2]
    rules = SqliteTables(connection, seal).rules
    for rule, sound in SqliteTables(connection, None).rules.raw():
        if sound and replaced is not None and rule.removed_at is None:
            rules.remove(replace(rule, removed_at=replaced[0], removed_by=replaced[1]))
        elif sound:
            rules.reseal(rule)


class _AnswerRollback:
    """Takes back unused answers. Call it in the order of journals and names."""

    def __init__(self, connection: files.Db) -> None:
        self._db = connection
        self._journal = 0
        self._used: set[str] = set()
        """Waits of the journal whose outcome is in its records."""
        self._base = 0
        self._dropped: set[bytes] = set()
        """Memos of signals of the journal that were taken back."""

    def take_back(self, number: int, wait: Wait) -> Wait | None:
        """The wait without its answer, unless a record shows that the answer was used; None to delete the wait.

        The kind of a wait and its column `consumed` prove nothing: both may be forged.
        """
        if wait.state != "resolved":
            return wait
        if number != self._journal:
            self._read(number)
        if wait.name in self._used or 0 < wait.consumed <= self._base:
            return wait
        if wait.name.startswith(
            SIGNAL_MEMO_PREFIX
        ):  # it sorts after all waits for signals; only the sender may send it again
            return None if wait.payload in self._dropped else wait
        self._dropped.add(signal_memo_payload(wait.payload or b""))
        if not wait.opened or (wait.kind is None and wait.body is not None):
            return None  # not opened yet, or a question that no list would show
        return replace(wait, state="open", payload=None, consumed=0)

    def _read(self, number: int) -> None:
        self._journal, self._used, self._dropped = number, set(), set()
        self._base = self._db.execute("SELECT base FROM journals WHERE no = ?", (number,)).get
        targets: dict[str, str] = {}
        for (body,) in self._db.execute("SELECT body FROM records WHERE journal = ? ORDER BY seq", (number,)):
            try:
                record = decode(body)
            except RecordUnreadable:
                continue
            if not isinstance(record, Intended | Done | Failed | Unknown | Cancelled):
                continue
            if record.ask is not None and record.ask.kind in {"await_event", "process"}:
                targets[record.key] = record.ask.target
            if not isinstance(record, Intended):
                self._used.update((record.key, targets.get(record.key, record.key)))


def _from_environment(path: Path) -> bytes | None:
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return None
    return _key_of(text) or _refuse(path, f"the variable {ENVIRONMENT}")


def _key_of(text: str) -> bytes | None:
    try:
        key = bytes.fromhex(text.strip()) if text.isascii() else b""
    except ValueError:
        key = b""
    return key if len(key) == KEY_BYTES else None


def _refuse(path: Path, where: str) -> NoReturn:
    raise StoreRefused(path, f"{where} holds no key: one is {KEY_BYTES * 2} hexadecimal digits")


def _new(named: Path) -> Path:
    return named.with_name(f"{named.name}.new")


def _read(path: Path, file: Path) -> bytes | None:
    """The key in a file; None without a file. Refuses a file that other users can access."""
    files.check_file(path, file)
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(handle, encoding="ascii", errors="replace") as opened:  # noqa: PTH123  it is open already
        key = _key_of(opened.read(_LONGEST))
    if key is None and file == key_file(path):
        _refuse(path, f"the file {file}")
    return key  # a new file without a key: its process was killed while it wrote


def _made(path: Path, file: Path) -> bytes:
    """A new key, durable before it seals anything."""
    file.unlink(missing_ok=True)  # of a killed process; nothing was committed with it
    key = secrets.token_bytes(KEY_BYTES)
    write_new_file(file, f"{key.hex()}\n".encode())
    sync_folder(path.parent)
    crash_point("store.key_made")
    return key


def _free(file: Path) -> Path:
    """The first free name, with a number if needed: a key that was put aside is never overwritten."""
    names = chain([file], (file.with_name(f"{file.name}.{number}") for number in count(2)))
    return next(name for name in names if not os.path.lexists(name))


def renew_key(path: Path, now: int) -> None:
    """Give a store with a lost key a new one, see `replace_key`. A key that fits is not replaced.

    A store of a schema without keys that has a key file is migrated with the new key. A store that is open elsewhere is
    refused: the other process would go on with the old key.
    """
    files.check_header(path)
    files.check_access(path)
    with files.translated(path), closing(files.connect(path, apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(_RENEW_BUSY_MS)
        # First: it keeps all others out from the first read on.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        try:
            files.check_schema(path, connection)
            connection.execute("BEGIN EXCLUSIVE")
        except apsw.BusyError as error:
            raise _in_use(path) from error
        try:
            found = int(connection.pragma("user_version"))
            if 0 < found < SEALED and key_file(path).exists():
                migrate(connection, found)
            elif found != VERSION:
                raise StoreRefused(path, "it is of another schema; open it once to bring it up to date")
            else:
                with suppress(StoreKeyMissing, StoreKeyWrong):
                    load_seal(path, connection, look=True)
                    raise StoreRefused(path, "its key is there, and fits; nothing was changed")
            replace_key(path, connection, now)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        keep_key(path, connection)


def _in_use(path: Path) -> StoreRefused:
    """The refusal of a store that is open elsewhere, with the processes that have it open."""
    with closing(files.connect(path, apsw.SQLITE_OPEN_READONLY)) as connection:
        owners = [owner_of(text) for (text,) in connection.execute("SELECT owner FROM writers ORDER BY instance")]
    living = ", ".join(owner.describe() for owner in owners if not is_gone(owner)) or "another process"
    return StoreRefused(path, f"{living} has it open and would go on with the old key; stop it, then run this again")
