"""File names of memory entries. Pure.

The file name is the key and `.md`. A key that is too long for file systems, or looks shortened itself, is shortened and
ends in ``~`` and the beginning of its digest, so that no two keys share a file.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.errors import InvalidId
from holdfast.names import MAX_NAME, check_name

if TYPE_CHECKING:
    from collections.abc import Container, Mapping


SUFFIX: Final = ".md"
OWN_PREFIX: Final = ".holdfast-"
"""Prefix of the mirror's own files. No key can begin with a dot."""
_CONFLICT: Final = ".conflict-"
_MAX_BYTES: Final = 240
_SHORTENED: Final = re.compile(r"~[0-9a-f]{16}\Z")


@dataclass(frozen=True, slots=True)
class StrayFile:
    """A file that belongs to no entry; the reason is empty for files that need no report."""

    reason: str


def file_name_of(name: str) -> str:
    """The file or folder name of a key or scope, without suffix."""
    if len(name.encode()) <= _MAX_BYTES and not _SHORTENED.search(name):
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:16]
    head = name.encode()[: _MAX_BYTES - 17].decode("utf-8", "ignore")
    return f"{head}~{mark}"


def parse_file_name(found: bytes, known: Mapping[str, str], suffix: str = SUFFIX) -> str | StrayFile:
    """The scope or key of a name on the disk. `known` has the names that were shortened."""
    if found.startswith(b".") or (suffix and (found.endswith(b"~") or found[:1] == found[-1:] == b"#")):
        return StrayFile("")  # a file of the mirror, or a backup of an editor
    try:
        name = found.decode()
    except UnicodeDecodeError:
        return StrayFile("its name is not UTF-8")
    if not name.endswith(suffix):
        return StrayFile(f"its name does not end in {suffix}")
    name = name.removesuffix(suffix)
    if name in known:
        return known[name]
    try:
        check_name("name", name)
    except InvalidId as error:
        return StrayFile(f"its name can't be a key: {error.reason}")
    return name if file_name_of(name) == name else StrayFile("its name looks shortened, and no entry has it")


def conflict_key(key: str, version: int, digest: str, taken: Container[str]) -> str:
    """A free key for a text that lost against `version` of an entry."""
    begin = f"{_CONFLICT}{version}"
    for end in (begin, f"{begin}-{digest[:8]}", f"{begin}-{digest[:32]}"):
        made = key[: MAX_NAME - len(end)].rstrip(" .") + end
        if made not in taken:
            break
    return made


def is_conflict_key(made: str, key: str) -> bool:
    """Whether `made` is a key for a text that lost against some version of the entry `key`."""
    head, mark, _ = made.rpartition(_CONFLICT)
    return bool(mark) and (head == key or (len(made) == MAX_NAME and key.startswith(head)))
