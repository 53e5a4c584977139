"""JSON schemas as types that a type checker reads. Pure.

A type is never narrower than its schema: what can't be said is Any, and the tool checks its arguments in any case.
"""

from __future__ import annotations

import keyword
from typing import Any, Final, cast

import msgspec

MAX_PLACES: Final = 2_000
"""How many places of schemas are read; what is beyond is Any."""
_MAX_DEPTH: Final = 20
_MAX_CHOICES: Final = 64
_KINDS: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class Shapes:
    """Collects the TypedDicts that annotations need."""

    __slots__ = ("_classes", "_places")

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        self._places = 0

    def written(self) -> list[str]:
        """The source of the classes, each after those that it needs."""
        return list(self._classes.values())

    def annotation(  # noqa: PLR0911  one for each way to say a type
        self, schema: object, title: str, root: dict[str, Any], depth: int = 0
    ) -> str:
        """The type of one place. `title` names the class that it may need, `root` has the definitions."""
        self._places += 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._places > MAX_PLACES:
            return "Any"
        node = cast("dict[str, Any]", schema)
        if "$ref" in node:
            return self.annotation(_resolved(node["$ref"], root), title, root, depth + 1)
        choices = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(choices, list):
            return _literal(cast("list[object]", choices))
        for union in ("anyOf", "oneOf"):
            if isinstance(node.get(union), list):
                return self._union(node[union], title, root, depth)
        kind = node.get("type")
        if isinstance(kind, list):
            return self._union([{**node, "type": each} for each in cast("list[object]", kind)], title, root, depth)
        if kind == "array":
            return f"list[{self.annotation(node.get('items'), f'{title}Item', root, depth + 1)}]"
        if kind == "object" or "properties" in node:
            return self._object(node, title, root, depth)
        return _KINDS.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _union(self, members: list[Any], title: str, root: dict[str, Any], depth: int) -> str:
        made = [self.annotation(each, f"{title}{n or ''}", root, depth + 1) for n, each in enumerate(members)]
        kinds = list(dict.fromkeys(made))
        return "Any" if "Any" in kinds or not kinds else " | ".join(kinds)

    def _object(self, node: dict[str, Any], title: str, root: dict[str, Any], depth: int) -> str:
        fields: object = node.get("properties")
        rest: object = node.get("additionalProperties")
        if not isinstance(fields, dict) or not fields:
            return f"dict[str, {self.annotation(cast('object', rest), f'{title}Value', root, depth + 1)}]"
        known = cast("dict[str, Any]", fields)
        # Other keys than these may be there, and a TypedDict has no word for that.
        if isinstance(rest, dict) or rest is True or not all(_plain_key(name) for name in known):
            return "dict[str, Any]"
        required = node.get("required")
        needed = cast("list[object]", required) if isinstance(required, list) else []
        lines: list[str] = []
        for name, schema in known.items():
            kind = self.annotation(schema, title + name.title().replace("_", ""), root, depth + 1)
            lines.append(f"    {name}: {kind if name in needed else f'NotRequired[{kind}]'}\n")
        return self._class(title, "".join(lines))

    def _class(self, title: str, lines: str) -> str:
        name, number = title, 2
        while name in self._classes:
            if self._classes[name] == f"class {name}(TypedDict):\n{lines}":
                return name
            name, number = f"{title}{number}", number + 1
        self._classes[name] = f"class {name}(TypedDict):\n{lines}"
        return name


def _literal(choices: list[object]) -> str:
    if not choices or len(choices) > _MAX_CHOICES:
        return "Any"
    if not all(each is None or isinstance(each, str | bool | int) for each in choices):
        return "Any"
    return f"Literal[{', '.join(_word(each) for each in choices)}]"


def _word(choice: object) -> str:
    # A JSON text is a Python text, but for the end of a line that only some know.
    return (
        msgspec.json.encode(choice).decode().encode("ascii", "backslashreplace").decode()
        if isinstance(choice, str)
        else repr(choice)
    )


def _resolved(reference: object, root: dict[str, Any]) -> object:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: object = root
    for part in reference.removeprefix("#/").split("/"):
        if not isinstance(found, dict):
            return None
        found = cast("dict[str, object]", found).get(part.replace("~1", "/").replace("~0", "~"))
    return found


def _plain_key(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
