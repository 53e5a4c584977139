"""The words that data of our own is made of: a secret that is one of them could not be told from it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterator


def words_of(*types: Any) -> frozenset[str]:  # noqa: ANN401  structs, or unions of them
    """The names of fields, the tags and the choices of these types and of all that they are made of."""
    found: set[str] = set()
    seen: set[Any] = set()
    left: list[Any] = list(inspect.multi_type_info(types))
    while left:
        node = left.pop()
        if isinstance(node, inspect.StructType):
            if node.cls in seen:
                continue
            seen.add(node.cls)
            found.update(word for word in (node.tag, node.tag_field) if isinstance(word, str))
            found.update(field.encode_name for field in node.fields)
            left += [field.type for field in node.fields]
        elif isinstance(node, inspect.LiteralType):
            found.update(value for value in node.values if isinstance(value, str))
        else:
            left += _inside(node)
    return frozenset(found)


def _inside(node: Any) -> Iterator[Any]:  # noqa: ANN401  a type as msgspec tells of it
    """The types that another one is made of."""
    for field in msgspec.structs.fields(node):
        part: Any = getattr(node, field.name)
        parts = cast("tuple[Any, ...]", part) if isinstance(part, tuple) else (part,)
        yield from (item for item in parts if isinstance(item, inspect.Type))
