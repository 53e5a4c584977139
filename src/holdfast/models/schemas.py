"""Schemas of tools and answers, as far as providers enforce them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple, cast

from holdfast.models.json_values import as_dict, as_list, encode_json, is_dict, is_list


def schema_prompt(schema: Mapping[str, Any], instructions: str = "") -> str:
    """Ask in words, after the instructions, for an answer of a schema that the provider can't enforce."""
    shape = encode_json(schema).decode()
    begin = f"{instructions}\n\n" if instructions else ""
    return f"{begin}Answer with JSON and nothing else. It must match this JSON schema:\n{shape}"


# ---- strict schemas of OpenAI and others ----


class StrictSchemaRules(NamedTuple):
    """The rules of an API for strict schemas. It refuses a request that breaks them."""

    keywords: frozenset[str]
    formats: frozenset[str]
    depth: int
    properties: int


COMMON_STRICT_KEYWORDS: Final = frozenset(
    (
        *("type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs"),
        *("properties", "required", "additionalProperties", "items"),
    )
)
"""Accepted by every API that has strict schemas."""


def fits_strict(schema: Any, rules: StrictSchemaRules) -> bool:  # any JSON value
    """True if `schema` obeys the rules: closed objects, all properties required, known keywords only."""
    if as_dict(schema).get("type") != "object":
        return False
    properties = [0]
    return _obeys(schema, rules, 0, properties) and properties[0] <= rules.properties


def _obeys(node: Any, rules: StrictSchemaRules, depth: int, properties: list[int]) -> bool:
    if not is_dict(node) or depth > rules.depth:
        return False
    if "$ref" in node:
        return len(node) == 1 and str(node["$ref"]).startswith("#")
    types = {kind for kind in as_list(node.get("type")) or [node.get("type")] if isinstance(kind, str)}
    plain = node.keys() <= rules.keywords and ("format" not in node or str(node["format"]) in rules.formats)
    if not plain or not (types or "anyOf" in node):
        return False
    fields = as_dict(node.get("properties"))
    if "object" in types:  # it must have exactly the properties that it names, all of them required
        required, closed = node.get("required"), node.get("additionalProperties") is False
        if not closed or not is_list(required) or not is_dict(node.get("properties")):
            return False
        if sorted(map(str, required)) != sorted(fields):
            return False
    properties[0] += len(fields)
    inner = [(value, depth + 1) for value in fields.values()]
    inner += [(value, depth) for value in as_list(node.get("anyOf"))]
    inner += [(value, 1) for name in ("$defs", "definitions") for value in as_dict(node.get(name)).values()]
    inner += [(node.get("items"), depth + 1)] if "array" in types else []
    return all(_obeys(value, rules, level, properties) for value, level in inner)


# ---- choices as Google takes them ----


def with_bare_choices(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool with no description beside an ``anyOf``, but in its first member.

    Some APIs of Google refuse requests with anything beside it.
    """
    made = dict(schema)
    for name, value in schema.items():
        if name == "properties":
            made[name] = {key: with_bare_choices(part) for key, part in as_dict(value).items()}
        elif name in {"items", "additionalProperties"} and is_dict(value):
            made[name] = with_bare_choices(value)
        elif name == "anyOf":
            made[name] = [with_bare_choices(as_dict(member)) for member in as_list(value)]
    if made.keys() != {"anyOf", "description"} or not made["anyOf"]:
        return made
    first, *others = made["anyOf"]
    words = [str(part["description"]) for part in (made, first) if part.get("description")]
    return with_bare_choices({"anyOf": [{**first, "description": " ".join(words)}, *others]})


# ---- the subset that Anthropic enforces ----

_COPIED: Final = frozenset(("type", "title", "description", "enum", "const", "default", "required"))
_ANNOTATIONS: Final = frozenset(("$schema", "$id", "$comment", "examples", "deprecated", "readOnly", "writeOnly"))
_LISTS: Final = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_MAPS: Final = frozenset(("properties", "$defs", "definitions"))
FORMATS: Final = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
"""Formats of texts that are known everywhere."""
_UNSUPPORTED: Final = frozenset(
    ("patternProperties", "prefixItems", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties")
)


def narrow_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Translate a schema into the subset that the provider enforces; None if it does not fit.

    Bounds outside of the subset go into the description; Holdfast checks the answer anyway.
    """
    try:
        made = _narrow_node(schema)
    except (NotImplementedError, RecursionError):
        return None
    return None if made.get("type") != "object" or _is_circular(schema) else made


def _narrow_node(schema: Any) -> dict[str, Any]:  # any JSON value
    node = as_dict(schema)
    kinds = node.get("type")
    if is_list(kinds):
        return {"anyOf": [_narrow_node({**node, "type": kind}) for kind in kinds]}
    if not node.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"} or node.keys() & _UNSUPPORTED:
        raise NotImplementedError
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    made: dict[str, Any] = {}
    unenforced: dict[str, Any] = {}
    for key, value in node.items():
        is_format = key == "format" and isinstance(value, str) and value in {*FORMATS, "uri"}
        if key in _COPIED or is_format or (key == "minItems" and type(value) is int and value < 2):
            made[key] = value
        elif key in _MAPS:
            made[key] = {name: _narrow_node(one) for name, one in as_dict(value).items()}
        elif key in _LISTS:
            made[_LISTS[key]] = [_narrow_node(one) for one in cast("list[Any]", value)]
        elif key == "items":
            made[key] = _narrow_node(value)
        elif key == "additionalProperties":
            if value is not False:
                raise NotImplementedError
        elif key not in _ANNOTATIONS:
            unenforced[key] = value
    kind = made.get("type")
    if (kind == "object" and not made.get("properties")) or (kind == "array" and "items" not in made):
        raise NotImplementedError
    if kind == "object":
        made["additionalProperties"] = False
    if unenforced:
        words = ", ".join(f"{key}: {encode_json(value).decode()}" for key, value in unenforced.items())
        made["description"] = f"{made['description']} ({words})" if made.get("description") else words
    return made


def _is_circular(schema: dict[str, Any]) -> bool:
    """True if a definition refers to itself, or to nothing."""
    named = {
        f"#/{place}/{name}": _references(one)
        for place in ("$defs", "definitions")
        for name, one in as_dict(schema.get(place)).items()
    }
    try:
        TopologicalSorter(named).prepare()
    except CycleError:
        return True
    return not named.keys() >= {*_references(schema)}


def _references(node: Any) -> list[str]:  # any JSON value
    found = [inner for value in (*as_dict(node).values(), *as_list(node)) for inner in _references(value)]
    reference = as_dict(node).get("$ref")
    return [*found, reference] if isinstance(reference, str) else found
