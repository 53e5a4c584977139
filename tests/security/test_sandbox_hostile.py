"""What a hostile program tries, and does not get: each is a result, never a way out and never a hang."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import proc
from tests.sandboxed import QUICK, TOOLS, driven, needs_sandbox, ran

from holdfast.sandbox import (
    CallResult,
    CallValue,
    LimitHit,
    MontySandbox,
    PendingCalls,
    ProgramEnd,
    ProgramFailure,
    ProgramLimits,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = needs_sandbox
CANARY = "Canary5Hq27Wn8Ts3Zd1"


@pytest.fixture
async def sandbox() -> AsyncGenerator[MontySandbox]:
    async with MontySandbox() as made:
        yield made


def unchecked(source: str) -> str:
    """The same program in a text that the type checker does not look into."""
    return f"result = None\nexec({source!r})\nstr(result)"


# ---- ways out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "result = ().__class__.__bases__[0].__subclasses__()",
        "result = (lambda: 0).__globals__",
        "result = fetch.__self__",
        "result = print.__self__",
        "result = type(fetch).__mro__",
        "result = [].__reduce_ex__(4)",
        "result = '{0.__class__.__base__}'.format(1)",
        "result = getattr((), '__cla' + 'ss__')",
        "def f():\n    pass\nresult = f.__code__",
        "try:\n    1 / 0\nexcept Exception as e:\n    result = e.__traceback__.tb_frame.f_globals",
        "import sys\nresult = sys.modules",
        "import sys\nresult = sys._getframe()",
        "import asyncio\nresult = asyncio.subprocess",
        "result = __builtins__",
        "result = __import__('os').system('id')",
        "result = __loader__",
    ],
)
async def test_a_walk_along_attributes_leads_nowhere(sandbox: MontySandbox, source: str) -> None:
    step = await ran(sandbox, unchecked(source))
    assert isinstance(step, ProgramFailure), step
    assert step.phase == "run"


@pytest.mark.parametrize(
    "name",
    [
        "socket",
        "subprocess",
        "ctypes",
        "importlib",
        "builtins",
        "posix",
        "threading",
        "signal",
        "pickle",
        "gc",
        "inspect",
    ],
)
async def test_modules_that_touch_the_world_are_not_there(sandbox: MontySandbox, name: str) -> None:
    step = await ran(sandbox, unchecked(f"import {name}\nresult = {name}"))
    assert isinstance(step, ProgramFailure)
    assert "ModuleNotFoundError" in step.error


@pytest.mark.parametrize(
    "source",
    [
        "result = open({path!r}).read()",
        "result = open({path!r}, 'w').write('x')",
        "import pathlib\nresult = pathlib.Path({path!r}).read_text()",
        "import pathlib\nresult = pathlib.Path({path!r}).unlink()",
        "import pathlib\nresult = [str(p) for p in pathlib.Path('/').iterdir()]",
        "import os\nresult = os.listdir('/proc')",
        "import os\nresult = os.environ['PATH']",
        "import os\nresult = os.getenv('PATH')",
        "import os\nresult = os.remove({path!r})",
        "import os\nresult = os.system('id')",
        "import os\nresult = os.popen('id').read()",
        "import os\nresult = os.fork()",
        "import os\nresult = os.urandom(8)",
    ],
)
async def test_there_are_no_files_no_environment_and_no_processes(
    sandbox: MontySandbox, tmp_path: Path, source: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CANARY, encoding="utf-8")
    step = await ran(sandbox, unchecked(source.format(path=str(secret))))
    assert isinstance(step, ProgramFailure), step
    assert step.phase == "run"
    assert CANARY not in step.error
    assert secret.read_text(encoding="utf-8") == CANARY


async def test_a_tool_that_was_not_granted_can_t_be_called(sandbox: MontySandbox) -> None:
    program = await sandbox.start(unchecked("result = refund(1)"), tools=TOOLS, limits=QUICK)
    step, results = await driven(program)
    assert isinstance(step, ProgramFailure)
    assert "NameError" in step.error
    assert results == []


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "which"),
    [
        ("while True:\n    pass", "time"),
        ("try:\n    while True:\n        pass\nexcept BaseException:\n    pass", "time"),
        ("while True:\n    print('x' * 1000)", "time"),
        ("import itertools\nfor _ in itertools.count():\n    pass", "time"),
        ("a = []\nwhile True:\n    a.append('x' * 1000)", "memory"),
        ("'x' * 10**11", "memory"),
        ("list(range(10**9))", "memory"),
        ("try:\n    'x' * 10**11\nexcept MemoryError:\n    pass", "memory"),
        ("def f():\n    return f()\nf()", "recursion"),
        ("while True:\n    await fetch(1)", "calls"),
        ("while True:\n    try:\n        await fetch(1)\n    except BaseException:\n        pass", "calls"),
        ("import time\nwhile True:\n    time.time()", "calls"),
        ("import asyncio\nawait asyncio.gather(*[fetch(n) for n in range(10**4)])", "calls"),
        ("import os\nwhile True:\n    try:\n        os.getenv('A')\n    except RuntimeError:\n        pass", "calls"),
        ("x = 1\n" * 20_000, "source"),
    ],
)
async def test_a_program_that_takes_too_much_is_stopped(sandbox: MontySandbox, source: str, which: str) -> None:
    began = time.monotonic()
    step = await ran(sandbox, source)
    assert isinstance(step, LimitHit), step
    assert step.which == which
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    "source",
    [
        "2 ** 10**9",
        "int('9' * 10**6)",
        "pow(10**100000, 10**100000, 10**5000 + 1)",
        "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
        "import re\nre.match(r'(a*)*\\1b', 'a' * 60)",
        "import json\njson.loads('[' * 100000)",
        "a = []\nfor _ in range(100000):\n    a = [a]\nrepr(a)",
        "'%1000000000d' % 1",
        "sorted(range(10**7), key=lambda n: -n)",
        "(" * 5000 + ")" * 5000,
        "-" * 20000 + "1",
        "x" + ".y" * 20000,
        "f'{1:{10**9}}'",
    ],
)
async def test_a_bomb_is_a_result(sandbox: MontySandbox, source: str) -> None:
    async with asyncio.timeout(20):
        assert isinstance(await ran(sandbox, source), LimitHit | ProgramFailure | ProgramEnd)


async def test_an_error_with_a_huge_text_is_cut(sandbox: MontySandbox) -> None:
    step = await ran(sandbox, "raise ValueError('x' * 5_000_000)")
    assert isinstance(step, ProgramFailure)
    assert len(step.error) < 5_000


async def test_a_flood_of_output_is_cut(sandbox: MontySandbox) -> None:
    step = await ran(sandbox, "for _ in range(2000):\n    print('x' * 1000)")
    assert isinstance(step, ProgramEnd)
    assert len(step.printed) < 31_000


@pytest.mark.parametrize("end", ["c", "await save(c)"])
async def test_a_small_value_that_stands_for_a_billion_is_not_written_out(sandbox: MontySandbox, end: str) -> None:
    bomb = "a: list = [0] * 1000\nb: list = [a] * 1000\nc: list = [b] * 1000\n"
    async with asyncio.timeout(20):
        step = await ran(sandbox, bomb + end)
    assert isinstance(step, ProgramFailure | LimitHit)


async def test_variables_that_stand_for_a_billion_do_not_live_on(sandbox: MontySandbox) -> None:
    async with asyncio.timeout(20):
        step = await ran(sandbox, "a: list = [0] * 1000\nb: list = [a] * 1000\nc: list = [b] * 1000\n1")
    assert not isinstance(step, ProgramEnd) or step.kept is None or "c" not in step.kept.values


async def test_a_program_can_t_make_the_host_ask_for_names_it_chose(sandbox: MontySandbox) -> None:
    step = await ran(sandbox, "locals = 3\nx = 1")
    assert isinstance(step, ProgramEnd | ProgramFailure)


async def test_a_program_makes_as_many_calls_as_it_may_and_not_one_more(sandbox: MontySandbox) -> None:
    program = await sandbox.start("for n in range(9):\n    await fetch(n)", tools=TOOLS, limits=ProgramLimits(calls=3))
    step, results = await driven(program)
    assert isinstance(step, LimitHit)
    assert len(results) == 3


async def test_ten_thousand_calls_are_made_and_replayed(sandbox: MontySandbox) -> None:
    source = "total = 0\nfor n in range(10_000):\n    total += await fetch(n)\ntotal"
    program = await sandbox.start(source, tools=TOOLS)
    first = await program.run()
    assert isinstance(first, PendingCalls)
    prefix = program.digest[:16]
    recorded = [CallResult(f"{prefix}/{n}", CallValue(1)) for n in range(10_000)]
    await program.close()
    again = await sandbox.start(source, tools=TOOLS)
    step = await again.run(recorded)
    assert isinstance(step, ProgramEnd)
    assert step.value == 10_000


# ---- the worker ------------------------------------------------------------------------------------------------------


async def waiting_program(sandbox: MontySandbox) -> int:
    """The process of a program that waits for an answer."""
    program = await sandbox.start("await fetch(1)", tools=TOOLS, limits=QUICK)
    assert isinstance(await program.run(), PendingCalls)
    (number,) = proc.named("worker")
    return number


def environment(number: int) -> bytes:
    return Path(f"/proc/{number}/environ").read_bytes()


def status(number: int) -> dict[str, str]:
    lines = Path(f"/proc/{number}/status").read_text(encoding="utf-8").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


async def test_a_worker_has_no_rights_and_a_filter(sandbox: MontySandbox) -> None:
    found = status(await waiting_program(sandbox))
    assert (found["CapEff"], found["CapBnd"], found["NoNewPrivs"], found["Seccomp"]) == ("0" * 16, "0" * 16, "1", "2")


async def test_a_worker_has_namespaces_of_its_own(sandbox: MontySandbox) -> None:
    number = await waiting_program(sandbox)
    for kind in ("net", "pid", "ipc", "uts", "user", "mnt"):
        assert os.readlink(f"/proc/{number}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")  # noqa: PTH115


async def test_a_worker_sees_nothing_but_libraries_and_itself(sandbox: MontySandbox) -> None:
    root = Path(f"/proc/{await waiting_program(sandbox)}/root")
    assert {*os.listdir(root)} <= {"worker", "usr", "lib", "lib32", "lib64", "libx32", "nix", "gnu", "etc"}
    assert not (root / "usr" / "bin").exists()
    assert {*os.listdir(root / "etc")} <= {"ld.so.cache"} if (root / "etc").exists() else True


async def test_a_worker_has_an_empty_environment(sandbox: MontySandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CANARY", CANARY)
    number = await waiting_program(sandbox)
    assert environment(number) in {b"", b"PWD=/\0"}


async def test_a_worker_has_none_of_our_files_open(sandbox: MontySandbox, tmp_path: Path) -> None:
    with (tmp_path / "open").open("wb") as file:
        os.set_inheritable(file.fileno(), True)  # as a careless library leaves it
        number = await waiting_program(sandbox)
        folder = f"/proc/{number}/fd"
        held = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]  # noqa: PTH115
    assert str(tmp_path / "open") not in held
    assert all(each.startswith(("pipe:", "socket:", "anon_inode:")) or each == "/dev/null" for each in held), held


async def test_two_programs_never_share_a_worker(sandbox: MontySandbox) -> None:
    first = await waiting_program(sandbox)
    second = await sandbox.start("await fetch(1)", tools=TOOLS, limits=QUICK)
    await second.run()
    assert len({first, *proc.named("worker")}) == 2


async def test_nothing_is_left_of_a_closed_program(sandbox: MontySandbox) -> None:
    await waiting_program(sandbox)
    await sandbox.close()
    assert proc.named("worker") == []


async def test_the_kernel_remembers_no_process_of_a_closed_program(sandbox: MontySandbox) -> None:
    number = await waiting_program(sandbox)
    around = int(status(int(status(number)["PPid"]))["PPid"])
    await sandbox.close()
    assert proc.name_of(around) == proc.GONE


async def test_nothing_is_left_of_a_program_that_was_cancelled(sandbox: MontySandbox) -> None:
    program = await sandbox.start("while True:\n    pass", limits=ProgramLimits(step_seconds=25))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await program.run()
    assert proc.named("worker") == []


async def test_the_environment_can_t_put_another_worker_in_its_place(
    sandbox: MontySandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "monty"
    fake.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    fake.chmod(0o755)
    monkeypatch.setenv("MONTY_BIN", str(fake))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(await ran(sandbox, "1"), ProgramEnd)
