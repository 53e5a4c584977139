"""What lies beside the file of a store."""

from __future__ import annotations

from pathlib import Path


def memory_folder(store: Path | str) -> Path:
    """Where the memory of the store in this file is mirrored."""
    path = Path(store)
    return path.with_name(f"{path.name}.memory")
