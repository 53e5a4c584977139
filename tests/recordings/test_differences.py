"""The table of differences between our requests and the recorded ones."""

from __future__ import annotations

from tests.recordings.conftest import table

from holdfast.models.endpoints import DIALECTS


def test_the_table_has_a_section_for_each_dialect() -> None:
    assert sorted(table()) == sorted(DIALECTS)


def test_each_row_of_the_table_says_where_and_why() -> None:
    bad = [name for rows in table().values() for name, row in rows.items() if not all(row.recordings) or not row.reason]
    assert bad == []
