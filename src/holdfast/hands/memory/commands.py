"""The commands of the memory tool, carried out on the memory of one scope by one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import MemoryConflict
from holdfast.hands.files.edits import Refused
from holdfast.hands.memory.edits import inserted, read_range, replaced
from holdfast.hands.memory.errors import (
    EditRefused,
    FileExists,
    MemoryChanged,
    NothingThere,
    OutcomeUnclear,
    PathInvalid,
)
from holdfast.hands.memory.paths import ROOT, Place, path_of, read_file_path, read_path
from holdfast.hands.memory.recalled import shown_entry, shown_list
from holdfast.tools import NotDone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.memory import Memory
    from holdfast.store import MemoryChange, Remembered

MAX_LISTED: Final = 500
"""How many files one list shows."""


class Commands:
    """What one call does. `by` names the call, so that its changes can be found again after a crash."""

    def __init__(self, memory: Memory, by: str) -> None:
        self._memory = memory.written_by(by)
        self._by = by

    async def view(self, path: str, view_range: Sequence[int] | None) -> str:
        """A file with numbered lines, or the files in a folder."""
        place = read_path(path)
        if not place.is_folder:
            entry = await self._memory.get(place.key)
            if entry is not None:
                wanted = read_range(view_range)
                if isinstance(wanted, Refused):
                    raise EditRefused(path, wanted.reason)
                count = entry.value.count("\n") + 1
                if wanted[0] > count:
                    raise EditRefused(path, f"view_range begins at line {wanted[0]:,}, and there are {count:,}")
                return shown_entry(entry, *wanted)
        if place.is_file:
            raise NothingThere(path)
        return await self._list(path, place)

    async def _list(self, path: str, place: Place) -> str:
        shown: list[Remembered] = []
        count = 0
        damaged: list[str] = []
        async for entry in self._memory.entries(place.prefix, damaged=damaged.append):
            count += 1
            shown += [entry] if count <= MAX_LISTED else []
        if not count and not damaged and place.key:
            raise NothingThere(path)
        listed = shown_list(path.rstrip("/"), shown, count - len(shown))
        told = [f"{path_of(key)} is damaged and can't be read." for key in damaged[:MAX_LISTED]]
        return "\n".join([listed, *told])

    async def create(self, path: str, text: str) -> str:
        """Make a file."""
        key = read_file_path(path)
        try:
            await self._memory.put(key, text, expected=0)
        except MemoryConflict:
            raise FileExists(path_of(key)) from None
        return _created(key)

    async def str_replace(self, path: str, old: str | None, new: str | None) -> str:
        """Replace a piece of a file."""
        entry = await self._entry(path)
        return await self._rewrite(entry, replaced(entry.value, old, new))

    async def insert(self, path: str, line: int | None, text: str | None) -> str:
        """Add lines to a file."""
        entry = await self._entry(path)
        return await self._rewrite(entry, inserted(entry.value, line, text))

    async def delete(self, path: str) -> str:
        """Remove a file, or all files in a folder."""
        place = read_path(path)
        if not place.is_folder and await self._memory.delete(place.key) is not None:
            return _deleted(path_of(place.key))
        if place.is_file:
            raise NothingThere(path)
        if not place.key:
            raise PathInvalid(path, f"'{ROOT}' itself can't be deleted; name a file or a folder in it")
        damaged: list[str] = []
        sound = [entry.key async for entry in self._memory.entries(place.prefix, damaged=damaged.append)]
        keys = [*sound, *damaged]
        if not keys:
            raise NothingThere(path)
        for key in keys:
            await self._memory.delete(key)
        return _deleted(path)

    async def rename(self, old_path: str, new_path: str) -> str:
        """Give a file another name. What was written at the old one meanwhile stays there."""
        old, new = read_file_path(old_path), read_file_path(new_path)
        entry = await self._entry(old_path)
        if old == new:
            raise FileExists(path_of(new))
        try:
            copied = await self._memory.copy(entry, new)
        except MemoryConflict:
            raise FileExists(path_of(new)) from None
        try:
            await self._memory.delete(old, expected=entry.version)
        except MemoryConflict:
            await self._memory.delete(new, expected=copied.version)
            raise MemoryChanged(path_of(old)) from None
        return _renamed(old, new)

    async def _entry(self, path: str) -> Remembered:
        entry = await self._memory.get(read_file_path(path))
        if entry is None:
            raise NothingThere(path)
        return entry

    async def _rewrite(self, entry: Remembered, text: str | Refused) -> str:
        path = path_of(entry.key)
        if isinstance(text, Refused):
            raise EditRefused(path, text.reason)
        try:
            await self._memory.rewrite(entry, text)
        except MemoryConflict:
            raise MemoryChanged(path) from None
        return _edited(entry.key)

    # ---- after a crash ----

    async def find_out(self, command: str, path: str, old_path: str, new_path: str) -> str:
        """What an interrupted command would have said; `NotDone` if it was not carried out."""
        match command:
            case "create":
                return _created(await self._changed(read_file_path(path)))
            case "str_replace" | "insert":
                return _edited(await self._changed(read_file_path(path)))
            case "delete":
                return await self._find_deleted(path)
            case "rename":
                return await self._find_renamed(read_file_path(old_path), read_file_path(new_path))
            case _:
                raise NotDone  # it changes nothing

    async def _changed(self, key: str) -> str:
        await self._own_change(key)
        return key

    async def _own_change(self, key: str) -> MemoryChange:
        """The last change that this call made to an entry."""
        changes = await self._memory.history(key)
        for change in changes:
            if change.by == self._by:
                return change
        if changes and changes[-1].version > 1:
            raise OutcomeUnclear(path_of(key))  # the older changes are forgotten
        raise NotDone

    async def _find_deleted(self, path: str) -> str:
        place = read_path(path)
        if not place.is_folder:
            try:
                await self._own_change(place.key)
            except NotDone:
                if place.is_file:
                    raise
            else:
                return _deleted(path_of(place.key))
        if await self._memory.list(place.prefix, limit=1) or await self._memory.damaged(place.prefix):
            raise NotDone  # what is left is deleted now
        return _deleted(path)

    async def _find_renamed(self, old: str, new: str) -> str:
        change = await self._own_change(new)
        if change.change != "put":
            raise NotDone  # it was taken back
        entry = await self._memory.get(old)
        if entry is not None and entry.value == change.value:
            await self._memory.delete(old, expected=entry.version)
        return _renamed(old, new)


def _created(key: str) -> str:
    return f"Created {path_of(key)}."


def _edited(key: str) -> str:
    return f"Edited {path_of(key)}."


def _deleted(path: str) -> str:
    return f"Deleted {path}."


def _renamed(old: str, new: str) -> str:
    return f"Renamed {path_of(old)} to {path_of(new)}."
