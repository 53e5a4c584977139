"""`import holdfast`: one door, cheap to open."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.every import every

import holdfast
from holdfast import errors


def test_every_name_of_the_door_is_there() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None


def test_no_name_of_the_door_is_hidden_by_a_module_of_the_same_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(holdfast.__path__)}
    assert not modules & set(holdfast.__all__)


def test_type_checkers_and_python_find_each_name_in_the_same_module() -> None:
    tree = ast.parse(Path(holdfast.__file__).read_text(encoding="utf-8"))
    shown = {
        name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in {"__future__", "importlib", "threading", "typing"}
        for name in node.names
    }
    homes = vars(holdfast)["_HOMES"]
    modules = dict.fromkeys(vars(holdfast)["_MODULES"], "holdfast")
    assert shown == {**homes, **modules}


def test_dir_lists_the_door() -> None:
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(holdfast, "nonsense")  # noqa: B009  a plain access would not pass the type checker


def test_importing_holdfast_loads_no_dependency() -> None:
    code = "import sys, holdfast; print(*{'apsw', 'pydantic', 'msgspec', 'typer', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_names_of_a_first_program_load_no_runtime_and_no_dependency_but_msgspec() -> None:
    late = {
        *("aiohttp", "apsw", "asyncio", "genai_prices", "idna", "logging", "pydantic", "pydantic_core", "typer"),
        *("holdfast.cli", "holdfast.models.http", "holdfast.runtime.runtime", "holdfast.store", "holdfast.toolkits"),
    }
    use = "hf.Agent, hf.open, hf.tool, hf.model, hf.process"
    code = f"import sys, holdfast as hf; {use}; print(*{late} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


_USE_BY_THREADS = """
import random, sys, threading
import holdfast as hf

start, problems = threading.Barrier(12), []

def use(names):
    start.wait()
    for name in names:
        try:
            getattr(hf, name)
        except BaseException as error:
            problems.append(f"{name}: {error!r}")

chance = random.Random(int(sys.argv[1]))
threads = [threading.Thread(target=use, args=[chance.sample(hf.__all__, 40)]) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*problems)
"""


@every("seed", range(1, 5))
def test_threads_that_first_use_the_names_at_once_all_get_them(seed: int) -> None:
    command = [sys.executable, "-c", _USE_BY_THREADS, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""


@every("kind", [k for k in vars(errors).values() if isinstance(k, type)], ids=lambda k: k.__name__)
def test_every_error_says_who_can_act(kind: type[BaseException]) -> None:
    if kind in {errors.Halted, errors.Suspended}:
        assert not issubclass(kind, Exception), "user code must not be able to swallow it by accident"
        return
    assert issubclass(kind, errors.HoldfastError)
    assert kind.actor in {"caller", "world", "store", "us"}
    assert kind.__doc__
