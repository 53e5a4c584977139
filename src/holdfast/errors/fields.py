"""Constructors of errors: fields that an error declares, and the template of its message."""

from __future__ import annotations

import string
from functools import cache
from inspect import Parameter, Signature, get_annotations
from typing import Any, ClassVar, cast, dataclass_transform

from holdfast.errors.base import excerpt


class _Template(string.Formatter):
    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion == "e":
            return excerpt(value)
        return ", ".join(value) or "none" if conversion == "l" else super().convert_field(value, conversion)


class _FieldsSignature:
    def __get__(self, _: object, kind: type[ErrorFields]) -> Signature | None:
        return _signature_of(kind) if kind.__init__ is ErrorFields.__init__ else None


@dataclass_transform(eq_default=False)
class ErrorFields:
    """Gives an error its constructor: the annotated fields are the arguments and the attributes.

    `_message` is a template of the fields, which may be broken into lines. Besides the conversions of `str.format`,
    ``{value!e}`` is an excerpt, and ``{names!l}`` a list of names. The annotations of a subclass without a template are
    no fields: it has a constructor of its own, or attributes that it sets by itself.
    """

    _message: ClassVar[str]
    __signature__: ClassVar = _FieldsSignature()

    def __init_subclass__(cls) -> None:
        if "_message" in vars(cls):
            cls._message = " ".join(cls._message.split())

    def __init__(self, *given: object, **named: object) -> None:
        bound = _signature_of(type(self)).bind(*given, **named)
        bound.apply_defaults()
        vars(self).update(bound.arguments)
        Exception.__init__(cast("Exception", self), _Template().vformat(self._message, (), vars(self)))


@cache
def _signature_of(kind: type[ErrorFields]) -> Signature:
    bases = [base for base in reversed(kind.__mro__) if issubclass(base, ErrorFields) and "_message" in vars(base)]
    notes = {name: note for base in bases for name, note in get_annotations(base).items()}
    defaults = {name: getattr(kind, name, Parameter.empty) for name in notes}
    plain = Parameter.POSITIONAL_OR_KEYWORD
    return Signature([Parameter(name, plain, default=defaults[name], annotation=notes[name]) for name in notes])
