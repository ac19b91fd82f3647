"""Derive the command lines of the workflow's programs from their main functions.

A positional parameter becomes an argument, a keyword-only one an option. Parameters without a default are
required. Their types are str, int, float, Path, bool (a switch), Literal (choices) or a Sequence of these
(zero or more values), also as `T | None`. The docstring's first line describes the program, and its section
Args the parameters.
"""

import argparse
import inspect
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from common.errors import InputError, exit_status

ARGUMENT = re.compile(r"^ {4}(?:    )?(\w+): (.+(?:\n {8,}.+)*)$", re.MULTILINE)


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Raise an InputError about the option in argparse's message, if it names one."""
        option, _, problem = message.removeprefix("argument ").partition(": ")
        if not (message.startswith("argument ") and problem):
            raise InputError("bad-arguments", message)
        raise InputError("bad-arguments", problem, file=max(option.split("/"), key=len))  # --site/-s


def run_program(main: Callable[..., None], argv: Sequence[str] | None = None) -> int:
    """Call a program's main function with the values of its command line, and return its exit status.

    See `exit_status` for the errors that it reports. Without `argv`, the process's command line is used.
    """
    return exit_status(lambda: main(**parse_arguments(main, argv)))


def parse_arguments(main: Callable[..., Any], argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the values of the parameters of `main` from a command line (default: this process's).

    Raises:
        InputError: If the command line is wrong.
    """
    return vars(make_parser(main).parse_args(argv))


def make_parser(main: Callable[..., Any]) -> argparse.ArgumentParser:
    """Return the parser of a main function's command line."""
    description, _, rest = inspect.cleandoc(main.__doc__ or "").partition("\n")
    meanings = {name: " ".join(text.split()) for name, text in ARGUMENT.findall(rest.partition("Args:")[2])}
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name if main.__module__ == "__main__" and spec else main.__module__
    parser = OneLineParser(prog=f"python -m {name}", description=description, allow_abbrev=False)
    parameter_types = get_type_hints(main)
    for parameter in inspect.signature(main).parameters.values():
        flag = parameter.name.rstrip("_").replace("_", "-")
        settings = _option_settings(parameter_types[parameter.name], parameter)
        settings["help"] = meanings.get(parameter.name)
        if parameter.kind is parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{flag}", dest=parameter.name, **settings)
        else:
            parser.add_argument(parameter.name, metavar=flag.upper(), **_positional_settings(settings))
    return parser


def _option_settings(kind: Any, parameter: inspect.Parameter) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option."""
    is_optional = get_origin(kind) in (Union, types.UnionType)
    if is_optional:
        (kind,) = (argument for argument in get_args(kind) if argument is not type(None))
    if kind is bool:
        return {"action": "store_true"}
    required = parameter.default is parameter.empty
    settings: dict[str, Any] = {"required": True} if required else {"default": parameter.default}
    if get_origin(kind) is Sequence:
        (kind,), settings["nargs"] = get_args(kind), "*"
    elif is_optional:
        settings["nargs"] = "?"  # A rule passes the option without a value if its file does not exist.
    if get_origin(kind) is Literal:
        return settings | {"choices": get_args(kind)}
    return settings | {"type": kind}


def _positional_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `add_argument` for a positional argument, which does not accept `required`."""
    required = settings.pop("required", False)
    return settings if required or "nargs" in settings else {"nargs": "?", **settings}
