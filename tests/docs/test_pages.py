"""Every example in the documentation runs, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.every import every
from tests.programs import Program, run

if TYPE_CHECKING:
    from tests.programs import Programs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTS = re.compile(r"# -> (.*)")
COMMAND = re.compile(r"^ *holdfast (\w+)(.*)$", re.MULTILINE)


def _examples() -> list[tuple[str, str]]:
    return [
        (f"{page.name}#{number}", match.group(1))
        for page in PAGES
        for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8")), 1)
    ]


def _run(programs: Programs, script: Path) -> list[str]:
    done = run(programs, Program(script.name, (), script.parent))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("name", "code"), _examples(), ids=lambda value: value if len(value) < 40 else "")
def test_a_documented_example_runs_as_it_stands_and_again_on_the_same_store(
    name: str, code: str, tmp_path: Path, programs: Programs
) -> None:
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    said = PRINTS.findall(code)
    first, second = _run(programs, script), _run(programs, script)
    if said:
        assert first == said
        assert second == said


def test_there_are_examples() -> None:
    assert any(name.startswith("README") for name, _ in _examples())
    assert sum(name.startswith("tutorial") for name, _ in _examples()) >= 12


def _commands() -> list[str]:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return sorted({found[0] for found in COMMAND.findall(pages)})


@pytest.mark.parametrize("command", _commands())
def test_a_documented_command_exists(command: str, tmp_path: Path, programs: Programs) -> None:
    done = run(programs, Program("holdfast", (command, "--help"), tmp_path))
    assert done.returncode == 0, done.stderr


def test_every_test_file_that_the_promises_name_exists() -> None:
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@every("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_of_the_repository_works(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))  # code may look like a link
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
