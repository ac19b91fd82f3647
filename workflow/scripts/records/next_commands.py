"""Compose the commands that messages suggest: to repeat runs, and to execute missing ones."""

import shlex
from collections.abc import Iterable
from typing import NamedTuple

from common.files import CHECKOUT, load_yaml
from common.notes import Note
from common.run_status import RunStatus


class CampaignArguments(NamedTuple):
    """The study and the site that a suggested command has to name; empty if they are the configured ones."""

    study: str = ""
    site: str = ""

    @property
    def positional(self) -> str:
        """Arguments of commands that take the study by position."""
        return " ".join(filter(None, [self.study, self._site_option]))

    @property
    def options(self) -> str:
        """Options of commands that take runs by position."""
        return " ".join(filter(None, [f"--study {self.study}" if self.study else "", self._site_option]))

    @property
    def _site_option(self) -> str:
        return f"--site {self.site}" if self.site else ""


CONFIGURED = CampaignArguments()


def arguments_for(study: str, site: str) -> CampaignArguments:
    """Return the study and the site, each empty if it is the configured one."""
    configured = load_yaml(CHECKOUT / "config" / "config.yaml")
    return CampaignArguments(
        *(name if configured.get(key) != name else "" for key, name in (("study", study), ("site", site)))
    )


def run_command(arguments: CampaignArguments) -> str:
    """Return the command that executes the missing runs."""
    return f"./ringside run {arguments.positional}".rstrip()


def repeat_command(selector: str, arguments: CampaignArguments) -> str:
    """Return the command that repeats the runs with a status or a name."""
    return f"./ringside repeat {shlex.quote(selector)} {arguments.options}".rstrip()


def repeat_commands(statuses: Iterable[str], arguments: CampaignArguments) -> str:
    """Return the command that repeats runs with one of these statuses, "" if none of them is repeatable."""
    present = set(statuses)
    repeatable = [status for status in RunStatus if status.suggests_repeat and status in present]
    alternatives = f" (likewise: {', '.join(repeatable[1:])})" if repeatable[1:] else ""
    return repeat_command(repeatable[0], arguments) + alternatives if repeatable else ""


def repeat_notes(statuses: Iterable[str], arguments: CampaignArguments) -> list[Note]:
    """Return a note with the command of `repeat_commands`, [] if there is nothing to repeat."""
    command = repeat_commands(statuses, arguments)
    return [Note("to-repeat", f"to repeat them: {command}", command=command)] if command else []


def cluster_commands(launcher: str, study: str, site: str) -> str:
    """Return the commands that execute a study on a cluster, "" for this machine."""
    command = f"./ringside run {study} --site {site} --profile {launcher}"
    if launcher == "local":
        return ""
    return f"./ringside submit {study} --site {site}, or {command}" if launcher == "slurm" else command
