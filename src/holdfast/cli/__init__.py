"""The command line: `holdfast`, or `python -m holdfast`."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast import __version__
from holdfast.cli import app as app_module
from holdfast.cli import attachments, doctor, memory, models, notifications, policy, processes, profiles, triggers
from holdfast.cli.options import FAILED, INTERRUPTED, exit_code, explained
from holdfast.cli.output import stderr
from holdfast.errors import HoldfastError


class Commands(TyperGroup):
    """All commands. An error is one line, never a traceback."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  typer does not name the type
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            _tell(str(error))
            raise typer.Exit(exit_code(error)) from error
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output has gone: what is left of it must not fail once more when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None
        except OSError as error:
            _tell(str(error))
            raise typer.Exit(FAILED) from error


def _tell(message: str) -> None:
    err = stderr()
    err.line(f"holdfast: {err.clean(' '.join(message.split()))}")


app = typer.Typer(
    name="holdfast",
    cls=Commands,
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (
    app_module.run,
    app_module.chat,
    app_module.ps,
    app_module.show,
    app_module.logs,
    app_module.resume,
    app_module.cancel,
    app_module.resolve,
    app_module.fork,
    app_module.compact,
    app_module.replay,
    app_module.inbox,
    app_module.approve,
    app_module.deny,
    doctor.doctor,
):
    app.command(_command.__name__)(_command)
app.add_typer(attachments.app, name="attachments")
app.add_typer(models.app, name="models")
app.add_typer(memory.app, name="memory")
app.add_typer(notifications.app, name="notifications")
app.add_typer(policy.app, name="policy")
app.add_typer(processes.app, name="processes")
app.add_typer(profiles.app, name="profiles")
app.add_typer(policy.rules_app, name="rules")
app.add_typer(processes.tasks_app, name="tasks")
app.add_typer(triggers.app, name="triggers")


def _version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    *,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            envvar=profiles.ENVIRONMENT,
            metavar="NAME",
            help="The profile that gives defaults to options; 'holdfast profiles' lists them.",
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """A runtime for agents that can't lose their place.

    All commands work on one store file: --store PATH, or HOLDFAST_STORE, or that of the profile, or
    .holdfast/holdfast.db in this folder. They may be used while other processes work on the same file.
    """
    _version(wanted=version)
    with explained():
        profiles.apply(context, profile)


def main() -> None:
    """Run the command line."""
    app()
