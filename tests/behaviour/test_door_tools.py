"""`hf.tools`: the families of tools that come with Holdfast, through one door, loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.every import every

import holdfast as hf
from holdfast import tools
from holdfast.testing import ScriptedModel
from holdfast.toolkits.shell import sandbox_problem
from holdfast.tools import TOOLKITS

if TYPE_CHECKING:
    from pathlib import Path


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@every("family", TOOLKITS)
def test_a_family_is_at_the_door_after_a_plain_import(family: str) -> None:
    assert printed(f"import holdfast as hf; print(callable(hf.tools.{family}))") == "True"


@every("family", TOOLKITS)
def test_a_family_can_be_imported_by_its_name(family: str) -> None:
    assert printed(f"from holdfast.tools import {family}; print(callable({family}))") == "True"


def test_importing_holdfast_loads_no_tools() -> None:
    assert printed("import sys, holdfast; print(*[name for name in sys.modules if 'holdfast.' in name])") == ""


def test_the_door_of_tools_loads_no_family_before_it_is_used() -> None:
    code = "import sys, holdfast.tools; print(*[name for name in sys.modules if 'holdfast.toolkits' in name])"
    assert printed(code) == ""


def test_one_family_does_not_load_the_others() -> None:
    loaded = printed("import sys, holdfast as hf; hf.tools.timers(); print(*sys.modules)")
    assert "holdfast.toolkits.timers" in loaded
    assert not any(f"holdfast.toolkits.{other}" in loaded for other in set(TOOLKITS) - {"timers"})


def test_a_family_stays_reachable_when_something_else_has_imported_the_tools() -> None:
    assert printed("import holdfast.tools, holdfast as hf; print(hf.tools is holdfast.tools)") == "True"


def test_what_was_at_the_door_of_tools_before_is_there_still() -> None:
    names = ["AnyTool", "NotDone", "Tool", "ToolRetry", "ToolRetryPolicy", "Toolset", "abandoned", "tool", "toolset"]
    assert all(hasattr(tools, name) for name in names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'holdfast\.tools' has no attribute 'nonsense'"):
        getattr(tools, "nonsense")  # noqa: B009  a plain access would not pass the type checker


def test_dir_lists_the_families() -> None:
    assert set(TOOLKITS) <= set(dir(tools))
    assert "tools" in dir(hf)


def test_what_belongs_to_tools_and_tasks_is_at_the_door() -> None:
    assert hf.toolset is tools.toolset
    assert hf.Toolset is tools.Toolset
    assert hf.ToolRetryPolicy is tools.ToolRetryPolicy
    assert issubclass(hf.errors.TaskUnknown, hf.UsageError)


@pytest.mark.skipif(sandbox_problem() is not None, reason="commands can't be confined here")
def test_an_agent_takes_all_families_at_once(tmp_path: Path) -> None:
    made = hf.Agent(
        "hands",
        model=ScriptedModel([]),
        tools=[
            hf.tools.files(tmp_path),
            hf.tools.shell(tmp_path),
            hf.tools.web(),
            hf.tools.memory(lambda ctx: ctx.session),
            hf.tools.tasks(),
            hf.tools.timers(),
        ],
        policy=[hf.allow("*")],
    )
    assert {"read_file", "shell", "fetch", "memory", "read_task", "read_result", "set_timer"} <= set(made.tools)
