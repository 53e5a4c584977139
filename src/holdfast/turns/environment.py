"""The environment of a model call: model, instructions, tools, output type and settings.

The journal has it once for each change, as the outcome of a `sync_environment` effect below the first model call that
uses it. It holds for all later calls of the same agent until the next such record. If functions or tool providers
define the agent for each turn, the turn begins with the effect, right below its own name.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.effects.canonical import digest_of_bytes
from holdfast.messages import OutputSpec, Settings, ToolSpec
from holdfast.records import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.records import Record


MARK: Final = "/%environment-"
"""Separates the key of a model call from the number of an environment below it."""
INLINE: Final = 512
"""Largest environment inside a record, in bytes; larger ones are blobs."""


class Environment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Model, instructions, tools, the shape of the answer, settings."""

    model: str
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    output: OutputSpec | None = None
    settings: dict[str, Any] = {}
    definition: msgspec.Raw = ABSENT
    """Set at the start of a turn for which the agent was defined anew: see `runtime.definitions.Definition`."""

    def asked_settings(self) -> Settings:
        return msgspec.convert(self.settings, Settings)


decode_environment: Final = msgspec.json.Decoder(Environment).decode
encode_environment: Final = msgspec.json.Encoder(order="sorted").encode


def environment_id(prefix: str, model: str) -> str:
    """The id of an environment of an agent."""
    return digest_of_bytes("environment", f"{prefix}\n{model}".encode())


def is_environment(record: Record) -> bool:
    """True if `record` holds an environment."""
    return MARK in getattr(record, "key", "")


def prefix_of(body: bytes) -> str:
    """The prefix of the digests of requests, in the request of a `sync_environment` effect."""
    return msgspec.json.decode(body, type=dict[str, str])["prefix"]


def environment_changes(before: Environment, after: Environment) -> list[str]:
    """The differences between two environments as diff lines."""
    lines = list(_changed("model", before.model, after.model))
    lines += _changed("instructions", before.instructions, after.instructions)
    old, new = ({tool.name: tool for tool in each.tools} for each in (before, after))
    lines += [f"- tool {name}" for name in old if name not in new]
    lines += [f"+ tool {name}" for name in new if name not in old]
    for name in old:
        if name in new:
            lines += _changed(f"tool {name}, description", old[name].description, new[name].description)
            parameters = [_laid_out(tool.parameters) for tool in (old[name], new[name])]
            lines += _changed(f"tool {name}, parameters", *parameters)
    lines += _changed("output", _laid_out(before.output), _laid_out(after.output))
    lines += _changed("settings", _laid_out(before.settings), _laid_out(after.settings))
    if not lines and [*old] != [*new]:
        lines.append("tools: the same, in another order")
    return lines


def describe_environment(found: Environment) -> str:
    """An environment in one line."""
    tools = f"{len(found.tools)} tool{'' if len(found.tools) == 1 else 's'}"
    return f"{found.model}, instructions of {len(found.instructions):,} characters, {tools}"


def _laid_out(value: object) -> str:
    return msgspec.json.format(encode_environment(value), indent=2).decode() if value else ""


def _changed(what: str, before: str, after: str) -> Iterator[str]:
    if before == after:
        return
    yield f"{what}:"
    for line in list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm=""))[2:]:
        yield f"  {line}"
