"""Estimate the memory of a campaign's runs, in the environments of their frameworks (ranks.memory_estimate).

Estimates are kept by key, so that each is made once. Nothing is estimated before the environment is built.
"""

import contextlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.errors import print_line
from common.files import CHECKOUT, read_json, write_json
from common.shell import shell_command
from common.text import number_of
from declared.configuration import load_config
from declared.site import Site, load_site
from declared.study import load_study
from environments.built import read_built
from environments.record import BuiltEnvironment
from launchers.launch import SCRIPTS, in_image, kept_variables
from plan import cost
from plan.campaign import MEMORY_ESTIMATES, Campaign, configured, plan_campaign
from plan.design import Run
from plan.identity import environment_of
from plan.memory import MemoryEstimate, estimable_runs, rank_input, read_estimates, run_spec

PROGRAM = "ranks.memory_estimate"
START_S, CELL_S = 60, 120  # limits of time: of the program's start, and of each cell
MAX_ERROR_CHARACTERS = 200


def estimate(
    site: Site, environment: BuiltEnvironment, inputs: Sequence[Mapping[str, Any]]
) -> list[MemoryEstimate]:
    """Return the estimate of each input of ranks; [], after a line that says why, where the program fails."""
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
        with open(folder / "log.txt", "wb") as log, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                shell_command(setup, variables, command),
                env=kept_variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                timeout=START_S + CELL_S * len(inputs),
            )
        if (folder / "estimates.json").exists():
            return [MemoryEstimate(**entry) for entry in read_json(folder / "estimates.json")]
        lines = (folder / "log.txt").read_text(errors="replace").strip().splitlines() or ["no output"]
        print_line(f"memory is not estimated: {lines[-1][:MAX_ERROR_CHARACTERS]}", to_stderr=True)
        return []


def estimate_missing(campaign: Campaign) -> None:
    """Estimate what a campaign has no estimate of yet, where the environment is built, and keep it."""
    site, estimates = campaign.site, read_estimates(campaign.results)
    missing: dict[Path, dict[str, Run]] = {}
    for key, run in estimable_runs(campaign).items():
        stamp = environment_of(site, run.framework)
        if key not in estimates and stamp.exists():
            missing.setdefault(stamp, {})[key] = run
    for stamp, runs in sorted(missing.items()):
        print_line(f"estimating the memory of {number_of(len(runs), 'configuration')}", to_stderr=True)
        inputs = [rank_input(run.framework, run.graph, run_spec(site, run)) for run in runs.values()]
        estimates |= dict(zip(runs, estimate(site, read_built(stamp), inputs), strict=False))
    if missing and estimates:
        campaign.results.mkdir(parents=True, exist_ok=True)
        content = {key: asdict(entry) for key, entry in estimates.items()}
        write_json(campaign.results / MEMORY_ESTIMATES, content)


def show_plan(
    *,
    study: str = "",
    site: str = "",
    block: int | None = None,
    as_json: bool = False,
    estimates: bool = True,
) -> None:
    """Print the cost of a campaign (plan.cost), by default after estimating the memory that is not known."""
    config = load_config(configured(study, site))
    declared = load_study(config.study)
    if estimates and not declared.imported:
        estimate_missing(plan_campaign(declared, load_site(config.site)))
    cost.main(study=study, site=site, block=block, as_json=as_json)
