"""Verbs of the command line: grouped help, one-line errors, Snakemake's arguments after `--`."""

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from common.errors import InputError
from common.text import alternatives

MAX_SUMMARY = 200  # characters


class Verb(TyperCommand):
    """A verb that takes no arguments after `--`."""

    takes_rest = False

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the arguments; `ctx.obj` has those after `--`."""
        if ctx.obj and not self.takes_rest and not ctx.resilient_parsing:
            problem = f"{ctx.info_name} passes no arguments to Snakemake"
            raise InputError("bad-arguments", problem, got=["--", *ctx.obj], expected="nothing after --")
        return super().parse_args(ctx, args)


class SnakemakeVerb(Verb):
    """A verb that passes the arguments after `--` to Snakemake."""

    takes_rest = True

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the parts of the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- SNAKEMAKE_OPTIONS...]"]


class Verbs(TyperGroup):
    """The verbs, in groups. An unknown verb is an error with a suggestion."""

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Return the verb and its arguments; raise InputError for an unknown verb."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            hint = f"{ctx.command_path} --help lists all commands"
            fields = alternatives(args[0], self.commands)
            raise InputError(
                "unknown-name", f"there is no command '{args[0]}'", got=args[0], hint=hint, **fields
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the verbs by group."""
        width = max(len(name) for name in self.commands)
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            group = getattr(command, "rich_help_panel", None)
            title = group if isinstance(group, str) else "Commands"
            groups.setdefault(title, []).append((name.ljust(width), command.get_short_help_str(MAX_SUMMARY)))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def register(
    app: typer.Typer, group: str, functions: Iterable[Callable[..., None]], cls: type[Verb] = Verb
) -> None:
    """Register functions as the verbs of a group; a docstring's text from `Example:` on ends the help."""
    for function in functions:
        text, _, example = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample:\n")
        name = function.__name__.rstrip("_").replace("_", "-")
        epilog = "\b\nExample:\n" + textwrap.indent(inspect.cleandoc(example), "  ") if example else None
        app.command(name, cls=cls, help=text, epilog=epilog, rich_help_panel=group)(function)


def split_rest(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before the first `--`, and those after it."""
    before = list(arguments)
    if "--" not in before:
        return before, []
    place = before.index("--")
    return before[:place], before[place + 1 :]


def to_input_error(error: typer.TyperException) -> InputError:
    """Return typer's error as an InputError, so that it is reported like all errors in input."""
    ctx = getattr(error, "ctx", None)
    verb = ctx.command_path if ctx else "ringside"
    hint = f"{verb} --help explains the arguments"
    if (option := getattr(error, "option_name", None)) and "No such option" in error.message:
        options = (
            [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("-")]
            if ctx
            else []
        )
        close: Mapping[str, Any] = alternatives(option, options)
        problem = f"{verb} has no option {option}"
        return InputError(
            "unknown-option", problem, got=option, suggestion=close.get("suggestion", ""), hint=hint
        )
    parameter = getattr(error, "param", None)
    name = _typed_name(parameter) if parameter else ""
    if parameter and not error.message:
        return InputError("missing-argument", "is missing", file=name, hint=hint)
    problem = error.message if parameter else error.format_message()
    return InputError("bad-arguments", problem.rstrip("."), file=name, hint=hint)


def _typed_name(parameter: Any) -> str:
    """Return an option's longest name, such as ``--site``, or an argument's name in the help."""
    names = [name for name in parameter.opts if name.startswith("-")]
    return str(max(names, key=len) if names else parameter.metavar or parameter.name.upper())
