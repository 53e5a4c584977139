"""Commands about many things of one kind: `holdfast tasks` lists them, `holdfast tasks ID` shows one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

from typer.core import TyperGroup

if TYPE_CHECKING:
    import typer

SHOW: Final = "show"
_T = TypeVar("_T")


class Named(TyperGroup):
    """Takes a name where a command may stand: that of a thing, which is then shown."""

    about_one: ClassVar[str] = SHOW
    """The command that a name stands for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  typer does not name the types
        if args and args[0] not in self.commands:
            args = [self.about_one, *args]
        return super().resolve_command(ctx, args)


def before(context: typer.Context, name: str, own: _T) -> _T:
    """What an option is where it was not given here: what was said before the name, or before the command, counts.

    The environment and the profile have been asked there already.
    """
    source = context.get_parameter_source(name)
    if context.parent is None or (source is not None and source.name == "COMMANDLINE"):
        return own
    return cast("_T", context.parent.params[name])


def json_before(context: typer.Context, *, as_json: bool) -> bool:
    """Whether JSON was asked for, here or before the command."""
    return as_json or before(context, "as_json", as_json)
