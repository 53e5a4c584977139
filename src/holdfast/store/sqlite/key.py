"""The key of a store: in a file beside it, or in the environment. It seals what the store file alone must not decide.

The key file of a new store is made before the store is committed and gets its name afterwards. So a key file of that
name beside a store of an older schema tells that the store was sealed before, and was set back.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import apsw
from msgspec.structs import replace

from holdfast.crashpoints import crash_point
from holdfast.errors.store import StoreKeyMissing, StoreKeyWrong, StoreRefused
from holdfast.store.beside import key_file
from holdfast.store.seals import KEY_BYTES, Seal
from holdfast.store.sqlite.access import check_file, sync_directory
from holdfast.store.sqlite.rows import WAIT_COLUMNS, raw_wait, wait_crc
from holdfast.store.sqlite.rules import RuleQueries, RuleTable

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.store.sqlite.db import Db

ENVIRONMENT: Final = "HOLDFAST_STORE_KEY"
_AT_ONCE: Final = 1_000
_LONGEST: Final = 200
_REPLACED_BY: Final = "holdfast doctor --new-key"
_WAITS: Final = (
    f"SELECT w.journal, j.id, {', '.join(f'w.{name}' for name in WAIT_COLUMNS.split(', '))}"  # noqa: S608  constants
    " FROM waits w JOIN journals j ON j.no = w.journal WHERE (w.journal, w.name) > (?, ?)"
    " ORDER BY w.journal, w.name LIMIT ?"
)


def load_seal(path: Path, connection: Db, *, look: bool = False) -> tuple[Seal, bytes]:
    """The seal of the store at `path` and the key of its wait tokens. `StoreKeyMissing` or `StoreKeyWrong` without.

    With `look`, no file is touched.
    """
    store_id, check = _value(connection, "store_id"), _value(connection, "key_check")
    if not isinstance(store_id, bytes) or not isinstance(check, bytes):
        raise apsw.CorruptError("a value that every store has is missing")
    found = _from_environment(path)
    if found is not None:
        seal = Seal(found, store_id)
        if seal.check != check:
            raise StoreKeyWrong(path, f"the variable {ENVIRONMENT} has another key", "set the one it was made with")
        return seal, seal.token_key(_value(connection, "tokens"))
    named = key_file(path)
    for file in (named, _new(named)):
        found = _read(path, file)
        if found is None:
            continue
        seal = Seal(found, store_id)
        if seal.check == check:
            if file != named and not look:
                _name(file, named)  # whoever made it was killed before this
            return seal, seal.token_key(_value(connection, "tokens"))
    if named.exists():
        raise StoreKeyWrong(path, f"{named} is the key of another store", "put the key back that was beside this store")
    raise StoreKeyMissing(path, named)


def _value(connection: Db, key: str) -> Any:  # noqa: ANN401  a damaged file may give anything
    return connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).get


def make_seal(path: Path, connection: Db, found: int) -> None:
    """Give a store of schema `found` its key, and seal all that is in it; in the caller's transaction."""
    named = key_file(path)
    key = _from_environment(path)
    if key is None:
        key = _read(path, named)
        if key is not None and found:
            reason = f"its schema is version {found}, which has no key, but there is {named}: it was set back"
            raise StoreKeyWrong(
                path, reason, f"if you restored an older backup, take that file away: mv {named} {named}.away"
            )
        key = key or _made(path, _new(named))
    store_id = _value(connection, "store_id")
    seal = Seal(key, store_id)
    secret = _value(connection, "secret")
    if isinstance(secret, bytes) and len(secret) == KEY_BYTES:
        connection.execute("INSERT INTO meta (key, value) VALUES ('tokens', ?)", (seal.cover(secret),))
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("DELETE FROM meta WHERE key = 'secret'")
    connection.execute("INSERT INTO meta (key, value) VALUES ('key_check', ?)", (seal.check,))
    _seal_rows(connection, seal)


def keep_key(path: Path) -> None:
    """The store is committed: a key that was made for it gets its name."""
    named = key_file(path)
    if not _new(named).exists():
        return
    if named.exists():
        named.rename(named.with_name(f"{named.name}.away"))
    _name(_new(named), named)


def replace_key(path: Path, connection: Db, now: int) -> None:
    """Give a store whose key is lost a new one; in the caller's transaction, with `keep_key` after it.

    A key file that is there is of another store, and is put aside.

    Nobody can tell any more whether another program has written answers and rules. So answers that were not used yet
    are dropped and their questions are open again, stored rules are taken out of force, and tokens are worth nothing.
    """
    key = _from_environment(path)
    if key is None:
        key = _made(path, _new(key_file(path)))
    seal = Seal(key, _value(connection, "store_id"))
    connection.execute("DELETE FROM meta WHERE key IN ('tokens', 'key_check')")
    connection.execute("INSERT INTO meta (key, value) VALUES ('key_check', ?)", (seal.check,))
    _seal_rows(connection, seal, now)


def _seal_rows(connection: Db, seal: Seal, replaced: int | None = None) -> None:
    """Seal all rows that match their checksum. What does not match stays without a seal, and is not trusted.

    `replaced` is when the key was replaced, if it was: then answers and rules don't count any more.
    """
    last: tuple[int, str] = (0, "")
    while rows := connection.execute(_WAITS, (*last, _AT_ONCE)).fetchall():
        sealed: list[tuple[Any, ...]] = []
        for number, journal, *found in rows:
            wait, sound = raw_wait(journal, tuple(found))
            if sound:
                if replaced is not None and wait.kind and wait.state == "resolved" and not wait.consumed:
                    wait = replace(wait, state="open", payload=None)
                sealed.append((wait.state, wait.payload, wait_crc(wait), seal.of_wait(wait), number, wait.name))
        connection.executemany(
            "UPDATE waits SET state = ?, payload = ?, crc = ?, mac = ? WHERE journal = ? AND name = ?", sealed
        )
        last = rows[-1][0], rows[-1][2]
    rules = RuleTable(connection, connection.execute, seal)
    for rule, sound in RuleQueries(connection, 1).raw():
        if sound and replaced is not None and rule.removed_at is None:
            rules.remove(replace(rule, removed_by=_REPLACED_BY, removed_at=replaced))
        elif sound:
            rules.seal(rule)


# ---- the file --------------------------------------------------------------------------------------------------------


def _from_environment(path: Path) -> bytes | None:
    text = os.environ.get(ENVIRONMENT, "")
    if not text:
        return None
    return _key_of(path, text, f"the variable {ENVIRONMENT}")


def _key_of(path: Path, text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip()) if text.isascii() else b""
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StoreRefused(path, f"{where} holds no key: one is {KEY_BYTES * 2} hexadecimal digits")
    return key


def _new(named: Path) -> Path:
    return named.with_name(f"{named.name}.new")


def _read(path: Path, file: Path) -> bytes | None:
    """The key in a file; None when there is no such file. One that others can get at is refused."""
    check_file(path, file)
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with open(handle, encoding="ascii", errors="replace") as opened:  # noqa: PTH123  it is open already
        return _key_of(path, opened.read(_LONGEST), f"the file {file}")


def _made(path: Path, file: Path) -> bytes:
    """A new key, on the disk before anything is sealed with it."""
    file.unlink(missing_ok=True)  # of a process that was killed; nothing was committed with it
    key = secrets.token_bytes(KEY_BYTES)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(handle, "w", encoding="ascii") as opened:  # noqa: PTH123  it is open already
        opened.write(f"{key.hex()}\n")
        opened.flush()
        os.fsync(opened.fileno())
    sync_directory(path.parent)
    crash_point("store.key_made")
    return key


def _name(file: Path, named: Path) -> None:
    with suppress(FileNotFoundError):  # another process has done it
        file.rename(named)
    sync_directory(named.parent)
    crash_point("store.key_named")
