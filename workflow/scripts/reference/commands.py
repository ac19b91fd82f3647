"""Describe commands: those of ringside, targets of make and Snakemake, profiles."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from reference.markdown import codes, escaped, read
from ringside.app import app
from ringside.arguments import PROFILES

GROUP = re.compile(r"^##@ (.+)$")
TARGET = re.compile(r"^([a-z-]+):.*?## *(.+)$")
VARIABLES = ("ARGS", "SITE", "STUDY")
USED = re.compile(rf"\b({'|'.join(VARIABLES)})\b")
RULE = re.compile(r'^ *rule (\w+):\n +"""(.+?)"""(.*?)(?=^ *rule\b|\Z)', re.DOTALL | re.MULTILINE)
ONE_FILE = ("design", "report")  # rules for users that write files instead of collecting those of others


@dataclass(frozen=True)
class Target:
    """A target of the Makefile: its group, help, and the variables that its recipe reads."""

    group: str
    name: str
    help: str
    variables: tuple[str, ...]


def targets() -> list[Target]:
    """Return the targets of the Makefile that have a help text."""
    documented, group, lines = [], "", read("Makefile").splitlines()
    for number, line in enumerate(lines):
        if named := GROUP.match(line):
            group = named[1]
        if (target := TARGET.match(line)) is None:
            continue
        recipe = []
        for step in lines[number + 1 :]:
            if not step.startswith("\t"):
                break
            recipe.append(step)
        used = {name for step in recipe for name in USED.findall(step) if name != "STUDY" or "OTHERS" in step}
        documented.append(Target(group, target[1], target[2], tuple(sorted(used))))
    return documented


def rules() -> Iterator[tuple[str, str]]:
    """Yield Snakemake's targets for users with their docstrings, in the order of the data flow."""
    files = re.findall(r'include: "(rules/\w+\.smk)"', read("Snakefile"))
    docstrings: dict[str, str] = {}
    for file in [*files, "Snakefile"]:
        for name, doc, body in RULE.findall(read(file)):
            if "output:" not in body or name in ONE_FILE:
                docstrings.setdefault(name, " ".join(doc.split()))
    yield from docstrings.items()


def verbs() -> dict[str, Any]:
    """Return the verbs of the command line by the words after its name, in order."""
    by_words: dict[str, Any] = {}
    for name, verb in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for subcommand, inner in (getattr(verb, "commands", None) or {"": verb}).items():
            by_words[f"{name} {subcommand}".strip()] = inner
    return by_words


def commands() -> dict[str, Any]:
    """Return the values of the template of the page of commands: verbs, targets, rules and profiles."""
    verbs_by_group: dict[str, dict[str, Any]] = {}
    for name, verb in verbs().items():
        verbs_by_group.setdefault(verb.rich_help_panel, {})[name] = verb
    targets_by_group: dict[str, list[list[str]]] = {}
    for target in targets():
        row = [f"`make {target.name}`", escaped(target.help), codes(target.variables)]
        targets_by_group.setdefault(target.group, []).append(row)
    targets_by_group.pop("", None)
    return {
        "verbs": verbs_by_group,
        "summary": lambda verb: [escaped(" ".join(part.split())) for part in verb.help.split("\n\n", 1)],
        "examples": _examples,
        "arguments": _arguments,
        "targets": targets_by_group,
        "rules": [[f"`{name}`", escaped(doc)] for name, doc in rules()],
        "profiles": [[f"`{name}`", escaped(purpose)] for name, purpose in _profiles()],
    }


def _examples(verb: Any) -> str:
    """Return the examples of a verb's help, one on each line."""
    return "\n".join(map(str.strip, verb.epilog.removeprefix("\b\nExample:\n").splitlines()))


def _arguments(verb: Any) -> list[list[str]]:
    """Return the arguments of a verb and their meaning."""
    return [
        [codes(_flags(parameter)), escaped(_meaning(parameter))]
        for parameter in verb.params
        if parameter.help
    ]


def _flags(parameter: Any) -> list[str]:
    """Return the spellings of an argument: its name, or all spellings of an option with its value."""
    value_name = f" {parameter.metavar}" if parameter.metavar else ""
    is_switch = parameter.default is False
    if not parameter.opts[0].startswith("-"):
        return [parameter.metavar]
    value = "" if is_switch else value_name or f" {parameter.name.upper()}"
    return [f"{spelling}{value}" for spelling in parameter.opts]


def _meaning(parameter: Any) -> str:
    default = parameter.default
    shows_default = (
        default not in (None, "", False, [])
        and parameter.opts[0].startswith("-")
        and "default" not in parameter.help
    )
    return (
        f"{parameter.help.rstrip('.')} (default {default})" if shows_default else parameter.help.rstrip(".")
    )


def _profiles() -> Iterator[tuple[str, str]]:
    for name in PROFILES:
        yield name, read(f"profiles/{name}/config.yaml").splitlines()[0].removeprefix("# ")
