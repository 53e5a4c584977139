"""`shell(...)`: a tool that runs one command at a time, each in a new sandbox that ends with all its processes."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast, get_args

from pydantic import Field

from holdfast.errors import InvalidArgument
from holdfast.names import check_int
from holdfast.store.paths import FOLDER, in_store_folder
from holdfast.toolkits.files.workspace import make_protection
from holdfast.toolkits.shell import guard, run
from holdfast.toolkits.shell.policy import WORKSPACE, Profile, ShellSettings, check_command, check_env, check_timeout
from holdfast.toolkits.shell.policy import CommandRefused as CommandRefused
from holdfast.toolkits.shell.policy import ControlGroupRefused as ControlGroupRefused
from holdfast.toolkits.shell.policy import SandboxFailed as SandboxFailed
from holdfast.toolkits.shell.policy import SandboxUnavailable as SandboxUnavailable
from holdfast.toolkits.shell.policy import WorkspaceRefused as WorkspaceRefused
from holdfast.toolkits.shell.sandbox import check_control_groups, require_sandbox
from holdfast.toolkits.shell.sandbox import sandbox_problem as sandbox_problem
from holdfast.tools.context import Context  # noqa: TC001  read from the signature
from holdfast.tools.definition import AnyTool, Reach, tool
from holdfast.tools.functions import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta


_MAX_LISTED: Final = 20
"""Most names that a result lists."""
_PROTECTED_NOTE: Final = (
    "Names that other programs act on, such as .git, AGENTS.md or .npmrc, can't be changed; where one is missing, an "
    "empty folder stands in for it while a command runs, and is not part of the workspace. "
)
_DISARMED_NOTE: Final = (
    "git repositories appeared and were disarmed, so that git on the host does not run what they name: {} "
    f"(HEAD, or a .git file, was renamed to end in {guard.DISARMED_SUFFIX}; "
    f"a person whose own it is undoes that there with `mv HEAD{guard.DISARMED_SUFFIX} HEAD`)"
)
_REACH_NOTES: Final = {
    "read": f"The workspace is {WORKSPACE} and can only be read; /tmp can be written. There is no network.",
    "write": f"The workspace is {WORKSPACE} and can be written. There is no network.",
    "unsafe": "It runs in the workspace, with no sandbox around it.",
    "network": f"The workspace is {WORKSPACE} and can be written. The network can be reached.",
}


def shell(
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
    """The tool `shell`, which runs one command in the folder `workspace`, in a new sandbox.

    With the profile "read" a command can change nothing that outlives it. "write" lets it change the workspace, except
    names that other programs act on (`holdfast.toolkits.files.PROTECTED_NAMES`, with `protect`, without `unprotect`).
    "network" also lets it reach the network. Git repositories that a command creates are disarmed after its end.

    A command gets `timeout` seconds, and the environment variables that `env` names. Each of its processes gets
    `memory` bytes, and together they share no more; with `control_groups`, folders that the host delegates, the memory
    of all processes counts together. A command is killed if it makes the workspace larger than `workspace_bytes`, or
    puts more than `workspace_files` files and folders into it. A result shows `output_limit` bytes of output.

    Raises `SandboxUnavailable` if commands can't be confined here. Only ``unsafe=True`` runs them without a sandbox,
    with all permissions of this process, under any profile.
    """
    if type(unsafe) is not bool:
        raise InvalidArgument("unsafe", unsafe, "True or False")
    if profile not in get_args(Profile):
        raise InvalidArgument("profile", profile, "'read', 'write' or 'network'")
    real = _check_workspace(workspace)
    settings = ShellSettings(
        workspace=real,
        protection=make_protection(protect, unprotect, Path(real).parts),
        profile=profile,
        sandboxed=not unsafe,
        seconds=check_timeout(timeout),
        memory=check_int("memory", memory, least=32 * 2**20),
        output=check_int("output_limit", output_limit, least=500, most=10_000_000),
        variables=check_env(env),
        workspace_bytes=check_int("workspace_bytes", workspace_bytes, least=2**20),
        workspace_files=check_int("workspace_files", workspace_files, least=1),
        control_groups=_check_control_groups(control_groups),
    )
    if settings.sandboxed:
        require_sandbox()
        check_control_groups(settings.control_groups, settings.memory)
        if settings.writes:
            guard.inspect_abandoned(settings.workspace, settings.protection)
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
    if isinstance(folders, str) or not isinstance(folders, tuple | list):
        raise InvalidArgument("control_groups", folders, "a tuple of folders")
    found = [folder for folder in cast("Iterable[object]", folders) if not isinstance(folder, str | os.PathLike)]
    if found:
        raise InvalidArgument("control_groups", found[0], "the path of a folder")
    return tuple(dict.fromkeys(os.fspath(folder) for folder in cast("Iterable[str | os.PathLike[str]]", folders)))


def _make_tool(settings: ShellSettings) -> AnyTool:
    most = ceil(settings.seconds)

    async def shell(ctx: Context | None, command: str, timeout: Annotated[int, Field(ge=1)] = most) -> dict[str, Any]:
        """Run one command.

        Args:
            ctx: The call.
            command: What to run, as you would type it into bash.
            timeout: Seconds after which the command is killed.
        """
        stop = threading.Event()

        def tell(note: str) -> None:
            if ctx is not None:
                with suppress(RuntimeError):  # the loop is closed
                    ctx.progress(note)

        checked, seconds = check_command(command), min(float(timeout), settings.seconds)
        asked = {"settings": settings, "command": checked, "seconds": seconds, "tell": tell, "stop": stop}
        work = asyncio.ensure_future(run_in_thread(run.run_command, asked))
        try:
            return _render_result(cast("run.CommandResult", await asyncio.shield(work)))
        except asyncio.CancelledError:
            # After a cancellation, nothing may still run.
            stop.set()
            work.add_done_callback(lambda work: work.cancelled() or work.exception())  # its error is consumed
            await asyncio.wait((work,), timeout=15.0)
            raise

    writes = settings.writes
    reach = Reach(
        family="shell",
        private=True,
        external=not settings.sandboxed or settings.profile == "network",
        base=settings.workspace,
        command="command",
        sandbox=f"{settings.profile} in {settings.workspace}" if settings.sandboxed else "none",
        workspaces=(settings.workspace,),
        hides_store=settings.sandboxed,
    )
    surroundings = _REACH_NOTES[settings.profile if settings.sandboxed else "unsafe"]
    told = (
        "Run one command with bash and get its exit code and its output (stdout and stderr together). "
        f"{surroundings} {_PROTECTED_NOTE if settings.sandboxed and writes else ''}Each call is a new shell: folder "
        "and variables are not kept. It can't ask anything: its standard input is empty. Nothing goes on after it: "
        "what it leaves in the background is ended with it. An exit code other than 0 is a result, not an error. "
        "Long output is cut in the middle. "
        f"A command is killed after {settings.seconds:g} s; `timeout` can make that less."
    )
    make = tool(
        read_only=not writes, idempotent=not writes, destructive=writes, untrusted=True, reach=reach, description=told
    )
    return make(shell)


def _render_result(ended: run.CommandResult) -> dict[str, Any]:
    """The result for the model, with a note if the output or the workspace needs one."""
    notes = [ended.killed] if ended.killed else []
    if ended.shown.left_out:
        notes.append(f"{ended.shown.left_out:,} of {ended.shown.size:,} bytes of output are left out in the middle")
    if ended.shown.replaced:
        notes.append("the output is not UTF-8; bytes that are not are shown as \ufffd")
    found = ended.findings
    for names, note in (
        (found.names, "protected names appeared, a person should look at them: {}"),
        (found.disarmed, _DISARMED_NOTE),
        (found.armed, "git repositories appeared that could not be disarmed, do not run git in {}"),
    ):
        if names:
            notes.append(note.format(guard.list_names(names, _MAX_LISTED)))
    if found.left_out:
        notes.append(f"{found.left_out:,} more of them are not listed")
    if found.unread:
        notes.append(f"{found.unread:,} folders could not be looked into for repositories")
    result: dict[str, Any] = {"exit_code": ended.code, "output": ended.shown.text}
    if found.names:
        result["appeared"] = found.names[:_MAX_LISTED]
    if found.disarmed:
        result["disarmed"] = found.disarmed[:_MAX_LISTED]
    return {**result, "note": "; ".join(notes)} if notes else result
