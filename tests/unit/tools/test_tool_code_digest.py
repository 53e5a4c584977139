"""The code of a tool in one digest: the same in every process, another one when what runs is another."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from tests.every import every

import holdfast as hf
from holdfast.errors import ToolInvalid
from holdfast.tools.definition import code_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAY = """
    import functools
    import holdfast as hf

    RATE = {1, 2}

    def fee(cents):
        return cents // 100

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)
        return wrapper

    class Bank:
        def _send(self, cents):
            return cents

        def send(self, cents: int) -> int:
            return self._send(cents)

    @hf.tool
    @logged
    def pay(cents: int) -> int:
        "Pay."
        if cents in {"a", "b", "c"}:
            raise ValueError
        return [each + fee(cents) for each in (cents,)][0]

    send = hf.tool(Bank().send)

    def made(function):
        call = functools.partial(function, 1)
        @hf.tool
        def pay_later() -> int:
            "Pay later."
            return call()
        return pay_later

    later = made(lambda cents: cents + 1)
"""


def loaded(source: str) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": "made_up"}
    exec(compile(textwrap.dedent(source), "made_up.py", "exec", dont_inherit=True), module)  # noqa: S102
    return module


def digests(source: str) -> tuple[str, str, str]:
    module = loaded(source)
    return module["pay"].implementation, module["send"].implementation, module["later"].implementation


def test_the_same_source_gives_the_same_digest() -> None:
    assert digests(PAY) == digests(PAY)


def test_comments_lines_and_unrelated_functions_do_not_count() -> None:
    assert digests(PAY) == digests("    # A comment.\n\n" + PAY + "\n    def unrelated():\n        return 7\n")


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_another_process_gives_the_same_digest(tmp_path: Path, seed: str) -> None:
    place = tmp_path / "made_up.py"
    place.write_text(textwrap.dedent(PAY))
    code = "import made_up as m; print(m.pay.implementation, m.send.implementation, m.later.implementation)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert tuple(found.stdout.split()) == digests(PAY)


def test_running_it_does_not_change_the_digest() -> None:
    module = loaded(PAY)
    before = module["pay"].implementation
    for cents in range(2_000):
        module["pay"](cents)
    assert module["pay"].implementation == before


CHANGES = {
    "the wrapped function": ("each + fee", "each - fee", 0),
    "a constant": ('"a", "b", "c"', '"a", "b", "d"', 0),
    "a helper of its module": ("cents // 100", "cents // 10", 0),
    "the decorator": ("return function(*args, **kwargs)", "return 1 + function(*args, **kwargs)", 0),
    "a method that it calls": ("            return cents\n", "            return cents * 2\n", 1),
    "the method itself": ("self._send(cents)", "self._send(-cents)", 1),
    "a function in a partial": ("cents + 1", "cents + 2", 2),
    "what a closure does with it": ("return call()", "return -call()", 2),
}


@every(("old", "new", "place"), CHANGES.values(), ids=CHANGES)
def test_other_code_gives_another_digest(old: str, new: str, place: int) -> None:
    assert old in PAY
    before, after = digests(PAY), digests(PAY.replace(old, new))
    assert [number for number in range(3) if before[number] != after[number]] == [place]


CLASSES = """
    import contextlib
    import functools

    class Base:
        def inherited(self):
            return "base"

    class Helper(Base):
        class Inner:
            def run(self):
                return "inner"

        @staticmethod
        def static():
            return "static"

        @classmethod
        def made(cls):
            return "made"

        def __enter__(self):
            return "special"

        @functools.cached_property
        def cached(self):
            return "cached"

        @property
        def plain(self):
            return "plain"

        @plain.setter
        def plain(self, value):
            self.kept = "set"

    HELPER = Helper()

    @contextlib.contextmanager
    def opened():
        yield "opened"

    def names_the_class():
        return Helper.static()

    def names_an_object():
        return HELPER.static()

    def closing_over(helper):
        def closes_over():
            return helper.static()
        return closes_over

    closes_over_the_class = closing_over(Helper)
    closes_over_an_object = closing_over(HELPER)

    class Owner(Base):
        @property
        def plain(self):
            return "own property"

        def __getitem__(self, key):
            return "own item"

        def unrelated(self):
            return "unrelated"

        @classmethod
        def _kind(cls):
            return "own kind"

        @classmethod
        def of_the_class(cls):
            return cls._kind()

        def method(self):
            return self.plain, self[0], self.inherited()

    method = Owner().method
    class_method = Owner.of_the_class

    def opens():
        with opened() as found:
            return found
"""
REACHED = {
    "names_the_class": ("base", "inner", "static", "made", "special", "cached", "plain", "set"),
    "names_an_object": ("base", "static"),
    "closes_over_the_class": ("base", "static", "set"),
    "closes_over_an_object": ("base", "static", "set"),
    "method": ("own property", "own item", "base"),
    "class_method": ("own kind",),
    "opens": ("opened",),
}


@every(("name", "said"), [(name, said) for name in REACHED for said in REACHED[name]])
def test_other_code_of_the_same_module_that_is_reached_through_a_class_gives_another_digest(
    name: str, said: str
) -> None:
    before = code_digest(loaded(CLASSES)[name])
    assert code_digest(loaded(CLASSES)[name]) == before
    assert code_digest(loaded(CLASSES.replace(f'"{said}"', '"other"'))[name]) != before


@every("name", REACHED)
def test_methods_that_a_tool_does_not_reach_do_not_count(name: str) -> None:
    changed = CLASSES.replace('"unrelated"', '"other"')
    assert code_digest(loaded(changed)[name]) == code_digest(loaded(CLASSES)[name])


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_another_process_gives_the_same_digest_of_code_behind_classes(tmp_path: Path, seed: str) -> None:
    (tmp_path / "made_up.py").write_text(textwrap.dedent(CLASSES))
    code = (
        "import sys, made_up; from holdfast.tools.definition import code_digest; "
        "print(*(code_digest(getattr(made_up, name)) for name in sys.argv[1:]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *REACHED],
        cwd=tmp_path,
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [code_digest(loaded(CLASSES)[name]) for name in REACHED]


def test_values_that_a_closure_holds_are_not_code() -> None:
    def made(value: object) -> Callable[[], object]:
        def function() -> object:
            return value

        return function

    assert code_digest(made(1)) == code_digest(made(object()))


def test_a_default_of_a_function_that_it_wraps_counts() -> None:
    def made(amount: int) -> Callable[[], int]:
        def inner(cents: int = amount) -> int:
            return cents

        def outer() -> int:
            return inner()

        return outer

    assert code_digest(made(1)) == code_digest(made(1))
    assert code_digest(made(1)) != code_digest(made(2))


def test_functions_that_call_each_other_have_a_digest() -> None:
    source = "def f(n):\n    return g(n)\ndef g(n):\n    return f(n)\n"
    assert code_digest(loaded(source)["f"]) == code_digest(loaded(source)["f"])
    assert code_digest(loaded(source)["f"]) != code_digest(loaded(source.replace("f(n)\n", "f(n - 1)\n"))["f"])


def test_a_function_behind_a_cache_counts() -> None:
    source = "import functools\n@functools.lru_cache\ndef g(n):\n    return 1\ndef f(n):\n    return g(n)\n"
    assert code_digest(loaded(source)["f"]) != code_digest(loaded(source.replace("return 1", "return 2"))["f"])


def test_a_partial_counts_with_the_code_of_its_function_and_the_values_that_it_binds() -> None:
    fee, other = loaded(PAY)["fee"], loaded(PAY)["fee"]
    assert code_digest(functools.partial(fee, 1)) == code_digest(functools.partial(other, 1))
    digests = [code_digest(fee), *(code_digest(functools.partial(fee, value)) for value in (1, 2, "1"))]
    assert len({*digests, code_digest(functools.partial(fee, cents=1))}) == 5


def test_the_code_of_a_function_that_a_partial_binds_counts() -> None:
    source = "def one():\n    return 1\ndef run(function):\n    return function()\n"
    before, after = loaded(source), loaded(source.replace("return 1", "return 2"))
    assert code_digest(functools.partial(before["run"], before["one"])) != code_digest(
        functools.partial(after["run"], after["one"])
    )


def test_a_module_that_is_loaded_again_unchanged_gives_the_same_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    place = tmp_path / "reloaded_tools.py"
    place.write_text(textwrap.dedent(PAY))
    module = importlib.import_module("reloaded_tools")
    try:
        before = module.pay.implementation
        assert importlib.reload(module).pay.implementation == before
        place.write_text(textwrap.dedent(PAY).replace("cents // 100", "cents // 10"))
        importlib.invalidate_caches()
        assert importlib.reload(module).pay.implementation != before
    finally:
        del sys.modules["reloaded_tools"]


# ---- versions --------------------------------------------------------------------------------------------------------


def versioned(version: str | None, factor: int) -> hf.Tool[..., Any]:
    head = f"import holdfast as hf\n@hf.tool(version={version!r})\n"
    return loaded(f"{head}def pay(cents: int) -> int:\n    return cents * {factor}\n")["pay"]


def test_a_version_takes_the_place_of_the_code() -> None:
    assert versioned("1", 2).implementation == versioned("1", 3).implementation
    assert versioned("1", 2).implementation != versioned("2", 2).implementation
    assert versioned(None, 2).implementation != versioned(None, 3).implementation


def test_a_version_is_kept_when_a_tool_is_renamed() -> None:
    (found,) = hf.toolset(versioned("7", 1), prefix="my_")
    assert (found.name, found.version) == ("my_pay", "7")


@pytest.mark.parametrize("version", ["", 7, "a\nb"])
def test_what_can_not_be_a_version_is_refused(version: Any) -> None:
    with pytest.raises(ToolInvalid, match="version"):
        hf.tool("pay", version=version)(lambda: None)


def test_what_a_model_sees_does_not_depend_on_the_code() -> None:
    assert versioned("1", 2).digest == versioned(None, 3).digest
