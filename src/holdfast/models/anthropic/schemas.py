"""JSON schemas in the part of them that the provider enforces. Pure."""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from holdfast.models.reading import mapping

_json: Final = msgspec.json.Encoder().encode

_KEPT: Final = frozenset(("type", "title", "description", "enum", "const", "default", "required"))
_SILENT: Final = frozenset(("$schema", "$id", "$comment", "examples", "deprecated", "readOnly", "writeOnly"))
_LISTS: Final = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
_MAPS: Final = frozenset(("properties", "$defs", "definitions"))
_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)  # fmt: skip
_OPEN_ENDED: Final = frozenset(
    ("patternProperties", "prefixItems", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties")
)


class _NoFormError(Exception):
    """The provider has no form for a schema."""


def narrow(schema: dict[str, Any]) -> dict[str, Any] | None:
    """`schema` in the part of JSON schema that the provider enforces, or None where it does not fit into that.

    Bounds that it can't enforce are told in words; whoever reads the answer checks them anyway.
    """
    try:
        made = _narrowed(schema)
    except (_NoFormError, RecursionError):
        return None
    return None if made.get("type") != "object" or _circular(schema) else made


def _narrowed(schema: Any) -> dict[str, Any]:  # noqa: ANN401  anything may stand where a schema should
    node = mapping(schema)
    kinds = node.get("type")
    if isinstance(kinds, list):
        each = [{**node, "type": kind} for kind in cast("list[Any]", kinds)]
        return {"anyOf": [_narrowed(one) for one in each]}
    if not node.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"} or node.keys() & _OPEN_ENDED:
        raise _NoFormError
    if "$ref" in node:
        return {"$ref": node["$ref"]}
    made: dict[str, Any] = {}
    untold: dict[str, Any] = {}
    for key, value in node.items():
        if key in _KEPT or _enforced(key, value):
            made[key] = value
        elif key in _MAPS:
            made[key] = {name: _narrowed(one) for name, one in mapping(value).items()}
        elif key in _LISTS:
            made[_LISTS[key]] = [_narrowed(one) for one in cast("list[Any]", value)]
        elif key == "items":
            made[key] = _narrowed(value)
        elif key == "additionalProperties":
            if value is not False:
                raise _NoFormError
        elif key not in _SILENT:
            untold[key] = value
    return _finished(made, untold)


def _enforced(key: str, value: Any) -> bool:  # noqa: ANN401  any JSON value
    if key == "format":
        return isinstance(value, str) and value in _FORMATS
    return key == "minItems" and type(value) is int and value < 2


def _finished(made: dict[str, Any], untold: dict[str, Any]) -> dict[str, Any]:
    if made.get("type") == "object":
        if not made.get("properties"):
            raise _NoFormError
        made["additionalProperties"] = False
    if made.get("type") == "array" and "items" not in made:
        raise _NoFormError
    if untold:
        words = ", ".join(f"{key}: {_json(value).decode()}" for key, value in untold.items())
        made["description"] = f"{made['description']} ({words})" if made.get("description") else words
    return made


def _circular(schema: dict[str, Any]) -> bool:
    """Whether a definition needs itself."""
    named = {
        f"#/{place}/{name}": set(_references(one))
        for place in ("$defs", "definitions")
        for name, one in mapping(schema.get(place)).items()
    }
    known: set[str] = set()
    while ready := {name for name, needs in named.items() if needs <= known} - known:
        known |= ready
    return not named.keys() <= known or not set(_references(schema)) <= known


def _references(node: Any) -> list[str]:  # noqa: ANN401  any JSON value
    if isinstance(node, list):
        return [found for item in cast("list[Any]", node) for found in _references(item)]
    found = [inner for value in mapping(node).values() for inner in _references(value)]
    reference = mapping(node).get("$ref")
    return [*found, reference] if isinstance(reference, str) else found
