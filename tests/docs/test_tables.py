"""Tables and numbers in the docs are those of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_args

import holdfast as hf
from holdfast.processes.tasks import RecoveryAction
from holdfast.store.sqlite.schema import VERSION
from holdfast.tools import TOOLKITS

ROOT = Path(__file__).parents[2]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def page(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_table_of_tool_options_has_every_keyword() -> None:
    table = page("docs/tools.md").split("## Options of a tool")[1].split("\n\n")[1]
    told = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert sorted(told) == sorted(inspect.signature(hf.tool).parameters)


def test_the_page_of_toolkits_has_every_toolkit_and_their_number() -> None:
    said = page("docs/toolkits.md")
    assert sorted(set(re.findall(r"^\| `hf\.tools\.(\w+)\(", said, re.MULTILINE))) == sorted(TOOLKITS)
    assert f"{WORDS[len(TOOLKITS)].capitalize()} toolkits" in said


def test_the_schema_is_named_as_it_is() -> None:
    assert f"schema {VERSION}, record format" in page("CHANGELOG.md")
    assert f"- Schema {VERSION}:" in page("CHANGELOG.md")
    assert f"**schema {VERSION}**" in page("docs/store.md")


def test_all_that_recover_tells_is_on_the_page_of_tasks() -> None:
    said = page("docs/tasks.md").split("`await runtime.recover()`")[1].split("\n\n")[0]
    assert [action for action in get_args(RecoveryAction) if f"`{action}`" not in said] == []


def test_the_files_that_the_page_of_the_architecture_names_are_there() -> None:
    source = ROOT / "src" / "holdfast"
    named = re.findall(r"(?<![\w/])[\w/]+\.py\b", page("docs/architecture.md"))
    missing = [name for name in named if not (ROOT / name).exists() and not any(source.glob(f"**/{name}"))]
    assert missing == []


def test_the_glossary_has_at_most_forty_words() -> None:
    rows = re.findall(r"^\| ([\w ,]+) \|", page("docs/architecture.md").split("## Glossary")[1], re.MULTILINE)
    assert sum(len(row.split(", ")) for row in rows if row != "word") <= 40
