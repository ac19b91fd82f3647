"""Time the parts of a model on this machine's device, without a study (`ringside strategies --measure`).

One rank times each part as for a study (`strategies.measure`), in every partition of its layer into at most
as many parts as there are devices. A timing is kept in the site's cache under its key, so the same question
is not timed again.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from common.errors import InputError
from declared.configuration import load_config
from declared.environments import read
from declared.factors import factor_table
from declared.frameworks import load_framework
from declared.site import Site, load_site
from declared.study import load_study
from environments.build import build
from models.graph import Graph
from plan.campaign import load_merged_config
from plan.design import Run
from plan.geometry import Geometry
from plan.timings import PARTS, Timing
from strategies.costs import MeasuredCost
from strategies.gather import part_rows
from strategies.measure import KIND
from strategies.measured import measured_rows
from strategies.meshes import OPTIMIZERS

FRAMEWORK = "pytorch-strategy"
FOLDER = "parts"  # Folder in the site's cache.


@dataclass(frozen=True)
class UndeclaredRun(Run):
    """A run of a model that no study declares, for its timing."""

    built: Graph = field(kw_only=True)

    @property
    def graph(self) -> Graph:
        """The graph of the model."""
        return self.built


@dataclass(frozen=True)
class TimedParts:
    """Costs of all parts of a model, and the device on which they were timed."""

    costs: list[MeasuredCost]
    device: str


def plan_timing(graph: Graph, batch: int, devices: int, numbers_of_parameter: int) -> Timing:
    """Return the timing of a model's parts.

    Raises:
        InputError: If no optimizer keeps this many numbers per parameter.
    """
    if numbers_of_parameter not in OPTIMIZERS:
        raise InputError(
            "not-one-of",
            f"no optimizer that can be timed keeps {numbers_of_parameter} numbers per parameter",
            file="--optimizer-numbers",
            got=numbers_of_parameter,
            expected=f"one of {', '.join(map(str, OPTIMIZERS))}",
        )
    levels: dict[str, Any] = {name: entry.get("default") for name, entry in factor_table().items()}
    levels |= {"framework": FRAMEWORK, "model": graph.model, "dataset": "synthetic", "batch_size": batch}
    levels |= OPTIMIZERS[numbers_of_parameter]
    geometry = Geometry(1, 1, 1, 1, 1, batch, batch, 1, batch)
    framework = load_framework(FRAMEWORK)
    run = UndeclaredRun("parts", "parts", 1, 1, 0.0, 1, levels, geometry, framework, {}, built=graph)
    return Timing(PARTS, run, devices)


def time_parts(
    graph: Graph,
    batch: int,
    devices: int,
    numbers_of_parameter: int,
    site: Site | None = None,
    folder: Path | None = None,
) -> TimedParts:
    """Return the measured costs of all parts of a model on this machine's device.

    Args:
        graph: The model.
        batch: Samples of a step, on all devices.
        devices: The largest number of parts of a layer.
        numbers_of_parameter: Numbers kept for each parameter; they determine the optimizer.
        site: This machine; default: the configured site.
        folder: Where timings are kept; default: in the site's cache.

    Raises:
        InputError: If ranks cannot be started here without a scheduler, or the timing fails.
    """
    site = site or load_site(load_config(load_merged_config()).site)
    if site.launcher != "local":
        problem = f"the site {site.name} starts ranks through {site.launcher}"
        hint = (
            "set a site of this machine in config/config.yaml, or search for a study: ./ringside strategies"
        )
        raise InputError("not-possible-here", problem, file="--measure", got=site.launcher, hint=hint)
    timing = plan_timing(graph, batch, devices, numbers_of_parameter)
    environment = read(timing.run.framework.environment, site.variant)
    build(environment, site.cache, {"torch_index": site.torch_index or ""}, site.realization)
    folder = folder or site.cache / FOLDER / site.name
    record = KIND.reuse_or_measure(replace(load_study("quickstart"), name=FOLDER), site, timing, folder)
    if record["status"] != "ok":
        log = timing.final_record_path(folder, site).parent
        problem = f"timing of parts: {record['status']}: {record['reason']}"
        hint = "repeat the command on an idle machine, or give a smaller --batch-size"
        raise InputError("run-failed", problem, file=log, got=record["status"], hint=hint)
    rows = pd.DataFrame(part_rows(record, timing, timing.spec(site)["ranks_per_node"]))
    return TimedParts(measured_rows(rows), record["devices"][0])
