"""`holdfast show --history`, `--context`, `--find`: what was said in a session, and what the model sees of it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.cli.failures import CallInvalid
from holdfast.cli.sessions import find, looking
from holdfast.cli.terminal import stdout
from holdfast.turns.telling import speaker, speaks_of, words_of

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.cli.terminal import Terminal
    from holdfast.messages import Message

MOST: Final = 4_000
"""Characters of one message that are shown; --json has all of it."""


async def conversation(path: Path, given: str, *, context: bool, words: str | None, as_json: bool) -> int:
    """Show the messages of a session: all of them, or those that the model sees; those with some words alone."""
    async with looking(path) as runtime:
        target = await find(runtime.store, given)
        if target.turn is not None:
            message = "messages are those of a whole session: leave the turn out"
            raise CallInvalid(message)
        session = runtime.session(target.id)
        said = await (session.context() if context else session.history())
    found = [message for message in said if not words or speaks_of(message, words)]
    out = stdout()
    if as_json:
        out.line(msgspec.json.encode(found).decode())
        return 0
    for message in found:
        out.write("".join(f"{line}\n" for line in _lines(out, message)))
    if not found:
        out.line("nothing was said" if words is None else "nobody said that")
    return 0


def _lines(out: Terminal, message: Message) -> list[str]:
    words = words_of(message)
    shown = [f"  | {line}" for line in out.clean(words[:MOST]).splitlines()]
    if len(words) > MOST:
        shown.append(f"  ... {len(words) - MOST:,} more characters")
    return [f"{out.paint(speaker(message), 'bold')}  {message.id}", *shown]
