"""Schemas that every provider takes. Pure.

Providers disagree about JSON schema, and one word that one of them does not know makes it refuse the whole request. So
what a model sees uses few words: one `type` for each place (none where anything is meant), closed objects, lists of
one kind of item, choices among texts, bounds. References are written out; what has no such form but can be said is
said in the description, where a model reads it. What the function accepts is not changed by this: arguments are checked
against its own types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from holdfast.tools.absent import Absent
from holdfast.tools.unions import ANYTHING, NoForm, joined

MAX_NODES: Final = 2_000
"""How many places a schema may have once its references are written out."""

_KEPT: Final = ("minimum", "maximum", "minItems", "maxItems")
_FORMATS: Final = frozenset(("date-time", "date", "time"))
_SILENT: Final = frozenset(
    ("title", "description", "default", "$defs", "$ref", "deprecated", "readOnly", "writeOnly", "discriminator", "type")
)
_SHAPES: Final = frozenset(
    (
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "anyOf",
        "oneOf",
        "allOf",
        "const",
        "enum",
    )
)
_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_LONGEST_WORDS: Final = 200
_KINDS: Final[dict[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Portable:
    """A schema as every provider takes it."""

    schema: dict[str, Any]
    absent: Absent | None
    """What has to be filled in before the function's types see it."""


def portable(schema: dict[str, Any]) -> Portable:
    """`schema` in the words that every provider takes; `NoForm` says which place has none, and why."""
    made, absent, _null = _Writer(schema.get("$defs", {})).written(schema, ())
    return Portable(made, absent)


class _Writer:
    """Writes one schema out, with its definitions."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._nodes = 0

    def written(self, given: object, inside: tuple[str, ...]) -> tuple[dict[str, Any], Absent | None, bool]:
        """One place: its schema, what may be absent in it, and whether it may be null. `inside`: definitions around."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise NoForm((), f"its schema has more than {MAX_NODES:,} places; use a smaller type")
        node, inside = self._resolved(_object(given), inside)
        kinds = node.get("type")
        if isinstance(kinds, list):
            node = {**node, "anyOf": [{**_typed(node), "type": kind} for kind in cast("list[str]", kinds)]}
        for union in ("anyOf", "oneOf"):
            if union in node:
                return self._union(node, node[union], inside)
        if node.get("type") == "null" or node.get("const", ...) is None:
            raise NoForm((), "it can only be null")
        return (*self._plain(node, inside), False)

    def _resolved(self, node: dict[str, Any], inside: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        while "$ref" in node or "allOf" in node:
            target = str(node.get("$ref", "")).removeprefix("#/$defs/")
            rest = {key: value for key, value in node.items() if key not in {"$ref", "allOf"}}
            if "allOf" in node:
                parts = cast("list[Any]", node["allOf"])
                if len(parts) != 1 or target:
                    raise NoForm((), "it must match several schemas at once, which not every provider takes")
                node = {**_object(parts[0]), **rest}
                continue
            if target in inside:
                raise NoForm((), f"{target} contains itself, and no schema without references can say that")
            if target not in self._definitions:
                raise NoForm((), f"its schema refers to {target!r}, which is not there")
            node = {**_object(self._definitions[target]), **rest}
            inside = _with(inside, target)
        return node, inside

    def _union(
        self, node: dict[str, Any], members: list[Any], inside: tuple[str, ...]
    ) -> tuple[dict[str, Any], Absent | None, bool]:
        found: list[tuple[dict[str, Any], Absent | None]] = []
        null = False
        for member in members:
            if _is_null(_object(member)):
                null = True
                continue
            made, absent, also = self.written(member, inside)
            null = null or also
            found.append((made, absent))
        if not found:
            raise NoForm((), "it can only be null")
        # What may be absent inside is known for sure only where there is one way to read it.
        absent = found[0][1] if len(found) == 1 else None
        made = joined([schema for schema, _ in found])
        return _described(made, node, []), absent, null

    def _plain(self, node: dict[str, Any], inside: tuple[str, ...]) -> tuple[dict[str, Any], Absent | None]:
        choices = [node["const"]] if "const" in node else node.get("enum")
        kind = node.get("type") or _kind_of(choices)
        if not isinstance(kind, str):
            return _described({}, node, [ANYTHING]), None
        made: dict[str, Any] = {"type": kind}
        words: list[str] = []
        if choices is not None:
            _choose(choices, made, words)
        absent = None
        if kind == "object":
            absent = self._into_object(node, made, words, inside)
        elif kind == "array":
            absent = self._into_array(node, made, inside)
        for key, value in node.items():
            _bound(key, value, made, words)
        return _described(made, node, words), absent

    def _into_object(
        self, node: dict[str, Any], made: dict[str, Any], words: list[str], inside: tuple[str, ...]
    ) -> Absent | None:
        properties = _object(node.get("properties"))
        if not properties and node.get("additionalProperties") is not False:
            return self._into_map(node, made, words, inside)
        required = set(cast("list[str]", node.get("required", [])))
        made["properties"] = {}
        missing: list[str] = []
        within: dict[str, Absent] = {}
        for name, schema in properties.items():
            if not _PROPERTY.fullmatch(name):
                raise NoForm((name,), "a name that models are given is 1 to 64 of a-z, A-Z, 0-9, '_', '.' and '-'")
            made["properties"][name], absent, null = self._at(name, schema, inside)
            if absent:
                within[name] = absent
            if null and name in required:
                missing.append(name)
        asked = [name for name in properties if name in required and name not in missing]
        if asked:
            made["required"] = asked
        made["additionalProperties"] = False
        return Absent(tuple(missing), within) if missing or within else None

    def _into_map(
        self, node: dict[str, Any], made: dict[str, Any], words: list[str], inside: tuple[str, ...]
    ) -> Absent | None:
        """An object with names of the model's own choice."""
        values = node.get("additionalProperties")
        patterns = _object(node.get("patternProperties"))
        if len(patterns) == 1 and not isinstance(values, dict):
            ((pattern, values),) = patterns.items()
            words.append(f"Names match {pattern}.")
        if not isinstance(values, dict) or not values:
            return None
        made["additionalProperties"], absent, _null = self._at("*", cast("dict[str, Any]", values), inside)
        return Absent((), {}, values=absent) if absent else None

    def _into_array(self, node: dict[str, Any], made: dict[str, Any], inside: tuple[str, ...]) -> Absent | None:
        items = node.get("items")
        if "prefixItems" in node:
            members = cast("list[Any]", node["prefixItems"])
            if items not in (None, False) or not members:
                raise NoForm((), "a tuple needs items of one kind; use a list, or a model with named fields")
            if any(member != members[0] for member in members):
                raise NoForm((), "a tuple of different kinds has no schema that every provider takes; use a model")
            items = members[0]
        made["items"], absent, _null = self._at("[]", _object(items), inside)
        return Absent((), {}, items=absent) if absent else None

    def _at(self, place: str, schema: object, inside: tuple[str, ...]) -> tuple[dict[str, Any], Absent | None, bool]:
        try:
            return self.written(schema, inside)
        except NoForm as error:
            raise NoForm((place, *error.place), error.reason) from None


def _choose(choices: list[Any], made: dict[str, Any], words: list[str]) -> None:
    """Choices among texts are taken everywhere, except for one that is empty; all others are told."""
    if made["type"] == "string" and all(choices):
        made["enum"] = choices
        return
    words.append(f"One of {_json(choices)}." if len(choices) > 1 else f"Always {_json(choices[0])}.")
    if made["type"] in {"integer", "number"}:
        made |= {"minimum": min(choices), "maximum": max(choices)}


def _bound(key: str, value: Any, made: dict[str, Any], words: list[str]) -> None:  # noqa: ANN401  any JSON value
    """What a word of a schema becomes: itself, another word, or a sentence."""
    whole = made["type"] == "integer" and type(value) is int
    if key in _KEPT:
        made[key] = value
    elif key == "exclusiveMinimum" and whole:
        made["minimum"] = value + 1
    elif key == "exclusiveMaximum" and whole:
        made["maximum"] = value - 1
    elif key == "format" and value in _FORMATS:
        made[key] = value
    elif key not in _SILENT and key not in _SHAPES and key != "patternProperties":
        words.append(_sentence(key, value))


def _sentence(key: str, value: Any) -> str:  # noqa: ANN401  any JSON value
    said = {
        "exclusiveMinimum": "More than {}.",
        "exclusiveMaximum": "Less than {}.",
        "multipleOf": "A multiple of {}.",
        "minLength": "At least {} characters.",
        "maxLength": "At most {} characters.",
        "minProperties": "At least {} entries.",
        "maxProperties": "At most {} entries.",
        "pattern": "Matches {}.",
        "format": "Format: {}.",
        "examples": "For example: {}.",
    }
    if key == "uniqueItems":
        return "No item twice." if value else ""
    text = value if isinstance(value, str) else _json(value)
    return said.get(key, f"{key}: {{}}.").format(text)


def _described(made: dict[str, Any], node: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """`made` with its description: what its author said, then what the schema can't say."""
    told = [str(node.get("description", "")).strip() or str(made.get("description", "")).strip(), *words]
    default = _json(node.get("default"))
    if default != "null":
        told.append(f"Default: {default}.")
    text = " ".join(part for part in [told[0], *(word for word in told[1:] if len(word) <= _LONGEST_WORDS)] if part)
    bare = {key: value for key, value in made.items() if key != "description"}
    return {**bare, "description": text} if text else bare


def _kind_of(choices: object) -> str | None:
    if not isinstance(choices, list) or not choices:
        return None
    kinds = {_KINDS.get(type(choice)) for choice in cast("list[object]", choices)}
    if kinds == {"integer", "number"}:
        return "number"
    if len(kinds) != 1:
        raise NoForm((), "its choices are of different types; use one type for all")
    return kinds.pop()


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return (*names, name)


def _is_null(node: dict[str, Any]) -> bool:
    return node.get("type") == "null" or ("const" in node and node["const"] is None)


def _typed(node: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in {"description", "default"}}


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _json(value: object) -> str:
    return _encode(value).decode()
