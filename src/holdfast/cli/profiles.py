"""`holdfast profiles`: named configurations of a host."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from holdfast.cli.options import (
    CallInvalid,
    JsonOption,
    explained,
)
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.models.prices import Price
    from holdfast.profiles import Profile, Profiles


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The profile.", show_default=False)]
app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


class Line(msgspec.Struct, frozen=True):
    """One profile."""

    name: str
    default: bool
    profile: dict[str, Any] | None
    """None where it can't be read."""
    error: str | None = None


@app.callback()
def profiles(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """List the profiles: named sets of defaults for the other commands, used as 'holdfast --profile NAME ...'.

    An option goes before the environment, the environment before the profile.
    """
    if context.invoked_subcommand is not None:
        return
    from holdfast.cli.output import one_line, stdout, table  # noqa: PLC0415

    with explained():
        kept = _profiles()
        default = kept.default()
        lines = [_line(kept, name, default) for name in kept.names()]
        out = stdout()
        if as_json:
            out.line(msgspec.json.encode(lines).decode())
        elif not lines:
            out.line("no profiles ('holdfast profiles set NAME field=value' makes one)")
        else:
            rows = [["PROFILE", "DEFAULT", "SAYS"]]
            rows += [[line.name, "yes" if line.default else "-", one_line(_summary(line), 100)] for line in lines]
            painted = [[out.paint(word, "bold") for word in rows[0]], *rows[1:]]
            out.write("".join(f"{line}\n" for line in table(rows, painted)))


def _line(kept: Profiles, name: str, default: str | None) -> Line:
    try:
        found = kept.get(name)
    except HoldfastError as error:
        return Line(name, name == default, None, str(error))
    return Line(name, name == default, msgspec.to_builtins(found))


def _summary(line: Line) -> str:
    if line.profile is None:
        return f"error: {line.error}"
    return ", ".join(_words(line.profile)) or "-"


@app.command()
def show(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The profile, if not the one in use.", show_default=False)
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show one profile. It holds no secrets, only where they are found."""
    from holdfast.cli.output import printable, stdout  # noqa: PLC0415

    with explained():
        meant = active_name(context.find_root().params.get("profile")) if name is None else name
        if meant is None:
            raise CallInvalid("no profile is in use: name one")
        found = _profiles().get(meant)
        if as_json:
            stdout().line(msgspec.json.encode(found, order="sorted").decode())
        else:
            stdout().write("".join(f"{printable(word)}\n" for word in _words(msgspec.to_builtins(found))))


def _words(fields: dict[str, Any]) -> list[str]:
    """What a profile says, in the words of `set`."""
    words = [f"{field}={_plain(value)}" for field, value in fields.items() if field not in {"prices", "secrets"}]
    for model, price in fields.get("prices", {}).items():
        words.append(f"price.{model}={_amounts(price)}")
    return words + [f"secret.{variable}={reference}" for variable, reference in fields.get("secrets", {}).items()]


def _plain(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _amounts(price: dict[str, float]) -> str:
    # A gap can't be written: cached input without a price costs what other input costs.
    order = ("input", "output", "cache_read", "cache_write")
    last = max(index for index, field in enumerate(order) if field in price)
    return ",".join(_plain(price.get(field, price["input"])) for field in order[: last + 1])


@app.command("set")
def change(
    name: NameArgument,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="FIELD=VALUE...",
            help="store, agent, model, output, deadline, price.PROVIDER:MODEL=INPUT,OUTPUT, "
            "secret.VARIABLE=env:NAME or keyring:SERVICE/NAME; FIELD= takes it away.",
            show_default=False,
        ),
    ],
) -> None:
    """Make a profile, or change fields of one; the others stay.

    Keys are refused: a profile says where a secret is found, and never holds one.
    """
    from holdfast.profiles.profile import Profile, changed  # noqa: PLC0415

    with explained():
        folder = os.getcwd()  # noqa: PTH109  a path as it is written

        def made(found: Profile | None) -> Profile:
            return changed(name, found or Profile(), changes, folder)

        _profiles().change(name, made)


@app.command("rm")
def remove(name: NameArgument) -> None:
    """Remove a profile. If it was the default, there is none from then on."""
    with explained():
        _profiles().remove(name)


@app.command()
def default(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The profile.", show_default=False)] = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="Use no profile where none is named.")] = False,
) -> None:
    """Name the profile that is used where none is named; without a name, show which one that is."""
    from holdfast.cli.output import stdout  # noqa: PLC0415

    with explained():
        if none and name is not None:
            raise CallInvalid("--none names no profile: give one of them")
        kept = _profiles()
        if none or name is not None:
            kept.set_default(name)
        else:
            stdout().line(kept.default() or "none")


def _profiles() -> Profiles:
    from holdfast.profiles import Profiles, profiles_folder  # noqa: PLC0415

    return Profiles(profiles_folder(os.environ))


ENVIRONMENT: Final = "HOLDFAST_PROFILE"
_ACTIVE: ContextVar[Profile | None] = ContextVar("profile", default=None)
_FIELDS: Final = {
    ("run", "output"): "output",
    ("run", "deadline"): "deadline",
    ("resume", "output"): "output",
    ("chat", "agent"): "agent",
    ("test", "name"): "model",
}
"""Of which command a profile gives which parameter, by its fields. It gives the store to all of them."""
_ASKING: Final = frozenset(("run", "chat", "resume"))
"""Commands that ask models, and can't do so without their keys."""
_TELLING: Final = frozenset(("models",))
"""Commands that tell which keys are missing, or that need some of them."""


def active_name(given: str | None) -> str | None:
    """The profile that is meant: the one that was named here, or by the environment, or else the default."""
    from holdfast.profiles import Profiles, ProfilesHomeless, profiles_folder  # noqa: PLC0415

    if given is not None:
        return given
    try:
        return Profiles(profiles_folder(os.environ)).default()
    except (ProfilesHomeless, PermissionError):
        return None  # of an account without a home nobody has asked for a profile


def apply(context: typer.Context, given: str | None) -> None:
    """Let the profile that is meant speak for what nobody has said, if there is one."""
    if context.invoked_subcommand in {None, "profiles"}:
        return  # those that look at profiles must work where one is broken
    from holdfast.profiles import Profiles, profiles_folder  # noqa: PLC0415

    name = active_name(given)
    if name is None:
        return
    profile = Profiles(profiles_folder(os.environ)).get(name)
    _ACTIVE.set(profile)
    os.environ[ENVIRONMENT] = name  # a process that goes on in the background has the same one
    context.default_map = _defaults(context.command, _values(profile))
    if context.invoked_subcommand in _ASKING | _TELLING:
        _give_secrets(profile, strict=context.invoked_subcommand in _ASKING)


def _values(profile: Profile) -> dict[str, Any]:
    from holdfast.profiles.profile import FIELDS  # noqa: PLC0415

    found: dict[str, Any] = {field: getattr(profile, field) for field in FIELDS}
    if profile.store is not None:
        found["store"] = _expanded(profile.store)
    if profile.agent is not None:
        found["agent"] = _expanded(profile.agent)
    return {field: value for field, value in found.items() if value is not None}


def _expanded(path: str) -> str:
    return str(Path(path).expanduser())


def _defaults(command: Any, values: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401  typer does not name the type
    """The defaults of all commands below one, in the form in which typer takes them."""
    found: dict[str, Any] = {}
    for name, below in getattr(command, "commands", {}).items():
        given = _defaults(below, values)
        for parameter in below.params:
            field = "store" if "--store" in parameter.opts else _FIELDS.get((name, parameter.name))
            if field is not None and field in values:
                given[parameter.name] = values[field]
        found[name] = given
    return found


def _give_secrets(profile: Profile, *, strict: bool) -> None:
    """Put what is referred to into the environment, where the models look for their keys."""
    from holdfast.cli.output import stderr  # noqa: PLC0415
    from holdfast.errors import HoldfastError  # noqa: PLC0415
    from holdfast.profiles.folder import secret, wanted  # noqa: PLC0415

    before = dict(os.environ)  # what one secret is called must not decide what another is
    for variable, reference in wanted(profile, before).items():
        try:
            os.environ[variable] = secret(reference, variable, before)
        except HoldfastError as error:
            if strict:
                raise
            stderr().line(str(error))


def spoken(agent: str, prompt: str | None) -> tuple[str, str]:
    """What `holdfast run` was given: with the agent of a profile, the prompt alone is enough."""
    if prompt is not None:
        return agent, prompt
    profile = _ACTIVE.get()
    own = None if profile is None or profile.agent is None else _expanded(profile.agent)
    if own is None:
        raise CallInvalid("the prompt is missing: holdfast run AGENT PROMPT; '-' reads it from standard input")
    return own, agent


def prices() -> dict[str, Price] | None:
    """The prices of the profile, which go before the known ones."""
    profile = _ACTIVE.get()
    if profile is None or not profile.prices:
        return None
    import msgspec  # noqa: PLC0415

    from holdfast.models.prices import Price  # noqa: PLC0415

    return {model: Price(**msgspec.structs.asdict(line)) for model, line in profile.prices.items()}
