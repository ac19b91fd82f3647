"""Page of commands: make targets, Snakemake targets, profiles, in the words of the Makefile, the rules and the profiles."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from common.files import CHECKOUT
from reference.markdown import codes, escaped, table

GROUP = re.compile(r"^##@ (.+)$")
TARGET = re.compile(r"^([a-z-]+):.*?## *(.+)$")
VARIABLE = re.compile(r"^#   ([A-Z]+)  +(.+)$")
USED = re.compile(r"\$[({]?\$?([A-Z]+)\b")
DEFAULT = re.compile(r"^([A-Z]+) := (\S+)$", re.MULTILINE)
RULE = re.compile(r'^ *rule (\w+):\n +"""(.+?)"""(.*?)(?=^ *rule |\Z)', re.DOTALL | re.MULTILINE)
ONE_FILE = ("design", "report")  # targets of people that are no collection of others


@dataclass(frozen=True)
class Target:
    """A target of the Makefile: its group, its help, the variables that its recipe reads."""

    group: str
    name: str
    help: str
    variables: tuple[str, ...]


def variables() -> dict[str, str]:
    """The variables of the Makefile that a person sets, with what they mean."""
    return dict(found.groups() for line in _makefile().splitlines() if (found := VARIABLE.match(line)))  # type: ignore[misc]


def targets() -> list[Target]:
    """The targets of the Makefile that have a help."""
    known, found, group, lines = variables(), [], "", _makefile().splitlines()
    for number, line in enumerate(lines):
        if named := GROUP.match(line):
            group = named[1]
        if (target := TARGET.match(line)) is None:
            continue
        recipe = []
        for step in lines[number + 1 :]:
            if not step.startswith("\t"):
                break
            recipe.append(step.replace("$(OPTIONS)", "$(STUDY) $(SITE) $(ARGS)"))
        used = dict.fromkeys(name for step in recipe for name in USED.findall(step))
        found.append(Target(group, target[1], target[2], tuple(name for name in used if name in known)))
    return found


def rules() -> Iterator[tuple[str, str]]:
    """The targets of Snakemake that people ask for, with their docstrings, in the order in which data flow."""
    files = re.findall(r'include: "(rules/\w+\.smk)"', _read("Snakefile"))
    said: dict[str, str] = {}
    for file in [*files, "Snakefile"]:
        for name, doc, body in RULE.findall(_read(file)):
            if "output:" not in body or name in ONE_FILE:
                said.setdefault(name, " ".join(doc.split()))
    yield from said.items()


def page() -> str:
    """The page of commands."""
    every = [target for target in targets() if target.group]
    groups = dict.fromkeys(target.group for target in every)
    defaults = dict(DEFAULT.findall(_makefile()))
    return "\n\n".join(
        [
            "# Commands",
            "## make",
            "Every target installs what it needs first, into `.venv`. `make` alone lists the targets. Variables are given after the target: `./ringside run "
            "STUDY=my-study SITE=my-cluster`.",
            *(
                part
                for group in groups
                for part in _group(group, [target for target in every if target.group == group])
            ),
            "### Variables",
            table(
                ["variable", "default", "meaning"],
                [
                    [f"`{name}`", f"`{defaults[name]}`" if name in defaults else "", escaped(what)]
                    for name, what in variables().items()
                ],
            ),
            "The environment variable `RINGSIDE_CACHE` names another cache than that of the site.",
            "## snakemake",
            "The same workflow without `make`: activate the environment (`. .venv/bin/activate`), then `snakemake TARGET`. `--config` overrides "
            "[config.yaml](configuration.md#configconfigyaml), such as `--config study=NAME site=NAME`. `-n` shows what would run, `--list-rules` lists all rules.",
            table(["target", "what it does"], [[f"`{name}`", escaped(doc)] for name, doc in rules()]),
            "### Profiles",
            "`snakemake --profile PROFILE` says where jobs run. Profiles have no settings of experiments.",
            table(["profile", "what it is for"], [[f"`{name}`", escaped(what)] for name, what in _profiles()]),
        ]
    )


def _group(name: str, members: list[Target]) -> Iterator[str]:
    yield f"### {name}"
    yield table(
        ["target", "what it does", "variables"],
        [[f"`make {target.name}`", escaped(target.help), codes(target.variables)] for target in members],
    )


def _profiles() -> Iterator[tuple[str, str]]:
    for name in ("local", "slurm", "allocation", "oar", "pbs", "flux"):
        yield name, _read(f"profiles/{name}/config.yaml").splitlines()[0].removeprefix("# ")


def _makefile() -> str:
    return _read("Makefile")


def _read(file: str) -> str:
    return (CHECKOUT / file).read_text(encoding="utf-8")
