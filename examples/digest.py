"""A nightly digest: at six it fetches feeds, an agent writes, an editor answers or does not, and it is published once.

Kill it at any moment and start it again: what was fetched and written is not fetched and written again, an answer is
not lost, and no digest is published twice.

    python examples/digest.py desk                       # serves; makes the folder with two sample feeds
    python examples/digest.py desk fire                  # now, not at six
    python examples/digest.py desk answer 2026-11-19 publish
    python examples/digest.py desk answer 2026-11-19 revise "Shorter, please."
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import aiohttp

import holdfast as hf
from holdfast.testing import ScriptedModel, delayed, text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

DIGEST_TIME = "0 6 * * *"
PATIENCE = timedelta(hours=3)
REVISIONS = 3
LONGEST_FEED = 1_000_000


# ---- what the digest works with --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """One item of a feed."""

    title: str
    url: str


@dataclass(frozen=True)
class Answer:
    """What the editor says about a draft."""

    verdict: Literal["publish", "revise", "drop"]
    note: str = ""


@dataclass(frozen=True)
class Desk:
    """The folder of the digest and an HTTP client: the dependencies of the process."""

    folder: Path
    http: aiohttp.ClientSession

    def sources(self) -> list[str]:
        """The feeds: addresses, or files in the folder, one to a line."""
        return (self.folder / "feeds.txt").read_text(encoding="utf-8").split()

    async def fetch(self, source: str) -> list[Item]:
        """Read a feed (https://jsonfeed.org)."""
        if source.startswith(("http://", "https://")):
            async with self.http.get(source, raise_for_status=True) as reply:
                body = b""
                async for chunk in reply.content.iter_any():
                    body += chunk
                    if len(body) > LONGEST_FEED:
                        raise ValueError("the feed is too long")
        else:
            body = await asyncio.to_thread((self.folder / source).read_bytes)
        return [Item(str(item["title"]), str(item["url"])) for item in json.loads(body)["items"][:20]]

    def show_draft(self, day: str, draft: str, key: str) -> None:
        """Put a draft where the editor finds it, with the key that answers this draft and no other."""
        path = self.folder / "drafts" / f"{day}.md"
        write_whole(path, f"{draft}\n\n[key]: {key}\n")
        print(f"{path} waits for its editor: publish, revise NOTE, or drop", flush=True)

    def publish(self, day: str, words: str) -> str:
        """Publish under a name that is given once: however often this step is interrupted, readers see one digest."""
        path = self.folder / "published" / f"{day}.md"
        if not write_whole(path, f"{words}\n", replace=False) and path.read_text(encoding="utf-8") != f"{words}\n":
            return f"there was one already: {path}"
        print(f"published {path}", flush=True)
        return f"published: {path}"


def write_whole(path: Path, words: str, *, replace: bool = True) -> bool:
    """Write a file so that readers see all of it or nothing; False if it is there and must not be replaced."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(words, encoding="utf-8")
    try:
        new.replace(path) if replace else path.hardlink_to(new)
    except FileExistsError:
        return False
    finally:
        new.unlink(missing_ok=True)
    return True


@asynccontextmanager
async def open_desk(folder: Path) -> AsyncGenerator[Desk]:
    """The desk, with connections as long as the runtime is open."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
        yield Desk(folder, http)


# ---- the night -------------------------------------------------------------------------------------------------------


@hf.process
async def digest(ctx: hf.ProcessContext[Desk], day: str) -> str:
    """One digest, from the feeds to the readers."""
    desk = ctx.deps

    async def fetch(source: str) -> str:
        try:
            items = await ctx.step("fetch", desk.fetch, source)
        except hf.EffectFailed as error:  # one feed that is down does not stop the digest
            return f"- {source} could not be read: {error.message}"
        return "\n".join(f"- {item.title} {item.url}" for item in items)

    sources = await ctx.step("sources", desk.sources)
    news = "\n".join(await ctx.gather(*map(fetch, sources)))
    request = f"Write the digest of {day} from these items:\n{news}"
    for _ in range(REVISIONS):
        draft: str = await ctx.run_agent("writer", request, session=f"digest-{day}-{ctx.idempotency_key[:8]}")
        editor = await ctx.defer(timeout=PATIENCE)
        await ctx.step("show_draft", desk.show_draft, day, draft, editor.key)
        try:
            answer: Answer = await editor.answer(returns=Answer)
        except hf.WaitExpired:
            return await ctx.step("publish", desk.publish, day, f"{draft}\n\n(No editor has seen this digest.)")
        if answer.verdict == "publish":
            return await ctx.step("publish", desk.publish, day, draft)
        if answer.verdict == "drop":
            break
        request = f"The editor says: {answer.note}"
    return "dropped"


def writer(model: hf.Model | str) -> hf.Agent[object, str]:
    """The agent that writes. It reads what strangers wrote, so it has no tools."""
    instructions = "You write a short digest for engineers. Use only the items that you are given; keep their links."
    return hf.Agent("writer", model=model, instructions=instructions)


def scripted() -> ScriptedModel:
    """A writer that needs no key: it lists the items, and repeats what the editor says."""

    def write(request: hf.ModelRequest) -> hf.Text:
        first, *_, last = [message.text for message in request.messages if isinstance(message, hf.UserMessage)] * 2
        items = [line.removeprefix("- ") for line in first.splitlines() if line.startswith("- ")]
        remark = f"\n\nRevised: {last.partition(': ')[2]}" if last != first else ""
        return text("\n".join(f"* {item}" for item in items) + remark)

    return ScriptedModel(lambda _: delayed(0.2, write), name="scripted:writer")


# ---- the program -----------------------------------------------------------------------------------------------------


def make_desk(folder: Path) -> None:
    """Make the folder with two sample feeds, if it has none."""
    folder.mkdir(exist_ok=True)
    if (folder / "feeds.txt").exists():
        return
    for name, titles in {"databases": ["WAL explained", "B-trees"], "python": ["Free threading", "JIT"]}.items():
        items = [{"title": title, "url": f"https://example.org/{name}/{n}"} for n, title in enumerate(titles)]
        (folder / f"{name}.json").write_text(json.dumps({"title": name, "items": items}), encoding="utf-8")
    (folder / "feeds.txt").write_text("databases.json\npython.json\n", encoding="utf-8")


async def serve(folder: Path, model: hf.Model | str, zone: str) -> None:
    """Make a digest every night, and go on with what was interrupted, until stopped."""
    make_desk(folder)
    desk = partial(open_desk, folder)
    async with hf.open(folder / "digest.db", agents=[writer(model)], processes=[digest], deps=desk) as runtime:
        await runtime.every("nightly", hf.cron(DIGEST_TIME, tz=zone), digest, day="{date}")
        print(f"every night at six in {zone}; Ctrl-C stops", flush=True)
        await runtime.serve()


async def fire(folder: Path, key: str | None) -> None:
    """Start a digest now. The process that serves makes it."""
    async with hf.open(folder / "digest.db", drive=False) as runtime:
        print(await runtime.triggers.fire("nightly", key=key))


async def resolve(folder: Path, day: str, answer: Answer) -> None:
    """Answer the draft of a day. The first answer counts."""
    draft = await asyncio.to_thread((folder / "drafts" / f"{day}.md").read_text, encoding="utf-8")
    async with hf.open(folder / "digest.db", drive=False) as runtime:
        settlement = await runtime.resolve(draft.rpartition("[key]: ")[2].strip(), asdict(answer))
        print(answer.verdict if settlement.won else f"too late: it is {settlement.wait.state}")


def main() -> int:
    """Parse the arguments, and serve, fire or answer."""
    parser = argparse.ArgumentParser(description="A digest every night. Kill it, and start it again.")
    parser.add_argument("folder", type=Path, help="the folder with feeds.txt, drafts, published digests and the store")
    parser.add_argument("--zone", default="Europe/Rome", help="the time zone in which it is six")
    parser.add_argument("--model", help="provider:name of a real model, instead of the scripted one")
    commands = parser.add_subparsers(dest="command", help="without one: serve, a digest every night")
    firing = commands.add_parser("fire", help="make one now")
    firing.add_argument("--key", help="the same key again starts nothing")
    answering = commands.add_parser("answer", help="answer a draft")
    answering.add_argument("day", help="the day of the draft, such as 2026-11-19")
    answering.add_argument("verdict", choices=["publish", "revise", "drop"])
    answering.add_argument("note", nargs="?", default="", help="what to change")
    options = parser.parse_args()
    try:
        match options.command:
            case "fire":
                asyncio.run(fire(options.folder, options.key))
            case "answer":
                asyncio.run(resolve(options.folder, options.day, Answer(options.verdict, options.note)))
            case _:
                asyncio.run(serve(options.folder, options.model or scripted(), options.zone))
    except (hf.UsageError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
