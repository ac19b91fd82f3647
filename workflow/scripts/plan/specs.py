"""The plan of each run, in a file: results/<study>/plan/<run_id>.json says what is measured, and under which key.

Snakemake writes it before any run starts, from the design that it has in memory. What measures a run reads it, so the design is planned
once. A file that is there is written again only where it would say otherwise.
"""

import json
from collections.abc import Container
from pathlib import Path

from common.errors import InputError, system_faults
from common.files import read_json, write_text
from declared.site import Site
from plan.campaign import Campaign
from plan.identity import Planned

FOLDER = "plan"


def spec_file(results: Path, run_id: str) -> Path:
    """Return the file with the plan of a run; `results`: results/<study>."""
    return results / FOLDER / f"{run_id}.json"


def write_specs(campaign: Campaign, to_run: Container[str]) -> None:
    """Write the plan of every run that is or may be measured in this campaign.

    Args:
        campaign: The campaign.
        to_run: The run_id of the runs that are to be measured now. Where replicates are chosen by precision, those that may be decided
            later have their plan, too.
    """
    with system_faults(campaign.results):
        for run in campaign.most:
            is_undecided = run.run_id not in campaign.records and campaign.lacks(run) is None
            if run.run_id in to_run or is_undecided:
                write_spec(campaign.results, campaign.planned(run))


def write_spec(results: Path, planned: Planned) -> Path:
    """Write the plan of one run, and return the file."""
    file = spec_file(results, planned.run_id)
    said = {"study": planned.study, "key": planned.key, "spec": planned.spec, "digests": planned.digests}
    text = json.dumps(said, indent=1) + "\n"
    if not file.exists() or file.read_text(errors="replace") != text:
        write_text(file, text, durable=False)  # a plan that is lost or cut off is written again
    return file


def read_spec(file: Path, key: str, site: Site) -> Planned:
    """Return the plan of a run.

    Args:
        file: The file with it.
        key: The key that the caller expects.
        site: Where the run is measured.

    Raises:
        InputError: If there is no such plan, or if a file that it was made from has changed since.
    """
    try:
        said = read_json(file)
        planned = Planned(said["study"], site, dict(said["spec"]), dict(said["digests"]))
        is_whole = planned.key == said["key"] and planned.run_id == file.stem
    except (OSError, ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        hint = "start Snakemake again, which writes it before jobs start (not with --no-hooks)"
        raise InputError("broken-file", "is no plan of a run", file=file, hint=hint)
    if not planned.is_current() or planned.key != key:
        raise changed_since_planned(planned.run_id, key)
    return planned


def changed_since_planned(what: str, key: str) -> InputError:
    """Return the error of a measurement whose key is not the one that its caller expects."""
    problem = f"files have changed since it was planned (key {key})"
    return InputError("changed-since-planned", problem, key=what, got=key, hint="start Snakemake again")
