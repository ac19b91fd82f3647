"""What a person types next: the commands that repeat runs, and those that run what is missing."""

import shlex
from collections.abc import Iterable
from typing import NamedTuple

from common.files import CHECKOUT, load_yaml
from common.notes import Note

REPEATABLE = ("failed", "timeout", "invalid", "broken")


class Named(NamedTuple):
    """The study and the site that a command has to name so that it finds a campaign again; empty where they are configured."""

    study: str = ""
    site: str = ""

    @property
    def arguments(self) -> str:
        """Arguments of verbs that take the study by position."""
        return " ".join(filter(None, [self.study, self._site]))

    @property
    def options(self) -> str:
        """Options of verbs that take runs by position."""
        return " ".join(filter(None, [f"--study {self.study}" if self.study else "", self._site]))

    @property
    def _site(self) -> str:
        return f"--site {self.site}" if self.site else ""


CONFIGURED = Named()


def named_for(study: str, site: str) -> Named:
    """Return the study and the site as far as they are not the configured ones."""
    configured = load_yaml(CHECKOUT / "config" / "config.yaml")
    return Named(*(name if configured.get(key) != name else "" for key, name in (("study", study), ("site", site))))


def run_command(named: Named) -> str:
    """Return the command that runs what is missing."""
    return f"./ringside run {named.arguments}".rstrip()


def repeat_command(wanted: str, named: Named) -> str:
    """Return the command that repeats runs by their status or their name."""
    return f"./ringside repeat {shlex.quote(wanted)} {named.options}".rstrip()


def repeat_commands(statuses: Iterable[str], named: Named) -> str:
    """Return the command that repeats runs and sweeps of these statuses; nothing where none has gone wrong."""
    again = [status for status in REPEATABLE if status in set(statuses)]
    others = f" (likewise: {', '.join(again[1:])})" if again[1:] else ""
    return repeat_command(again[0], named) + others if again else ""


def to_repeat(statuses: Iterable[str], named: Named) -> list[Note]:
    """Return the line that has `repeat_commands`; none where nothing has gone wrong."""
    command = repeat_commands(statuses, named)
    return [Note("to-repeat", f"to repeat them: {command}", command=command)] if command else []


def ways_to_run(launcher: str, study: str, site: str) -> str:
    """The commands that run a study at a site of a cluster; nothing for this machine."""
    command = f"./ringside run {study} --site {site} --profile {launcher}"
    if launcher == "local":
        return ""
    return f"./ringside submit {study} --site {site}, or {command}" if launcher == "slurm" else command
