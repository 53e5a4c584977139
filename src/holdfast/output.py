"""Structured output: the shape of an answer, what is wrong with one, and the value it stands for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.errors import InvalidArgument, UsageError
from holdfast.messages import OutputSpec

if TYPE_CHECKING:
    from collections.abc import Callable

_FENCE: Final = re.compile(r"\A\s*```(?:json)?\s(.*?)```\s*\Z", re.DOTALL | re.IGNORECASE)
_SHOWN: Final = 5
_LONGEST: Final = 300
_decode: Final[Callable[[str], Any]] = msgspec.json.Decoder().decode


class Output:
    """The type of an answer: a JSON schema, or anything that pydantic understands."""

    def __init__(self, wanted: Any) -> None:  # noqa: ANN401  a type or a schema
        self._wanted = wanted
        if isinstance(wanted, dict):
            schema = cast("dict[str, Any]", wanted)
            self.spec = OutputSpec(str(schema.get("title") or "answer"), schema)
            self._check, self._load = _by_schema(schema)
        else:
            name, schema, self._check, self._load = _by_type(wanted)
            self.spec = OutputSpec(name, schema)

    def complaint(self, text: str) -> str | None:
        """What is wrong with an answer, as the model is told; None when it has the right shape."""
        try:
            parse(text)
        except (ValueError, RecursionError) as error:
            return f"Your answer must be JSON and nothing else, but it can't be read: {error}. Answer again."
        problems = self._check(bare(text))
        if not problems:
            return None
        more = f"\n- and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = "".join(f"\n- {_cut(problem)}" for problem in problems[:_SHOWN])
        return f"Your answer does not have the shape that was asked for:{shown}{more}\nAnswer again, with JSON alone."

    def load(self, text: str) -> Any:  # noqa: ANN401  a value of the wanted type
        """The value that an answer of the right shape stands for."""
        return self._load(bare(text))


def parse(text: str) -> Any:  # noqa: ANN401  any JSON value
    """The JSON value of an answer, also when it stands between code fences; `ValueError` when there is none."""
    return _decode(bare(text))


def bare(text: str) -> str:
    """An answer without the code fences around it."""
    fenced = _FENCE.match(text)
    return fenced.group(1) if fenced else text


def _cut(problem: str) -> str:
    return problem if len(problem) <= _LONGEST else f"{problem[:_LONGEST]}..."


def _by_schema(schema: dict[str, Any]) -> tuple[Callable[[str], list[str]], Callable[[str], Any]]:
    try:
        import jsonschema_rs  # noqa: PLC0415  an extra
    except ImportError:
        message = "an output given as a JSON schema needs the extra 'schema': pip install 'holdfast[schema]'"
        raise UsageError(message) from None
    try:
        validator = jsonschema_rs.validator_for(schema)
    except (ValueError, TypeError) as error:
        raise InvalidArgument("output", schema, f"a JSON schema ({str(error).splitlines()[0]})") from error

    def check(text: str) -> list[str]:
        return [_problem(error.instance_path, error.message) for error in validator.iter_errors(_decode(text))]

    return check, _decode


def _by_type(wanted: Any) -> tuple[str, dict[str, Any], Callable[[str], list[str]], Callable[[str], Any]]:  # noqa: ANN401
    from pydantic import PydanticUserError, TypeAdapter, ValidationError  # noqa: PLC0415  only where it is needed

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        schema = adapter.json_schema()
    except (PydanticUserError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidArgument("output", wanted, f"a type that has a JSON schema ({reason})") from error

    def load(text: str) -> Any:  # noqa: ANN401
        return adapter.validate_json(text, by_alias=True, by_name=True)

    def check(text: str) -> list[str]:
        try:
            load(text)
        except ValidationError as error:
            return [_problem(list(found["loc"]), found["msg"]) for found in error.errors(include_url=False)]
        except Exception as error:  # noqa: BLE001  a validator of somebody's own may raise anything
            return [f"{type(error).__name__}: {error}"]
        return []

    name = str(schema.get("title") or getattr(wanted, "__name__", "answer"))
    return name, schema, check, load


def _problem(path: list[Any], message: str) -> str:
    place = ".".join(str(part) for part in path)
    return f"{place}: {message}" if place else message
