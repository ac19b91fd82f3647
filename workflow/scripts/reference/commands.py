"""Generate the page of commands: those of ringside, targets of make and Snakemake, profiles."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from reference.markdown import block, codes, escaped, read, table
from ringside.app import NAME, app
from ringside.arguments import PROFILES

GROUP = re.compile(r"^##@ (.+)$")
TARGET = re.compile(r"^([a-z-]+):.*?## *(.+)$")
VARIABLES = ("ARGS", "SITE", "STUDY")
USED = re.compile(rf"\b({'|'.join(VARIABLES)})\b")
RULE = re.compile(r'^ *rule (\w+):\n +"""(.+?)"""(.*?)(?=^ *rule\b|\Z)', re.DOTALL | re.MULTILINE)
ONE_FILE = ("design", "report")  # targets of people that are no collection of others


@dataclass(frozen=True)
class Target:
    """A target of the Makefile: its group, its help, the variables that its recipe reads."""

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
    """Return Snakemake's targets for people with their docstrings, in the order of the data flow."""
    files = re.findall(r'include: "(rules/\w+\.smk)"', read("Snakefile"))
    docstrings: dict[str, str] = {}
    for file in [*files, "Snakefile"]:
        for name, doc, body in RULE.findall(read(file)):
            if "output:" not in body or name in ONE_FILE:
                docstrings.setdefault(name, " ".join(doc.split()))
    yield from docstrings.items()


def verbs() -> dict[str, Any]:
    """Return the verbs of the command line by what a person types after its name, in their order."""
    by_words: dict[str, Any] = {}
    for name, verb in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for subcommand, inner in (getattr(verb, "commands", None) or {"": verb}).items():
            by_words[f"{name} {subcommand}".strip()] = inner
    return by_words


def page() -> str:
    """Return the page of commands."""
    every = [target for target in targets() if target.group]
    groups = dict.fromkeys(target.group for target in every)
    sections: dict[str, list[str]] = {}
    for name, verb in verbs().items():
        sections.setdefault(verb.rich_help_panel, []).append(name)
    return "\n\n".join(
        [
            "# Commands",
            f"## {NAME}",
            f"`./{NAME} COMMAND ...` is called in the checkout. On first use it installs what it needs into "
            f"`.venv`. `./{NAME} --help` lists the commands, `./{NAME} COMMAND --help` explains one, and "
            f"`./{NAME} --install-completion` lets your shell complete commands, studies and sites. `STUDY` "
            "and `--site` default to those of [config.yaml](configuration.md#configconfigyaml), or of the "
            "variables `RINGSIDE_STUDY` and `RINGSIDE_SITE`. A mistake is one line with a code in "
            "brackets, and exit status 2.",
            *(part for group, names in sections.items() for part in _verbs(group, names)),
            "The environment variable `RINGSIDE_CACHE` names another cache than that of the site.",
            "## make",
            "`make figures` is `./ringside run`; all other targets are for developers. Each installs what "
            "it needs first, into `.venv`. `make` alone lists them. `ARGS` has further arguments of the "
            "program that a target calls.",
            *(
                part
                for group in groups
                for part in _group(group, [target for target in every if target.group == group])
            ),
            "## snakemake",
            "The same workflow without `ringside`: activate the environment (`. .venv/bin/activate`), then "
            "`snakemake TARGET`. `--config` overrides [config.yaml](configuration.md#configconfigyaml), "
            "such as `--config study=NAME site=NAME`. `-n` shows what would run, `--list-rules` lists all "
            "rules.",
            table(["target", "what it does"], [[f"`{name}`", escaped(doc)] for name, doc in rules()]),
            "### Profiles",
            "`snakemake --profile PROFILE` says where jobs run. Profiles have no settings of experiments.",
            table(
                ["profile", "what it is for"],
                [[f"`{name}`", escaped(purpose)] for name, purpose in _profiles()],
            ),
        ]
    )


def _verbs(group: str, names: list[str]) -> Iterator[str]:
    yield f"### {group}"
    commands = verbs()
    for name in names:
        verb = commands[name]
        summary, _, rest = verb.help.partition("\n\n")
        yield f"#### {NAME} {name}"
        yield escaped(" ".join(summary.split()))
        if rest:
            yield escaped(" ".join(rest.split()))
        lines = verb.epilog.removeprefix("\b\nExample:\n").splitlines()
        yield block("\n".join(map(str.strip, lines)), "text")
        if rows := [
            [codes(_flags(parameter)), escaped(_meaning(parameter))]
            for parameter in verb.params
            if parameter.help
        ]:
            yield table(["argument", "meaning"], rows)


def _flags(parameter: Any) -> list[str]:
    """Return how an argument is written: its name, or all spellings of the option with what it takes."""
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


def _group(name: str, members: list[Target]) -> Iterator[str]:
    yield f"### make: {name}"
    yield table(
        ["target", "what it does", "variables"],
        [[f"`make {target.name}`", escaped(target.help), codes(target.variables)] for target in members],
    )


def _profiles() -> Iterator[tuple[str, str]]:
    for name in PROFILES:
        yield name, read(f"profiles/{name}/config.yaml").splitlines()[0].removeprefix("# ")
