"""`shell(...)`: the tool by which an agent runs commands."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from pydantic import Field

from holdfast.errors import InvalidArgument
from holdfast.store.paths import FOLDER, in_store_folder
from holdfast.toolkits.files.workspace import make_protection
from holdfast.toolkits.shell import sandbox
from holdfast.toolkits.shell.policy import (
    WORKSPACE,
    Profile,
    ShellSettings,
    WorkspaceRefused,
    check_command,
    check_profile,
    check_timeout,
    check_variables,
    checked_memory,
    checked_output,
    checked_workspace_bytes,
    checked_workspace_files,
)
from holdfast.toolkits.shell.repositories import DISARMED_SUFFIX, inspect_abandoned
from holdfast.toolkits.shell.run import CommandResult, StopSignal, run_command
from holdfast.toolkits.shell.sandbox import MAX_PROCESSES, require_sandbox
from holdfast.tools import tool
from holdfast.tools.context import Context  # noqa: TC001  read from the signature
from holdfast.tools.definition import Reach
from holdfast.tools.functions import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from holdfast.toolkits.shell.repositories import Findings
    from holdfast.tools import AnyTool


_END_SECONDS: Final = 15.0
_MAX_LISTED: Final = 20
"""How many of the names that appeared a result lists."""
_PROTECTED_NOTE: Final = (
    "Names that other programs act on, such as .git, AGENTS.md or .npmrc, can't be changed; where one is missing, an "
    "empty folder stands in for it while a command runs, and is not part of the workspace. "
)
_REACH: Final = {
    "read": f"The workspace is {WORKSPACE} and can only be read; /tmp can be written. There is no network.",
    "write": f"The workspace is {WORKSPACE} and can be written. There is no network.",
    "network": f"The workspace is {WORKSPACE} and can be written. The network can be reached.",
}


def shell(  # noqa: PLR0913  one keyword for each thing that a host decides
    workspace: str | os.PathLike[str],
    *,
    profile: Profile = "read",
    unsafe: bool = False,
    timeout: float | timedelta = 120,
    memory: int = 2 * 2**30,
    output_limit: int = 30_000,
    env: tuple[str, ...] = (),
    workspace_bytes: int = 32 * 2**30,
    workspace_files: int = 2_000_000,
    protect: Sequence[str] = (),
    unprotect: Sequence[str] = (),
    control_groups: tuple[str | os.PathLike[str], ...] = (),
) -> tuple[AnyTool, ...]:
    """The tool `shell`, which runs one command in the folder `workspace`, in a sandbox of its own.

    With the profile "read" a command can change nothing that outlives it; "write" lets it change the workspace, but for
    names that other programs act on (`holdfast.toolkits.files.PROTECTED_NAMES`, with `protect`, without `unprotect`);
    "network" lets it reach the network too. Git repositories that a command makes are disarmed when it has ended.
    A command gets `timeout` seconds, and of the environment the variables that `env` names. Each of its processes gets
    `memory` bytes, and together they share no more; below folders of `control_groups` that were handed to us, memory of
    all of them counts together. A command that makes the workspace larger than `workspace_bytes`, or puts more than
    `workspace_files` files and folders into it, is killed. A result shows `output_limit` bytes of output.

    Raises `SandboxUnavailable` where commands can't be confined. Only ``unsafe=True`` runs them without a sandbox, with
    all that this process may do, whatever the profile.
    """
    if type(unsafe) is not bool:
        raise InvalidArgument("unsafe", unsafe, "True or False")
    real = _check_workspace(workspace)
    settings = ShellSettings(
        workspace=real,
        protection=make_protection(protect, unprotect, Path(real).parts),
        profile=check_profile(profile),
        sandboxed=not unsafe,
        seconds=check_timeout(timeout),
        memory=checked_memory(memory),
        output=checked_output(output_limit),
        variables=check_variables(env),
        workspace_bytes=checked_workspace_bytes(workspace_bytes),
        workspace_files=checked_workspace_files(workspace_files),
        control_groups=_check_control_groups(control_groups),
    )
    if settings.sandboxed:
        require_sandbox()
        sandbox.check_control_groups(settings.control_groups, settings.memory, MAX_PROCESSES)
        if settings.writes:
            inspect_abandoned(settings.workspace, settings.protection)
    return (_make_tool(settings),)


def _check_workspace(workspace: object) -> str:
    if not isinstance(workspace, str | os.PathLike):
        raise InvalidArgument("workspace", workspace, "the path of a folder")
    path = os.fspath(cast("str | os.PathLike[str]", workspace))
    try:
        real = os.path.realpath(path, strict=True)
    except (OSError, ValueError) as error:
        raise WorkspaceRefused(str(path), f"there is no such folder ({error})") from error
    if not os.path.isdir(real):  # noqa: PTH112  a path that was just made
        raise WorkspaceRefused(real, "it is not a folder")
    if real == "/":
        raise WorkspaceRefused(real, "it is the whole machine; give a folder for the agent to work in")
    if in_store_folder(real):
        raise WorkspaceRefused(real, f"it is in a folder {FOLDER}, where stores are kept; give another folder")
    return real


def _check_control_groups(folders: object) -> tuple[str, ...]:
    """Folders of control groups that the host hands over."""
    if isinstance(folders, str) or not isinstance(folders, tuple | list):
        raise InvalidArgument("control_groups", folders, "a tuple of folders")
    found = [folder for folder in cast("Iterable[object]", folders) if not isinstance(folder, str | os.PathLike)]
    if found:
        raise InvalidArgument("control_groups", found[0], "the path of a folder")
    return tuple(dict.fromkeys(os.fspath(folder) for folder in cast("Iterable[str | os.PathLike[str]]", folders)))


def _make_tool(settings: ShellSettings) -> AnyTool:
    most = ceil(settings.seconds)

    async def shell(
        ctx: Context | None,
        command: str,
        timeout: Annotated[int, Field(ge=1)] = most,
    ) -> dict[str, Any]:
        """Run one command.

        Args:
            ctx: The call.
            command: What to run, as you would type it into bash.
            timeout: Seconds after which the command is killed.
        """
        said = check_command(command)
        seconds = min(float(timeout), settings.seconds)
        return _render_result(await _run_in_thread(settings, said, seconds, ctx), seconds)

    writes = settings.writes
    confined = f"{settings.profile} in {settings.workspace}" if settings.sandboxed else "none"
    reach = Reach(
        family="shell",
        private=True,
        external=not settings.sandboxed or settings.profile == "network",
        base=settings.workspace,
        command="command",
        sandbox=confined,
        workspaces=(settings.workspace,),
        hides_store=settings.sandboxed,
    )
    made = tool(
        read_only=not writes,
        idempotent=not writes,
        destructive=writes,
        untrusted=True,
        reach=reach,
        description=_describe(settings),
    )
    return made(shell)


def _describe(settings: ShellSettings) -> str:
    reach = _REACH[settings.profile] if settings.sandboxed else "It runs in the workspace, with no sandbox around it."
    alone = "Nothing goes on after it: what it leaves in the background is ended with it."
    kept = _PROTECTED_NOTE if settings.sandboxed and settings.writes else ""
    return (
        "Run one command with bash and get its exit code and its output (stdout and stderr together). "
        f"{reach} {kept}Each call is a new shell: folder and variables are not kept. It can't ask anything: its "
        f"standard input is empty. {alone} An exit code other than 0 is a result, not an error. "
        "Long output is cut in the middle. "
        f"A command is killed after {settings.seconds:g} s; `timeout` can make that less."
    )


async def _run_in_thread(settings: ShellSettings, command: str, seconds: float, ctx: Context | None) -> CommandResult:
    stop = StopSignal()

    def tell(note: str) -> None:
        if ctx is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody watches any more
                ctx.progress(note)

    asked = {"settings": settings, "command": command, "seconds": seconds, "tell": tell, "stop": stop}
    work = asyncio.ensure_future(run_in_thread(run_command, asked))
    try:
        return cast("CommandResult", await asyncio.shield(work))
    except asyncio.CancelledError:
        # Whoever cancelled must find nothing running.
        stop.ask()
        work.add_done_callback(_consume_error)
        await asyncio.wait((work,), timeout=_END_SECONDS)
        raise


def _consume_error(work: asyncio.Future[object]) -> None:
    if not work.cancelled():
        work.exception()


def _render_result(ended: CommandResult, seconds: float) -> dict[str, Any]:
    """The result as the model sees it; a note only where something is to be said."""
    reasons = {
        "ended": "",
        "stopped": "stopped, with all that it had started",
        "timeout": f"killed after {seconds:g} s, with all that it had started",
        "over": f"killed, with all that it had started: {ended.limit}",
        "crowded": f"killed, with all that it had started: it had more than {MAX_PROCESSES} processes",
    }
    notes = [reasons[ended.why]] if reasons[ended.why] else []
    if ended.shown.left_out:
        notes.append(f"{ended.shown.left_out:,} of {ended.shown.size:,} bytes of output are left out in the middle")
    if ended.shown.replaced:
        notes.append("the output is not UTF-8; bytes that are not are shown as \ufffd")
    notes += _describe_findings(ended.findings)
    told: dict[str, Any] = {"exit_code": ended.code, "output": ended.shown.text}
    if ended.findings.names:
        told["appeared"] = ended.findings.names[:_MAX_LISTED]
    if ended.findings.disarmed:
        told["disarmed"] = ended.findings.disarmed[:_MAX_LISTED]
    return {**told, "note": "; ".join(notes)} if notes else told


def _describe_findings(found: Findings) -> list[str]:
    """What appeared in the workspace, in words for a model and for a person."""
    notes: list[str] = []
    if found.names:
        notes.append(f"protected names appeared, a person should look at them: {_list_names(found.names)}")
    if found.disarmed:
        notes.append(
            f"git repositories appeared and were disarmed, so that git on the host does not run what they name: "
            f"{_list_names(found.disarmed)} (HEAD, or a .git file, was renamed to end in {DISARMED_SUFFIX}; "
            f"a person whose own it is undoes that there with `mv HEAD{DISARMED_SUFFIX} HEAD`)"
        )
    if found.armed:
        notes.append(
            f"git repositories appeared that could not be disarmed, do not run git in {_list_names(found.armed)}"
        )
    if found.left_out:
        notes.append(f"{found.left_out:,} more of them are not listed")
    if found.unread:
        notes.append(f"{found.unread:,} folders could not be looked into for repositories")
    return notes


def _list_names(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")
