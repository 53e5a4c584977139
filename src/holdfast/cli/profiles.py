"""`holdfast profiles`: named sets of defaults for other commands, and how they are applied."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.errors import HoldfastError
from holdfast.profiles import (
    FIELDS,
    NoProfilesFolder,
    Profile,
    Profiles,
    apply_assignments,
    missing_secrets,
    profiles_folder,
    read_secret,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.models.prices import Price

NameArgument = Annotated[str, options.argument("NAME", "The profile.")]
SomeNameArgument = Annotated[str | None, options.argument("NAME", "The profile.")]
profiles = options.CommandGroup()


class ProfileLine(msgspec.Struct, frozen=True):
    """One profile of the list."""

    name: str
    default: bool
    profile: dict[str, Any] | None
    """None if it can't be read."""
    error: str | None = None


@profiles.listing()
def list_profiles(printer: options.Printer) -> None:
    """List the profiles: named sets of defaults for the other commands, used as 'holdfast --profile NAME ...'.

    An option goes before the environment, the environment before the profile.
    """
    found = _profiles()
    default = found.default()
    lines: list[ProfileLine] = []
    for name in found.names():
        try:
            lines.append(ProfileLine(name, name == default, msgspec.to_builtins(found.get(name))))
        except HoldfastError as error:
            lines.append(ProfileLine(name, name == default, None, str(error)))
    columns: output.Columns[ProfileLine] = {
        "PROFILE": lambda line: line.name,
        "DEFAULT": lambda line: "yes" if line.default else "-",
        "SAYS": lambda line: output.one_line(
            f"error: {line.error}" if line.profile is None else ", ".join(_assignments(line.profile)) or "-", 100
        ),
    }
    printer.print_table(lines, columns, nothing="no profiles ('holdfast profiles set NAME field=value' makes one)")


@profiles.command()
def show(printer: options.Printer, context: typer.Context, name: SomeNameArgument = None) -> None:
    """Show one profile, by default the one in use. It holds no secrets, only references to them."""
    meant = _active_name(context.find_root().params.get("profile")) if name is None else name
    if meant is None:
        raise options.CallInvalid("no profile is in use: name one")
    found = _profiles().get(meant)
    printer.print(found, lambda _: map(output.printable, _assignments(msgspec.to_builtins(found))))


def _assignments(fields: dict[str, Any]) -> list[str]:
    """The fields of a profile as arguments of `set`."""
    words = [f"{field}={_plain(value)}" for field, value in fields.items() if field not in {"prices", "secrets"}]
    for model, price in fields.get("prices", {}).items():
        # A gap can't be written: cached input without a price costs as much as other input.
        order = ("input", "output", "cache_read", "cache_write")
        last = max(index for index, field in enumerate(order) if field in price)
        amounts = [_plain(price.get(field, price["input"])) for field in order[: last + 1]]
        words.append(f"price.{model}={','.join(amounts)}")
    return words + [f"secret.{variable}={reference}" for variable, reference in fields.get("secrets", {}).items()]


def _plain(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


_CHANGES: Final = (
    "store, agent, model, output, deadline, price.PROVIDER:MODEL=INPUT,OUTPUT, "
    "secret.VARIABLE=env:NAME or keyring:SERVICE/NAME; FIELD= removes it."
)


@profiles.command("set")
def change(name: NameArgument, changes: Annotated[list[str], options.argument("FIELD=VALUE...", _CHANGES)]) -> None:
    """Make a profile, or change fields of one; the others stay.

    Keys are refused: a profile refers to secrets, and never holds one.
    """
    folder = os.getcwd()  # noqa: PTH109  a path as it is written
    _profiles().change(name, lambda found: apply_assignments(name, found or Profile(), changes, folder))


@profiles.command("rm")
def remove(name: NameArgument) -> None:
    """Remove a profile. If it was the default, there is no default any more."""
    _profiles().remove(name)


@profiles.command()
def default(
    name: SomeNameArgument = None, *, none: Annotated[bool, options.flag("Have no default.", "--none")] = False
) -> None:
    """Set the profile that is used without --profile; without a name, print it."""
    if none and name is not None:
        raise options.CallInvalid("--none names no profile: give one of them")
    found = _profiles()
    if none or name is not None:
        found.set_default(name)
    else:
        output.stdout().line(found.default() or "none")


def _profiles() -> Profiles:
    return Profiles(profiles_folder(os.environ))


# ---- applying a profile ----------------------------------------------------------------------------------------------

_active: ContextVar[Profile | None] = ContextVar("profile", default=None)
_FIELDS: Final = {
    ("run", "output"): "output",
    ("run", "deadline"): "deadline",
    ("resume", "output"): "output",
    ("chat", "agent"): "agent",
    ("test", "name"): "model",
}
"""Fields of a profile by the command and the parameter for which they are the default; `--store` is for all."""
_NEED_SECRETS: Final = frozenset(("run", "chat", "resume"))
"""Commands that fail if a secret is missing. `models` only reports it."""


def apply_profile(context: typer.Context, given: str | None) -> None:
    """Make the profile's fields defaults of the running command, and put its secrets into the environment."""
    name, command = _active_name(given), context.invoked_subcommand or ""
    if name is None:
        return
    profile = _profiles().get(name)
    _active.set(profile)
    os.environ["HOLDFAST_PROFILE"] = name  # a detached run uses the same one
    root: Any = context.command  # typer does not export the type
    values = {field: getattr(profile, field) for field in FIELDS if getattr(profile, field) is not None}
    values |= {field: _expand(values[field]) for field in ("store", "agent") if field in values}
    context.default_map = {command: _defaults(command, root.get_command(context, command), values)}
    if command in _NEED_SECRETS or command == "models":
        _set_secrets(profile, strict=command in _NEED_SECRETS)


def _active_name(given: str | None) -> str | None:
    """The profile of `--profile` or the environment, or else the default."""
    if given is not None:
        return given
    try:
        return _profiles().default()
    except (NoProfilesFolder, PermissionError):
        return None  # an account without a home has no profiles


def _expand(path: str) -> str:
    return str(Path(path).expanduser())


def _defaults(name: str, command: Any, values: Mapping[str, Any]) -> dict[str, Any]:  # of typer
    """The defaults of a command and its subcommands, as typer's `default_map`."""
    found = {below: _defaults(below, each, values) for below, each in getattr(command, "commands", {}).items()}
    for parameter in command.params:
        field = "store" if "--store" in parameter.opts else _FIELDS.get((name, parameter.name))
        if field is not None and field in values:
            found[parameter.name] = values[field]
    return found


def _set_secrets(profile: Profile, *, strict: bool) -> None:
    """Set the environment variables that models read their keys from."""
    before = dict(os.environ)  # a secret must not change the reference of another one
    for variable, reference in missing_secrets(profile, before).items():
        try:
            os.environ[variable] = read_secret(reference, variable, before)
        except HoldfastError as error:
            if strict:
                raise
            output.stderr().line(str(error))


def agent_and_prompt(agent: str, prompt: str | None) -> tuple[str, str]:
    """The arguments of `holdfast run`: with the agent of a profile, the prompt alone is enough."""
    if prompt is not None:
        return agent, prompt
    profile = _active.get()
    if profile is None or profile.agent is None:
        raise options.CallInvalid("the prompt is missing: holdfast run AGENT PROMPT; '-' reads it from standard input")
    return _expand(profile.agent), agent


def profile_prices() -> dict[str, Price] | None:
    """The prices of the profile, which go before the known ones."""
    profile = _active.get()
    if profile is None or not profile.prices:
        return None
    from holdfast.models.prices import Price  # most runs have no profile

    return {model: Price(**msgspec.structs.asdict(line)) for model, line in profile.prices.items()}
