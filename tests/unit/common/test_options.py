"""The command line of a program follows from the signature and the docstring of its main function."""

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.options import make_parser, parse_arguments, run_program
from declared.products.tables import PROGRAMS

SCRIPTS = CHECKOUT / "workflow" / "scripts"


def typed(
    name: str,
    *,
    out: Path,
    count: int = 3,
    share: float | None = None,
    files: Sequence[Path] = (),
    level: Literal["low", "high"] = "low",
    from_: str = "here",
    dry_run: bool = False,
) -> None:
    """Do something.

    Args:
        name: of the thing
        out: where it goes,
            on two lines
    """
    if name == "bad":
        raise InputError("bad-pattern", "is bad", got=name)
    print(name, out)


def parse(*argv: str) -> dict[str, Any]:
    return parse_arguments(typed, argv)


def test_defaults_are_those_of_the_signature() -> None:
    assert parse("x", "--out", "a") == {
        "name": "x", "out": Path("a"), "count": 3, "share": None, "files": (), "level": "low",
        "from_": "here",
        "dry_run": False,
    }  # fmt: skip


def test_values_have_the_types_of_the_signature() -> None:
    options = parse(
        "x", "--out", "a", "--count", "7", "--share", "0.5", "--files", "b", "c", "--from", "z", "--dry-run"
    )
    assert (options["count"], options["share"], options["files"]) == (7, 0.5, [Path("b"), Path("c")])
    assert (options["from_"], options["dry_run"]) == ("z", True)


def test_optional_option_can_lack_its_value() -> None:
    """As rules do where a file is absent."""
    assert parse("x", "--out", "a", "--share", "--files")["share"] is None
    assert parse("x", "--out", "a", "--files")["files"] == []


@pytest.mark.parametrize(
    "argv",
    [[], ["x"], ["x", "--out"], ["x", "y", "--out", "a"], ["x", "--out", "a", "--count", "many"],
     ["x", "--ou", "a"],
     ["x", "--out", "a", "--level", "lowest"]],
)  # fmt: skip
def test_a_wrong_command_line_is_one_mistake(argv: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        parse(*argv)
    assert refused.value.code == "bad-arguments" and "\n" not in str(refused.value)


@pytest.mark.parametrize("typed_option", [["--count", "many"], ["--level", "lowest"], ["--count"]])
def test_mistake_begins_with_the_option(typed_option: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        parse("x", "--out", "a", *typed_option)
    assert refused.value.file == typed_option[0]


def test_the_help_is_the_docstring() -> None:
    text = " ".join(make_parser(typed).format_help().split())
    assert "Do something." in text and "of the thing" in text and "where it goes, on two lines" in text
    assert "python -m " in text and "--dry-run" in text and "{low,high}" in text


def test_a_program_ends_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(typed, ["x", "--out", "a"]) == 0 and capsys.readouterr().out == "x a\n"
    for argv in (["bad", "--out", "a"], ["--nothing"]):
        assert run_program(typed, argv) == 2
        assert capsys.readouterr().err.count("\n") == 1


def programs() -> list[str]:
    files = [file for file in SCRIPTS.rglob("*.py") if "sys.exit(run_program(main))" in file.read_text()]
    return sorted(".".join(file.relative_to(SCRIPTS).with_suffix("").parts) for file in files)


def main_of(name: str) -> ast.FunctionDef:
    tree = ast.parse((SCRIPTS / f"{name.replace('.', '/')}.py").read_text())
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    return function


@pytest.mark.parametrize("name", [name for name in programs() if name != "common.options"])
def test_every_argument_of_a_program_is_explained(name: str) -> None:
    """Read from the code: to import all programs takes a minute."""
    function = main_of(name)
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    doc = ast.get_docstring(function) or ""
    assert [argument for argument in names if f"    {argument}: " not in doc] == []


CALL = re.compile(r"\{PREFORKED\} ([\w.]+)(.*?)(?:2>&1|\"\"\")", re.DOTALL)
CALLED = [
    (module, re.findall(r"--([a-z][a-z-]*)", text))
    for file in sorted((CHECKOUT / "rules").glob("*.smk"))
    for module, text in CALL.findall(file.read_text())
    if module in programs()
]


@pytest.mark.parametrize(("name", "options"), CALLED, ids=[name for name, _ in CALLED])
def test_a_rule_gives_a_program_the_options_it_takes(name: str, options: list[str]) -> None:
    function = main_of(name)
    optional = [
        argument.arg
        for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if default
    ]
    parameters = [argument.arg for argument in function.args.kwonlyargs]
    options = [argument.replace("-", "_") if argument != "from" else "from_" for argument in options]
    assert set(options) <= set(parameters) and set(parameters) - set(optional) <= set(options)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name in programs()])
def test_a_program_of_tables_takes_its_inputs(name: str) -> None:
    parameters = {argument.arg for argument in main_of(name).args.kwonlyargs}
    assert {*PROGRAMS[name].inputs, "out"} <= parameters


def test_programs_of_this_kind_exist() -> None:
    assert len(programs()) > 20 and len(CALLED) > 15


def test_a_real_program_has_its_name() -> None:
    command = [sys.executable, "-m", "plan.design", "--help"]
    done = subprocess.run(
        command, cwd=CHECKOUT, env={"PYTHONPATH": str(SCRIPTS)}, capture_output=True, check=True
    )
    assert done.stdout.startswith(b"usage: python -m plan.design [-h] --study STUDY --site SITE --out OUT")
