"""The table in docs/models.md is the table in the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from holdfast.models.endpoints import ENDPOINTS

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (`[^|]+) \| (\w+) \| ([^|]+) \|$", re.MULTILINE)
WORD = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """What the page says about one name."""

    dialect: str
    keys: tuple[str, ...]
    needed: bool


def _table() -> dict[str, Row]:
    section = PAGE.partition("## Names and keys\n")[2].partition("\n## ")[0]
    return {
        name: Row(dialect, tuple(WORD.findall(keys)), needed="not needed" not in keys)
        for names, dialect, keys in ROW.findall(section)
        for name in WORD.findall(names)
    }


def _known() -> dict[str, Row]:
    return {name: Row(place.dialect, place.keys, needed=place.auth != "none") for name, place in ENDPOINTS.items()}


def test_the_table_of_names_has_every_endpoint_and_no_other() -> None:
    assert set(_table()) == set(ENDPOINTS)


def test_the_table_of_names_says_what_is_known_of_each() -> None:
    assert _table() == _known()


def test_every_variable_that_holds_an_address_is_on_the_page() -> None:
    variables = {variable for known in ENDPOINTS.values() for variable in known.variables}
    assert not {variable for variable in variables if f"`{variable}`" not in PAGE}
