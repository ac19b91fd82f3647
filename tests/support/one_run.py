"""Plan a single run without a study, for tests and benchmarks that train it."""

from pathlib import Path
from typing import Any

from declared.factors import factor_table
from declared.replicates import Replicates
from declared.site import Site
from declared.study import Study
from plan.design import Run, plan_design
from plan.identity import run_spec


def one_run(site: Site, seed: int = 1, step_times: bool = False, **levels: Any) -> tuple[Run, dict[str, Any]]:
    """Return the run with these levels at a site, other factors at their defaults, and its spec."""
    factors = {name: [levels.get(name, entry.get("default"))] for name, entry in factor_table().items()}
    study = Study(
        name="one-run",
        file=Path("one-run.yaml"),
        title="",
        question="",
        seed=seed,
        design="full",
        replicates=Replicates(1, 1),
        factors=factors,
        step_times=step_times,
    )
    (run,) = plan_design(study, site)
    return run, run_spec(study, site, run)
