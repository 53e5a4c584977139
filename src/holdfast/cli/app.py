"""The command line: `holdfast`, or `python -m holdfast`. A command loads its module when it is used."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from holdfast import __version__, errors
from holdfast.cli.options import FAILED, INTERRUPTED, USAGE, CommandGroup, flag, option

COMMANDS: Final = {
    "run": ("run", "Ask an agent, and print its answer."),
    "chat": ("run", "Talk to an agent, line by line."),
    "call": ("call", "Make one tool call of an agent, without a model."),
    "ps": ("sessions", "List the sessions that run or wait."),
    "show": ("show", "Show what happened in a session, turn by turn."),
    "logs": ("show", "Print the events of a session, one to a line."),
    "trace": ("trace", "Show where the time of a session went, or send its spans to a collector."),
    "resume": ("run", "Continue an interrupted, queued or answered session."),
    "retry": ("run", "Try a turn again that failed, was cancelled or reached a limit."),
    "cancel": ("sessions", "Cancel the turn of a session that is under way."),
    "resolve": ("approvals", "Answer a deferred call or the wait of a session."),
    "fork": ("sessions", "Start a new session from a record of another one."),
    "rm": ("retention", "Forget a session and everything that belongs to it."),
    "prune": ("retention", "Forget the sessions that ended long ago."),
    "export": ("exports", "Write a session into a file, to copy or move it."),
    "import": ("exports", "Store the session of a file."),
    "backup": ("retention", "Copy the store into a file while it is in use."),
    "compact": ("sessions", "Summarise the older part of a conversation."),
    "replay": ("sessions", "Check the code of an agent against a recorded session."),
    "inbox": ("approvals", "List what waits for a person."),
    "approve": ("approvals", "Allow a tool call that waits for an approval."),
    "deny": ("approvals", "Refuse a tool call that waits for an approval."),
    "doctor": ("doctor", "Examine the health of a store."),
    "attachments": ("attachments", "Files that are sent to agents."),
    "models": ("models", "List the known providers, or test a model."),
    "memory": ("memory", "Read and change the memory of agents."),
    "notifications": ("notifications", "List the notifications for sessions."),
    "policy": ("policy", "Show what an agent may do, and try calls."),
    "processes": ("processes", "List, start, signal and cancel durable functions."),
    "profiles": ("profiles", "Named sets of defaults for other commands."),
    "rules": ("policy", "List the rules that were stored with approvals."),
    "tasks": ("processes", "List the tool calls that run in the background."),
    "triggers": ("triggers", "List what starts work by itself."),
}
"""All commands in the order of `--help`: the module that declares each, and a summary.

A command is a function or a `CommandGroup` of its name. `--help` prints the summaries without loading a module.
"""


def _function_of(command: str) -> str:
    return f"{command}_" if iskeyword(command) else command


class RootGroup(TyperGroup):
    """All commands. An error is printed in one line, never as a traceback."""

    def __init__(self, **settings: Any) -> None:  # those of typer
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # typer does not export the types
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            declared = getattr(import_module(f"holdfast.cli.{COMMANDS[cmd_name][0]}"), _function_of(cmd_name))
            if not isinstance(declared, CommandGroup):
                group = CommandGroup()
                group.command(cmd_name)(declared)
                declared = group
            self.commands[cmd_name] = typer.main.get_command(declared)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader of our output is gone: flushing the rest of it at exit must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except (errors.HoldfastError, OSError) as error:
            from holdfast.cli.output import printable, stderr  # not for `--help`

            stderr().line(f"holdfast: {printable(' '.join(str(error).split()))}")
            raise typer.Exit(USAGE if isinstance(error, errors.UsageError) else FAILED) from error


app = CommandGroup(
    name="holdfast", cls=RootGroup, no_args_is_help=True, invoke_without_command=True, pretty_exceptions_enable=False
)

_LOG_LEVEL: Final = "Log to the error stream from this level on: debug, info, warning, error."
_PROFILE: Final = "The profile that gives defaults to options; 'holdfast profiles' lists them."


@app.callback()
def holdfast(
    context: typer.Context,
    *,
    profile: Annotated[str | None, option("NAME", _PROFILE, envvar="HOLDFAST_PROFILE")] = None,
    log_level: Annotated[str | None, option("LEVEL", _LOG_LEVEL, envvar="HOLDFAST_LOG_LEVEL")] = None,
    log_format: Annotated[
        str, option("FORMAT", "text (key=value) or json.", envvar="HOLDFAST_LOG_FORMAT", show_default=True)
    ] = "text",
    version: Annotated[bool, flag("Show the version and exit.", "--version", is_eager=True)] = False,
) -> None:
    """A runtime for agents that can't lose their place.

    All commands work on one store file: --store PATH, or HOLDFAST_STORE, or that of the profile, or
    .holdfast/holdfast.db in this folder. They may be used while other processes work on the same file.
    """
    if version:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit
    if log_level is not None:
        from holdfast import logs

        if log_format not in {"text", "json"}:
            raise errors.InvalidArgument("--log-format", log_format, "text or json")
        logs.configure(log_level, json=log_format == "json")
    if context.invoked_subcommand not in {None, "profiles"}:  # those that look at profiles must work if one is broken
        from holdfast.cli.profiles import apply_profile

        apply_profile(context, profile)


def main() -> None:
    """Run the command line."""
    app()
