"""Every provider takes the schemas of the tools that come with Holdfast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jsonschema_rs
import pytest
from tests.unit.tools.test_tool_schemas import DIALECTS, NAME, TYPES, WORDS, nodes, on_the_wire

import holdfast as hf
from holdfast.toolkits.shell import sandbox_problem

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.tools import AnyTool


@pytest.fixture
def families(tmp_path: Path) -> tuple[AnyTool, ...]:
    shell = hf.tools.shell(tmp_path, unsafe=sandbox_problem() is not None)
    return hf.toolset(
        hf.tools.files(tmp_path),
        shell,
        hf.tools.web(),
        hf.tools.memory(lambda ctx: ctx.session),
        hf.tools.tasks(),
        hf.tools.timers(),
    ).tools


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_sends_the_tools_of_all_families(dialect: str, families: tuple[AnyTool, ...]) -> None:
    sent = on_the_wire(dialect, *families)
    assert len(sent) == len(families)
    for schema in sent:
        assert schema["type"] == "object"
        for node in nodes(schema):
            assert node.keys() <= WORDS
            assert node["type"] in TYPES
            assert node.get("additionalProperties", False) is False
            assert all(NAME.fullmatch(name) for name in node.get("properties", {}))
            assert all(isinstance(choice, str) and choice for choice in node.get("enum", ()))


def test_every_tool_and_every_parameter_of_the_families_is_described(families: tuple[AnyTool, ...]) -> None:
    for made in families:
        assert made.description, made.name
        for name, parameter in made.parameters.get("properties", {}).items():
            assert parameter.get("description"), f"{made.name}({name})"


def test_every_schema_of_the_families_is_valid(families: tuple[AnyTool, ...]) -> None:
    for made in families:
        jsonschema_rs.validator_for(made.parameters)


def test_no_two_tools_of_the_families_have_one_name(families: tuple[AnyTool, ...]) -> None:
    assert len({made.name for made in families}) == len(families)
