"""The profile that a command runs with: it gives defaults to options, and secrets to the process."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.cli.failures import CallInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    import typer

    from holdfast.models.prices import Price
    from holdfast.profiles import Profile

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
    from holdfast.cli.terminal import stderr  # noqa: PLC0415
    from holdfast.errors import HoldfastError  # noqa: PLC0415
    from holdfast.profiles.fetching import secret, wanted  # noqa: PLC0415

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
