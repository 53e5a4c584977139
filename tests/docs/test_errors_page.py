"""docs/errors.md lists every error of `hf.errors` under the party that can act."""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path
from string import Formatter
from typing import Final, get_args

from holdfast import errors

PAGE: Final = Path(__file__).parents[2] / "docs" / "errors.md"
UPDATE: Final = "HOLDFAST_UPDATE"
KINDS: Final = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)]


def _table(actor: str) -> str:
    rows = [
        f"| `{kind.__name__}` | {' '.join((kind.__doc__ or '').split())} |"
        for kind in sorted(KINDS, key=lambda kind: kind.__name__)
        if getattr(kind, "actor", "control") == actor
    ]
    return "\n".join(("| error | meaning |", "|---|---|", *rows))


def _page(text: str) -> str:
    for actor in (*get_args(errors.Actor), "control"):
        begin, end = f"<!-- {actor} -->\n", f"\n<!-- end of {actor} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{_table(actor)}{end}{after}"
    return text


def test_the_page_of_errors_is_the_one_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get(UPDATE):
        text = _page(text)
        PAGE.write_text(text, encoding="utf-8")
    assert text == _page(text), f"run this test with {UPDATE}=1, read the diff of docs/errors.md, and commit it"
    assert all(f"`{kind.__name__}`" in text for kind in KINDS)


def test_a_message_names_only_fields_of_its_error() -> None:
    templates = {kind: vars(kind)["_message"] for kind in KINDS if "_message" in vars(kind)}
    for kind, template in templates.items():
        named = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        assert named <= signature(kind).parameters.keys(), kind
    assert templates
