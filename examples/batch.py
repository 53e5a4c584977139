"""A batch of documents: an agent reads each of 500 invoices into a typed record, some at a time, within a budget.

Kill the program whenever you like and start it again: it goes on with the documents that are not done. What is recorded
is never asked, or paid for, again. At the end there is one JSON line for each document, and a summary.

    python examples/batch.py invoices --make 500        # writes sample invoices into the folder, then reads them
    python examples/batch.py invoices --budget 2 --concurrency 40
    python examples/batch.py invoices --retries 5       # tries again what failed
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

import holdfast as hf
from holdfast.testing import ScriptedModel, delayed, text


class Invoice(BaseModel):
    """The record that is made of a document."""

    number: str
    customer: str
    cents: int


def clerk(model: hf.Model | str, budget: float) -> hf.Agent[object, Invoice]:
    """The agent that reads the documents. All of them together may cost `budget` dollars."""
    return hf.Agent(
        "clerk",
        model=model,
        output=Invoice,
        instructions="Read this invoice. If you can't read the total, say so instead of guessing.",
        limits=hf.Limits(steps=5, repairs=1, total=hf.Budget(cost_usd=budget)),
    )


async def extract(
    runtime: hf.Runtime, agent: hf.Agent[object, Invoice], name: str, document: str, *, retries: int, budget: float
) -> hf.TurnOutcome[Invoice]:
    """Read one document, however often this program is started: the same key is the same turn."""
    version = hashlib.sha256(f"{name}\n{document}".encode()).hexdigest()[:16]  # a corrected document is another one
    session = runtime.session(f"document-{version}", agent=agent, metadata={"document": name})
    turn = await session.send(document, key="extract")
    turn = await session.last_turn() or turn  # the newest try, if an earlier start had to try again
    outcome = await turn.outcome()
    for _ in range(retries):
        more_money = outcome.code == "total_cost_usd" and (outcome.allowed or 0) < budget  # than at an earlier start
        if outcome.ok or (outcome.status == "limit" and not more_money):
            break
        turn = await turn.retry()
        outcome = await turn.outcome()
    return outcome


async def read_all(
    options: argparse.Namespace, documents: dict[str, str]
) -> tuple[dict[str, hf.TurnOutcome[Invoice]], float | None]:
    """Read all documents, and show how far the work is; the outcomes, and the cost of all starts together."""
    agent = clerk(options.model or scripted(options.folder / "bill.log"), options.budget)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = Console(stderr=True)
    outcomes: dict[str, hf.TurnOutcome[Invoice]] = {}
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("reading", total=len(documents))

        async def read(name: str, document: str) -> None:
            outcomes[name] = await extract(
                runtime, agent, name, document, retries=options.retries, budget=options.budget
            )
            failed = sum(not outcome.ok for outcome in outcomes.values())
            progress.update(bar, advance=1, description=f"reading, {failed} failed" if failed else "reading")

        async with hf.open(options.store, agents=[agent], concurrency=options.concurrency, prices=PRICES) as runtime:
            async with asyncio.TaskGroup() as group:
                for name, document in documents.items():
                    group.create_task(read(name, document))
            cost = (await runtime.spent(agent)).cost
    return dict(sorted(outcomes.items())), cost


def write_results(path: Path, outcomes: dict[str, hf.TurnOutcome[Invoice]]) -> None:
    """Write one JSON line for each document; a reader sees the old file or the new one."""
    new = path.with_suffix(".new")
    new.write_text("".join(json.dumps(describe(name, each)) + "\n" for name, each in outcomes.items()))
    new.replace(path)


def describe(name: str, outcome: hf.TurnOutcome[Invoice]) -> dict[str, Any]:
    """The line of a document."""
    if outcome.value is not None:
        return {"document": name, "status": outcome.status, **outcome.value.model_dump()}
    reason = outcome.text or outcome.message  # what the model said, if it said something that does not fit
    return {"document": name, "status": outcome.status, "code": outcome.code, "reason": reason}


def print_summary(outcomes: dict[str, hf.TurnOutcome[Invoice]], cost: float | None, results: Path) -> None:
    """Print what was read, what was not, and what it cost."""
    console = Console()
    failed = {name: outcome for name, outcome in outcomes.items() if not outcome.ok}
    if failed:
        table = Table(Column("document", no_wrap=True), Column("code", no_wrap=True), "reason", title="not read")
        for name, outcome in list(failed.items())[:20]:
            table.add_row(escape(name), outcome.code, escape(describe(name, outcome)["reason"][:200]))
        console.print(table)
        more = f"{len(failed) - 20} more are in {results}. " if len(failed) > 20 else ""
        console.print(f"{more}Correct the documents, or start again, with a larger --budget if it is used up.")
    money = "at an unknown cost" if cost is None else f"for ${cost:.4f}"
    console.print(f"{len(outcomes) - len(failed)} of {len(outcomes)} documents read {money}: {results}")


# ---- a model that needs no key, and documents for it -----------------------------------------------------------------

PRICES = {"scripted:clerk": hf.Price(input=1, output=5)}  # US dollars for a million tokens; real models have theirs


def scripted(bill: Path) -> ScriptedModel:
    """A model that finds the fields by a pattern, and is overloaded now and then. It notes each answer in a bill."""

    def read(request: hf.ModelRequest) -> Any:  # what a script may say
        if random.random() < 0.02:
            return delayed(0.05, hf.ModelError("try again later", kind="overloaded"))
        document = next(message.text for message in request.messages if isinstance(message, hf.UserMessage))
        found = re.search(r"Invoice (\S+)\nfor (.+)\n(?:.*\n)*total EUR ([\d.]+)", document)
        if found is None:
            return text("I can't read the total.")
        number, customer, total = found.groups()
        with bill.open("a", encoding="utf-8") as lines:
            lines.write(f"{number} {os.getpid()}\n")
        return text(json.dumps({"number": number, "customer": customer, "cents": round(float(total) * 100)}))

    return ScriptedModel(lambda _: delayed(random.uniform(0.02, 0.2), read), name="scripted:clerk")


def make_documents(folder: Path, number: int) -> None:
    """Write sample invoices; of every hundredth, the total can't be read."""
    folder.mkdir(exist_ok=True)
    for n in range(1, number + 1):
        total = "??.??" if n % 100 == 0 else f"{n * 7 % 400 + 12}.{n % 90 + 10}"
        words = f"Invoice 2026-{n:04}\nfor customer {n * 13 % 97}\n{n % 9 + 1} x book\ntotal EUR {total}\n"
        (folder / f"{n:04}.txt").write_text(words, encoding="utf-8")


def main() -> int:
    """Parse the arguments, read all documents; 1 if some could not be read."""
    parser = argparse.ArgumentParser(description="Read a folder of invoices into records. Kill it, and start it again.")
    parser.add_argument("folder", type=Path, help="the folder with the documents, *.txt")
    parser.add_argument("--make", type=int, metavar="N", help="write N sample invoices into the folder first")
    parser.add_argument("--store", type=Path, help="the store (batch.db in the folder)")
    parser.add_argument("--results", type=Path, help="the JSON lines to write (results.jsonl in the folder)")
    parser.add_argument("--concurrency", type=int, default=20, help="documents at the same time")
    parser.add_argument("--retries", type=int, default=2, help="how often this start tries again what failed")
    parser.add_argument("--budget", type=float, default=1.0, help="dollars for all documents, over all starts")
    parser.add_argument("--model", help="provider:name of a real model, instead of the scripted one")
    options = parser.parse_args()
    options.store = options.store or options.folder / "batch.db"
    options.results = options.results or options.folder / "results.jsonl"
    try:
        if options.make:
            make_documents(options.folder, options.make)
        paths = sorted(options.folder.glob("*.txt"))
        if not paths:
            print(f"there are no documents (*.txt) in {options.folder}; --make 500 writes some", file=sys.stderr)
            return 2
        documents = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in paths}
        outcomes, cost = asyncio.run(read_all(options, documents))
        write_results(options.results, outcomes)
    except (hf.UsageError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; start again to go on", file=sys.stderr)
        return 130
    print_summary(outcomes, cost, options.results)
    return 0 if all(outcome.ok for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
