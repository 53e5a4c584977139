"""Programs in the sandbox: what they can do, what they leave, and how they end."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.sandboxed import NOW, QUICK, TOOLS, driven, needs_sandbox, ran

from holdfast.errors import InvalidArgument, InvalidNumber
from holdfast.errors.caller import AnswerRefused, ProgramOver
from holdfast.errors.world import SandboxFull
from holdfast.sandbox import (
    CallError,
    CallResult,
    CallValue,
    LimitHit,
    MontySandbox,
    PendingCalls,
    Program,
    ProgramEnd,
    ProgramFailure,
    ProgramLimits,
    Sandbox,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = needs_sandbox


@pytest.fixture
async def sandbox() -> AsyncGenerator[MontySandbox]:
    async with MontySandbox() as made:
        yield made


async def value(sandbox: MontySandbox, source: str, **given: Any) -> Any:
    step = await ran(sandbox, source, **given)
    assert isinstance(step, ProgramEnd), step
    return step.value


async def error(sandbox: MontySandbox, source: str, **given: Any) -> str:
    step = await ran(sandbox, source, **given)
    assert isinstance(step, ProgramFailure), step
    return step.error


async def test_it_is_what_the_contract_asks_for(sandbox: MontySandbox) -> None:
    program = await sandbox.start("1")
    assert isinstance(sandbox, Sandbox)
    assert isinstance(program, Program)


# ---- calls -----------------------------------------------------------------------------------------------------------


async def test_a_program_calls_tools_in_loops_and_ends_with_a_value(sandbox: MontySandbox) -> None:
    assert await value(sandbox, "total = 0\nfor n in range(4):\n    total += await fetch(n)\ntotal") == 12


async def test_gathered_calls_are_asked_for_together(sandbox: MontySandbox) -> None:
    program = await sandbox.start("import asyncio\nawait asyncio.gather(fetch(1), fetch(n=2))", tools=TOOLS)
    step = await program.run()
    assert isinstance(step, PendingCalls)
    assert [(call.name, call.arguments) for call in step.calls] == [("fetch", {"n": 1}), ("fetch", {"n": 2})]


async def test_gathered_calls_settle_in_the_order_of_their_answers(sandbox: MontySandbox) -> None:
    source = (
        "import asyncio\nseen = []\nasync def one(n):\n    seen.append(await fetch(n))\n"
        "await asyncio.gather(*[one(n) for n in range(3)])\nseen"
    )
    program = await sandbox.start(source, tools=TOOLS)
    step = await program.run()
    assert isinstance(step, PendingCalls)
    results = [CallResult(call.id, CallValue(call.arguments["n"])) for call in step.calls]
    ended = await program.answer([results[2], results[0], results[1]])
    assert isinstance(ended, ProgramEnd)
    assert ended.value == [2, 0, 1]


async def test_some_of_the_calls_can_be_answered_first(sandbox: MontySandbox) -> None:
    program = await sandbox.start("import asyncio\nlist(await asyncio.gather(fetch(1), fetch(2)))", tools=TOOLS)
    step = await program.run()
    assert isinstance(step, PendingCalls)
    first, second = step.calls
    again = await program.answer([CallResult(second.id, CallValue("b"))])
    assert again == PendingCalls((), (first.id,))
    ended = await program.answer([CallResult(first.id, CallValue("a"))])
    assert isinstance(ended, ProgramEnd)
    assert ended.value == ["a", "b"]


async def test_a_failed_call_is_an_exception_that_a_program_can_catch(sandbox: MontySandbox) -> None:
    source = "try:\n    await fetch(1)\nexcept PermissionError as error:\n    said = str(error)\nsaid"
    program = await sandbox.start(source, tools=TOOLS)
    step, _ = await driven(program, lambda _: CallError("denied by policy", "PermissionError"))
    assert isinstance(step, ProgramEnd)
    assert step.value == "denied by policy"


async def test_a_call_that_is_not_awaited_is_made_and_the_program_ends_after_it(sandbox: MontySandbox) -> None:
    program = await sandbox.start("later = fetch(1)\n'done'", tools=TOOLS)
    step, results = await driven(program)
    assert isinstance(step, ProgramEnd)
    assert (step.value, len(results)) == ("done", 1)


async def test_calls_that_were_begun_are_asked_for_together_with_the_clock(sandbox: MontySandbox) -> None:
    source = "import time\nlater = fetch(1)\nbegan = time.time()\n[await later, began]"
    program = await sandbox.start(source, tools=TOOLS)
    step = await program.run()
    assert isinstance(step, PendingCalls)
    assert [call.name for call in step.calls] == ["fetch", "now"]
    other, clock = step.calls
    assert await program.answer([CallResult(other.id, CallValue(5))]) == PendingCalls((), (clock.id,))
    ended = await program.answer([CallResult(clock.id, CallValue(NOW))])
    assert isinstance(ended, ProgramEnd)
    assert ended.value == [5, NOW]


async def test_a_tool_can_be_handled_as_a_value(sandbox: MontySandbox) -> None:
    assert await value(sandbox, "get = fetch\nawait get(4)") == 8


async def test_the_clock_is_asked_of_the_host(sandbox: MontySandbox) -> None:
    source = "import time, datetime\n[time.time(), datetime.datetime.now().isoformat(), str(datetime.date.today())]"
    assert await value(sandbox, source) == [NOW, "2023-11-14T22:13:20.250000", "2023-11-14"]


async def test_a_time_with_a_zone_has_that_zone(sandbox: MontySandbox) -> None:
    source = "import datetime\ndatetime.datetime.now(datetime.timezone.utc).isoformat()"
    assert await value(sandbox, source) == "2023-11-14T22:13:20.250000+00:00"


async def test_pauses_are_asked_of_the_host(sandbox: MontySandbox) -> None:
    program = await sandbox.start("import asyncio, time\nawait asyncio.sleep(60)\ntime.sleep(3600)\n1", tools=TOOLS)
    step = await program.run()
    assert isinstance(step, PendingCalls)
    assert [(call.kind, call.arguments) for call in step.calls] == [("sleep", {"seconds": 60.0})]
    after = await program.answer([CallResult(step.calls[0].id, CallValue())])
    assert isinstance(after, PendingCalls)
    assert after.calls[0].arguments == {"seconds": 3600.0}
    assert isinstance(await program.answer([CallResult(after.calls[0].id, CallValue())]), ProgramEnd)


async def test_random_numbers_come_from_the_seed(sandbox: MontySandbox) -> None:
    source = "import random\n[random.random(), random.randrange(10**9)]"
    first = await value(sandbox, source, seed="a")
    assert await value(sandbox, source, seed="a") == first
    assert await value(sandbox, source, seed="b") != first


async def test_arguments_that_json_has_no_word_for_are_an_error_in_the_program(sandbox: MontySandbox) -> None:
    source = "x: list = [{1}]\ntry:\n    await save(x)\nexcept TypeError as error:\n    said = str(error)\nsaid"
    assert "JSON has no word for" in await value(sandbox, source)


# ---- the check before anything runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print(1)\nawait fetch('one')", "program.py:2:13: error[invalid-argument-type]"),
        ("await fetch(1, 2)", "too-many-positional-arguments"),
        ("await fetch()", "missing-argument"),
        ("await refund(1)", "Name `refund` used when not defined"),
        ("fetch(1)", "is not awaited"),
        ("await save([1], note=3)", "Expected `str`"),
        ("def f(:", "invalid-syntax"),
        ("x = [1]\nprint(x)\ndel x[0]", "does not yet support the 'del' statement"),
        ("import requests", "Cannot resolve imported module `requests`"),
    ],
)
async def test_a_program_with_a_mistake_is_refused_before_it_does_anything(
    sandbox: MontySandbox, source: str, said: str
) -> None:
    step = await ran(sandbox, source)
    assert isinstance(step, ProgramFailure)
    assert said in step.error
    assert (step.phase, step.printed, step.kept) == ("check", "", None)


async def test_builtins_that_the_sandbox_has_pass_the_check(sandbox: MontySandbox) -> None:
    assert await value(sandbox, "[*map(str, filter(None, [0, 1])), format(1.5, '.2f')]") == ["1", "1.50"]


# ---- the end ---------------------------------------------------------------------------------------------------------


async def test_an_exception_is_told_with_its_place(sandbox: MontySandbox) -> None:
    said = await error(sandbox, "x = 1\nx / 0")
    assert "line 2" in said
    assert said.endswith("ZeroDivisionError: division by zero")


async def test_what_was_printed_is_told_also_when_it_fails(sandbox: MontySandbox) -> None:
    step = await ran(sandbox, "print('before')\n[][1]")
    assert isinstance(step, ProgramFailure)
    assert step.printed == "before\n"


async def test_of_much_output_the_middle_is_left_out(sandbox: MontySandbox) -> None:
    step = await ran(sandbox, "for n in range(5000):\n    print(n)", limits=ProgramLimits(output=500))
    assert isinstance(step, ProgramEnd)
    assert len(step.printed) < 700
    assert step.printed.startswith("0\n1\n")
    assert step.printed.endswith("4998\n4999\n")


async def test_a_value_that_json_has_no_word_for_is_told(sandbox: MontySandbox) -> None:
    assert "a set, which JSON has no word for" in await error(sandbox, "x = {1}\nx")


# ---- variables that live on ------------------------------------------------------------------------------------------


async def test_variables_live_on_in_the_next_program(sandbox: MontySandbox) -> None:
    first = await ran(sandbox, "rows = [await fetch(n) for n in range(3)]\nname = 'x'")
    assert isinstance(first, ProgramEnd)
    assert first.kept is not None
    assert await value(sandbox, "rows.append(9)\n[rows, name]", globals=first.kept.values) == [[0, 2, 4, 9], "x"]


async def test_what_is_no_plain_value_does_not_live_on_and_that_is_told(sandbox: MontySandbox) -> None:
    step = await ran(
        sandbox, "import json\nf = lambda: 0\nfs = [1, f]\ns = {1}\nclass A:\n    pass\na = A()\n_x = 1\nt = '<b>'"
    )
    assert isinstance(step, ProgramEnd)
    assert step.kept is not None
    assert step.kept.values == {"t": "<b>"}
    assert {*step.kept.dropped} == {"f", "fs", "s", "A", "a"}


async def test_a_variable_that_is_too_large_does_not_live_on(sandbox: MontySandbox) -> None:
    step = await ran(sandbox, "a = 1\nbig = 'x' * 2000\nz = 2", limits=ProgramLimits(variables=1000))
    assert isinstance(step, ProgramEnd)
    assert step.kept is not None
    assert step.kept.values == {"a": 1, "z": 2}
    assert {*step.kept.dropped} == {"big"}


async def test_a_program_that_raises_leaves_what_it_had_set(sandbox: MontySandbox) -> None:
    step = await ran(sandbox, "x = 1\n1 / 0\ny = 2", globals={"old": 5})
    assert isinstance(step, ProgramFailure)
    assert step.kept is not None
    assert step.kept.values == {"old": 5, "x": 1}


async def test_a_program_that_is_stopped_leaves_nothing(sandbox: MontySandbox) -> None:
    step = await ran(sandbox, "x = 1\nwhile True:\n    pass", limits=ProgramLimits(step_seconds=0.2))
    assert isinstance(step, LimitHit)
    assert "variables are what they were before" in step.error


# ---- hosts that drive it in a wrong way ------------------------------------------------------------------------------


async def test_an_answer_to_nothing_is_refused_and_the_program_goes_on(sandbox: MontySandbox) -> None:
    program = await sandbox.start("await fetch(1)", tools=TOOLS)
    step = await program.run()
    assert isinstance(step, PendingCalls)
    with pytest.raises(AnswerRefused):
        await program.answer([CallResult(f"{step.calls[0].id}0", CallValue(1))])
    with pytest.raises(AnswerRefused):
        await program.answer([])
    assert isinstance(await program.answer([CallResult(step.calls[0].id, CallValue(1))]), ProgramEnd)


async def test_a_program_that_has_ended_can_t_go_on(sandbox: MontySandbox) -> None:
    program = await sandbox.start("1")
    await program.run()
    for again in (program.run(), program.answer([])):
        with pytest.raises(ProgramOver):
            await again


async def test_a_program_that_does_not_wait_takes_no_answer(sandbox: MontySandbox) -> None:
    program = await sandbox.start("1")
    with pytest.raises(ProgramOver, match="does not wait"):
        await program.answer([])


async def test_a_closed_program_can_t_go_on(sandbox: MontySandbox) -> None:
    program = await sandbox.start("await fetch(1)", tools=TOOLS)
    await program.run()
    await program.close()
    await program.close()
    with pytest.raises(ProgramOver):
        await program.answer([])


async def test_a_closed_sandbox_starts_nothing() -> None:
    sandbox = MontySandbox()
    await sandbox.close()
    with pytest.raises(ProgramOver):
        await sandbox.start("1")


async def test_a_step_that_is_cancelled_ends_the_program_at_once(sandbox: MontySandbox) -> None:
    program = await sandbox.start("while True:\n    pass", limits=ProgramLimits(step_seconds=25))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await program.run()
    with pytest.raises(ProgramOver):
        await program.answer([])


async def test_a_full_sandbox_runs_no_more_programs_until_one_is_closed() -> None:
    async with MontySandbox(max_programs=1) as sandbox:
        first = await sandbox.start("while True:\n    pass", tools=TOOLS)
        running = asyncio.ensure_future(first.run())
        await asyncio.sleep(0)
        with pytest.raises(SandboxFull):
            await (await sandbox.start("1")).run()
        await first.close()
        with pytest.raises(ProgramOver):
            await running
        assert await value(sandbox, "1") == 1
        assert await value(sandbox, "2") == 2


PATIENT = """
import asyncio
print("begun")
seen = []
async def one(n):
    seen.append(await fetch(n))
await fetch(0)
await asyncio.gather(*[one(n) for n in range(3)])
print("over")
seen
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sandbox.monty.PARK_AFTER", 0.0)


async def test_a_full_sandbox_takes_no_process_from_a_program_that_has_just_begun_to_wait() -> None:
    async with MontySandbox(max_programs=1) as sandbox:
        first = await sandbox.start("await fetch(1)", tools=TOOLS)
        await first.run()
        with pytest.raises(SandboxFull):
            await (await sandbox.start("1")).run()


@pytest.mark.usefixtures("impatient")
async def test_in_a_full_sandbox_a_program_that_waits_gives_its_place_to_another() -> None:
    async with MontySandbox(max_programs=1) as sandbox:
        alone = await ran(sandbox, PATIENT)
        patient = await sandbox.start(PATIENT, tools=TOOLS)
        step = await patient.run()
        while isinstance(step, PendingCalls):
            assert await value(sandbox, "await fetch(4)") == 8  # while the other one waits
            given = [CallResult(call.id, CallValue(call.arguments["n"] * 2), call.digest) for call in step.calls]
            step = await patient.answer(given)
        assert step == alone


@pytest.mark.usefixtures("impatient")
async def test_a_call_is_asked_for_once_though_its_program_gave_up_its_place() -> None:
    async with MontySandbox(max_programs=1) as sandbox:
        program = await sandbox.start("import asyncio\nawait asyncio.gather(fetch(1), fetch(2))", tools=TOOLS)
        step = await program.run()
        assert isinstance(step, PendingCalls)
        first, second = step.calls
        assert await value(sandbox, "1") == 1
        step = await program.answer([CallResult(first.id, CallValue(1), first.digest)])
        assert step == PendingCalls((), (second.id,))


@pytest.mark.usefixtures("impatient")
async def test_a_program_that_gave_up_its_place_can_be_closed() -> None:
    async with MontySandbox(max_programs=1) as sandbox:
        program = await sandbox.start("await fetch(1)", tools=TOOLS)
        step = await program.run()
        assert isinstance(step, PendingCalls)
        assert await value(sandbox, "1") == 1
        await program.close()
        with pytest.raises(ProgramOver):
            await program.answer([CallResult(step.calls[0].id, CallValue(1))])


async def test_without_bubblewrap_only_when_that_is_asked_for() -> None:
    async with MontySandbox(unsafe=True) as sandbox:
        assert await value(sandbox, "await fetch(2)") == 4


@pytest.mark.parametrize("given", [{"unsafe": 1}, {"max_programs": 0}])
def test_a_sandbox_that_can_t_be_meant_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgument, InvalidNumber)):
        MontySandbox(**given)


def test_what_starts_programs_is_loaded_with_the_first_one_only() -> None:
    import subprocess

    code = "import sys, holdfast.sandbox; sys.exit('holdfast.sandbox.monty' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_limits_of_the_tests_are_within_those_of_programs() -> None:
    assert QUICK.seconds <= ProgramLimits().seconds
