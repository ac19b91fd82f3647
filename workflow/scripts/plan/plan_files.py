"""Write and read the plan of each run, results/<study>/plan/<run_id>.json: specification, digests and key.

Snakemake writes all plans before it starts a run, and jobs read them, so that the design is computed only
once. Unchanged files are not rewritten.
"""

import json
from collections.abc import Container
from pathlib import Path

from common.errors import InputError, system_faults
from common.files import read_json, write_text
from declared.site import Site
from plan.campaign import Campaign
from plan.identity import PlannedRun

FOLDER = "plan"


def plan_file(results: Path, run_id: str) -> Path:
    """Return the file of a run's plan in `results` (results/<study>)."""
    return results / FOLDER / f"{run_id}.json"


def write_plans(campaign: Campaign, to_run: Container[str]) -> None:
    """Write the plans of the runs to measure now and of those that decisions can still add.

    Args:
        campaign: The campaign.
        to_run: The run_id of the runs to measure now.
    """
    with system_faults(campaign.results):
        for run in campaign.max_runs:
            is_undecided = (
                run.run_id not in campaign.record_paths and campaign.not_executable_reason(run) is None
            )
            if run.run_id in to_run or is_undecided:
                write_plan(campaign.results, campaign.planned_run(run))


def write_plan(results: Path, planned: PlannedRun) -> Path:
    """Write the plan of one run, and return the file."""
    file = plan_file(results, planned.run_id)
    content = {"study": planned.study, "key": planned.key, "spec": planned.spec, "digests": planned.digests}
    text = json.dumps(content, indent=1) + "\n"
    if not file.exists() or file.read_text(errors="replace") != text:
        write_text(file, text, durable=False)  # no fsync: a lost or truncated plan is written again
    return file


def read_plan(file: Path, key: str, site: Site) -> PlannedRun:
    """Return the plan of a run.

    Args:
        file: The file of the plan.
        key: The key that the caller expects.
        site: Where the run is measured.

    Raises:
        InputError: If the plan is missing or broken, or if a file that it depends on has changed.
    """
    try:
        content = read_json(file)
        planned = PlannedRun(content["study"], site, dict(content["spec"]), dict(content["digests"]))
        is_whole = planned.key == content["key"] and planned.run_id == file.stem
    except (OSError, ValueError, KeyError, TypeError):
        is_whole = False
    if not is_whole:
        hint = "rerun Snakemake without --no-hooks, which writes it before jobs start"
        raise InputError("broken-file", "is not the plan of a run", file=file, hint=hint)
    if not planned.is_current() or planned.key != key:
        raise changed_since_planned(planned.run_id, key)
    return planned


def changed_since_planned(name: str, key: str) -> InputError:
    """Return the error of a measurement whose key differs from the planned one."""
    problem = f"files have changed since it was planned (key {key})"
    return InputError("changed-since-planned", problem, key=name, got=key, hint="rerun Snakemake")
