"""The process that matches regular expressions: `re` blocks every thread and can't be interrupted.

It reads texts from its standard input and answers on its standard output; it opens no file. It starts by its path in an
isolated interpreter, so it imports only the standard library.
"""

from __future__ import annotations

import json
import re
import sys
from typing import IO, Any


def find_lines(text: str, pattern: re.Pattern[str], *, context: int, room: int, chars: int) -> dict[str, Any]:
    """Up to `room` lines, matches with their context: number, True for a match, and the shown part."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    hits: dict[int, tuple[int, int]] = {}
    more = False
    for number, line in enumerate(lines):
        found = pattern.search(line.removesuffix("\r"))
        if found is None:
            continue
        if len(hits) >= room:
            more = True
            break
        hits[number] = found.span()
    around = {near for hit in hits for near in range(max(hit - context, 0), min(hit + context + 1, len(lines)))}
    shown = [
        [number + 1, number in hits, cut_line(lines[number].removesuffix("\r"), hits.get(number, (0, 0)), chars)]
        for number in sorted(around)
    ]
    return {"lines": shown, "hits": len(hits), "more": more}


def cut_line(line: str, span: tuple[int, int], chars: int) -> str:
    """The part of a long line around the match."""
    if len(line) <= chars:
        return line
    begin = max(min(span[0] - chars // 4, len(line) - chars), 0)
    return f"{'...' * (begin > 0)}{line[begin : begin + chars]}{'...' * (begin + chars < len(line))}"


def decode_utf8(data: bytes) -> str | None:
    """The text in these bytes; None if they are not text."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def compile_pattern(pattern: str, *, ignore_case: bool) -> re.Pattern[str] | str:
    """The pattern, or the reason why it is not valid."""
    try:
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        place = "" if error.pos is None else f" at character {error.pos + 1}"
        return f"{error.msg}{place}"
    except (RecursionError, OverflowError, ValueError) as error:
        return str(error) or "it is too complicated"


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer requests until the other side closes."""

    def answer(value: object) -> None:
        sink.write(json.dumps(value).encode() + b"\n")
        sink.flush()

    asked = json.loads(source.readline())
    import resource  # not on every system

    # If the parent dies during a match, no other process ends this one.
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (asked["memory"], asked["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pattern = compile_pattern(asked["pattern"], ignore_case=asked["ignore_case"])
    if isinstance(pattern, str):
        answer({"invalid": pattern})
        return
    answer({"ready": True})
    while header := source.readline():
        size, room = json.loads(header)
        try:
            text = decode_utf8(source.read(size))
            if text is None:
                answer({"text": False})
            else:
                answer(find_lines(text, pattern, context=asked["context"], room=room, chars=asked["chars"]))
        except MemoryError:
            answer({"memory": True})
            return


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
