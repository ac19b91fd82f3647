"""Estimate the memory of a campaign's runs, in the environments of their frameworks (ranks.memory_estimate).

Estimates are kept by key, so that each is made only once. They need the built environment of the framework.
"""

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.errors import InputError, print_line
from common.files import CHECKOUT, read_json, write_json
from common.program_sources import SCRIPTS
from common.shell import shell_command
from common.text import number_of
from declared.configuration import load_config
from declared.site import Site, load_site
from declared.study import load_study
from environments.built import read_built
from environments.record import BuiltEnvironment
from environments.steps import run_logged
from launchers.rank_command import in_image
from launchers.variables import kept_variables
from plan import cost
from plan.campaign import MEMORY_ESTIMATES, Campaign, load_merged_config, plan_campaign
from plan.design import Run
from plan.identity import environment_of
from plan.memory import MemoryEstimate, estimable_runs, memory_estimate_input, memory_spec, read_estimates

PROGRAM = "ranks.memory_estimate"
START_S, CELL_S = 60, 120  # time limits of the program's start, and of each cell


def estimate(
    site: Site, environment: BuiltEnvironment, inputs: Sequence[Mapping[str, Any]]
) -> list[MemoryEstimate]:
    """Return the memory estimate of each input of ranks; print why and return [] if the program fails."""
    with tempfile.TemporaryDirectory(prefix="ringside-memory-") as name:
        folder = Path(name)
        write_json(folder / "cells.json", inputs)
        variables = {
            **environment["variables"],
            "PYTHONPATH": str(SCRIPTS),
            "PYTHONNOUSERSITE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [
            environment["python"]["executable"],
            *("-m", PROGRAM, str(folder / "cells.json"), str(folder / "estimates.json")),
        ]
        if image := environment.get("image"):
            command = in_image(image["path"], command, variables, site, [SCRIPTS, CHECKOUT], folder)
        setup = (*site.setup, *environment.get("setup", ()))
        program, limit_s = shell_command(setup, variables, command), START_S + CELL_S * len(inputs)
        try:
            run_logged(program, PROGRAM, folder / "log.txt", env=kept_variables(), timeout_s=limit_s)
        except (InputError, subprocess.TimeoutExpired) as error:
            reason = error.got if isinstance(error, InputError) else f"it took more than {limit_s} s"
            print_line(f"memory is not estimated: {reason}", to_stderr=True)
            return []
        return [MemoryEstimate(**entry) for entry in read_json(folder / "estimates.json")]


def estimate_missing(campaign: Campaign) -> None:
    """Estimate the memory of runs without an estimate whose environment is built, and write the estimates.

    They are added to the file after each environment, since another process can have written to it meanwhile.
    """
    site, estimates = campaign.site, read_estimates(campaign.results)
    missing: dict[Path, dict[str, Run]] = {}
    for key, run in estimable_runs(campaign).items():
        stamp = environment_of(site, run.framework)
        if key not in estimates and stamp.exists():
            missing.setdefault(stamp, {})[key] = run
    for stamp, runs in sorted(missing.items()):
        print_line(f"estimating the memory of {number_of(len(runs), 'configuration')}", to_stderr=True)
        inputs = [
            memory_estimate_input(run.framework, run.graph, memory_spec(site, run)) for run in runs.values()
        ]
        if entries := estimate(site, read_built(stamp), inputs):
            campaign.results.mkdir(parents=True, exist_ok=True)
            every_estimate = read_estimates(campaign.results) | dict(zip(runs, entries, strict=True))
            content = {key: asdict(entry) for key, entry in every_estimate.items()}
            write_json(campaign.results / MEMORY_ESTIMATES, content)


def show_plan(
    *,
    study: str = "",
    site: str = "",
    block: int | None = None,
    as_json: bool = False,
    estimates: bool = True,
) -> None:
    """Print the cost of a campaign (plan.cost), by default after estimating its unknown memory."""
    config = load_config(load_merged_config(study, site))
    declared = load_study(config.study)
    if estimates and not declared.imported:
        estimate_missing(plan_campaign(declared, load_site(config.site)))
    cost.main(study=study, site=site, block=block, as_json=as_json)
