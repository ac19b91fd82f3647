"""What a person types next: the commands that repeat runs, and those that run what is missing."""

from collections.abc import Iterable

from common.files import CHECKOUT, load_yaml
from common.notes import Note

REPEATABLE = ("failed", "timeout", "invalid", "broken")


def repeat_command(statuses: Iterable[str], arguments: str) -> str:
    """Return the command that repeats runs and sweeps of these statuses; nothing where none has gone wrong."""
    again = [status for status in REPEATABLE if status in set(statuses)]
    other = "".join(f", or RUNS={status}" for status in again[1:])
    return f"make repeat RUNS={again[0]}{other} {arguments}".rstrip() if again else ""


def to_repeat(statuses: Iterable[str], arguments: str) -> list[Note]:
    """Return the line that names `repeat_command`; none where nothing has gone wrong."""
    command = repeat_command(statuses, arguments)
    return [Note("to-repeat", f"to repeat them: {command}", command=command)] if command else []


def arguments_for(study: str, site: str) -> str:
    """make's STUDY=... and SITE=... where they are not the configured ones, otherwise nothing."""
    configured = load_yaml(CHECKOUT / "config" / "config.yaml")
    named = {"study": study, "site": site}
    return " ".join(f"{key.upper()}={value}" for key, value in named.items() if configured.get(key) != value)


def ways_to_run(launcher: str, study: str, site: str) -> str:
    """The commands that run a study at a site of a cluster; nothing for this machine."""
    config = f"--config study={study} site={site}"
    if launcher == "local":
        return ""
    return {
        "slurm": f"make submit STUDY={study} SITE={site}, or snakemake figures --profile slurm {config}",
    }.get(launcher, f"snakemake figures --profile {launcher} {config}")
