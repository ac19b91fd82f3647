"""Make command lines of the workflow's programs from signature and docstring of their main functions.

A positional parameter is an argument, a keyword-only one an option; without a default it is required. Types:
str, int, float, Path, bool (a switch), Literal (choices), Sequence of these (none or several values), each
also as `T | None`. The first line of the docstring describes the program, its section Args the parameters.
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
    """A parser that reports a mistake in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise an InputError that begins with the option as it is typed, where the mistake is about one."""
        option, _, problem = message.removeprefix("argument ").partition(": ")
        if not (message.startswith("argument ") and problem):
            raise InputError("bad-arguments", message)
        raise InputError("bad-arguments", problem, file=max(option.split("/"), key=len))  # --site/-s


def run_program(main: Callable[..., None], argv: Sequence[str] | None = None) -> int:
    """Call a program's main function with the values of its command line.

    The result is its exit status (see `exit_status`).
    """
    return exit_status(lambda: main(**parse_arguments(main, argv)))


def parse_arguments(main: Callable[..., Any], argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the value of each parameter of `main`, from a command line (default: that of this process).

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
    types_of = get_type_hints(main)
    for parameter in inspect.signature(main).parameters.values():
        flag = parameter.name.rstrip("_").replace("_", "-")
        settings = _settings(types_of[parameter.name], parameter) | {"help": meanings.get(parameter.name)}
        if parameter.kind is parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{flag}", dest=parameter.name, **settings)
        else:
            parser.add_argument(parameter.name, metavar=flag.upper(), **_positional(settings))
    return parser


def _settings(kind: Any, parameter: inspect.Parameter) -> dict[str, Any]:
    """Return the settings of argparse for an option."""
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
        settings["nargs"] = "?"  # rules hand on a file that may be absent
    if get_origin(kind) is Literal:
        return settings | {"choices": get_args(kind)}
    return settings | {"type": kind}


def _positional(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of argparse for a positional argument, which has no `required`."""
    required = settings.pop("required", False)
    return settings if required or "nargs" in settings else {"nargs": "?", **settings}
