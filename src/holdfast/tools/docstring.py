"""What a docstring says about a tool and its parameters. Pure."""

from __future__ import annotations

import re
from typing import Final

_ARGS: Final = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:(?:\s+(.*))?")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """What the tool does, and what its parameters mean: the text without its ``Args`` section, and that section."""
    lines = doc.splitlines()
    begin = next((n for n, line in enumerate(lines) if _ARGS.fullmatch(line)), None)
    if begin is None:
        return doc.strip(), {}
    end = next((n for n in range(begin + 1, len(lines)) if lines[n][:1].strip()), len(lines))
    before = "\n".join(lines[:begin]).rstrip()
    after = "\n".join(lines[end:]).strip()
    return "\n\n".join(part for part in (before, after) if part), _read_entries(lines[begin + 1 : end])


def _read_entries(lines: list[str]) -> dict[str, str]:
    described: dict[str, list[str]] = {}
    words: list[str] = []
    margin = next((_indent(line) for line in lines if line.strip()), 0)
    for line in lines:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) <= margin else None
        if entry:
            words = described[entry[1]] = [entry[2] or ""]
        else:
            words.append(line.strip())
    return {name: " ".join(" ".join(said).split()) for name, said in described.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
