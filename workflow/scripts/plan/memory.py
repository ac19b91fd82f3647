"""Compare the estimated memory demand of runs with the memory that their devices have.

`ranks.memory_estimate` estimates the demand in the environment of the framework before a run starts.
Estimates are kept by key in results/<study>/memory_estimates.json. A key covers everything that changes
memory: the levels of factors with an effect on it, ranks, and the ranks' code and software.
"""

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from common.errors import InputError
from common.files import digest_text, display_path, read_json
from common.keys import Keys, Rules, parse
from common.normal_form import digest_sources
from common.notes import Note
from common.text import format_bytes, number_of
from common.units import MIB
from declared.devices import GIB
from declared.frameworks import LIBRARIES, RANKS, Framework
from declared.site import Site
from models.graph import Graph
from plan.batch_sizes import search_levels
from plan.campaign import MEMORY_ESTIMATES, Campaign
from plan.design import Run
from plan.identity import PlannedRun, digests, geometry_fields, strategy_fields
from plan.site_resources import device_kind_of
from ranks.worker.node import memory_bytes

PROGRAM = [RANKS / "memory_estimate.py", LIBRARIES / "pytorch_memory.py"]
ENVIRONMENTS = ("pytorch", "deepspeed")  # their trainers run with fake tensors (torch.FakeTensorMode)
WARNED_SHARE = 0.9  # share of the memory; data outside of tensors, such as CUDA's context, need the rest
Bytes = Annotated[int, Rules(ge=0, le=2**60)]
# Fields of a run's spec that change memory.
SPEC_FIELDS = ("levels", "device", "mesh", "strategy", "bucket_bytes")
GEOMETRY_FIELDS = (
    "ranks",
    "ranks_per_node",
    "replicas",
    "replicas_per_rank",
    "local_batch",
    "effective_batch",
)


@dataclass(frozen=True)
class MemoryEstimate(Keys):
    """The estimate for the rank of a cell that needs the most memory.

    Attributes:
        rank: Number of the rank.
        tensor_bytes: Bytes of its tensors at their peak, by category (ranks.libraries.pytorch_memory).
        program_bytes: Resident memory of a rank that has imported its libraries.
        error: Why the memory cannot be estimated, None if it can.
    """

    rank: int = 0
    tensor_bytes: dict[str, Bytes] | None = None
    program_bytes: Bytes = 0
    error: str | None = None

    def by_category(self, device_kind: str) -> dict[str, int]:
        """Return bytes by category: of tensors and, on CPUs, of the program; {} without an estimate."""
        if self.tensor_bytes is None:
            return {}
        program = {} if device_kind == "cuda" else {"program": self.program_bytes}
        return {**self.tensor_bytes, **program}


def is_estimable(framework: Framework) -> bool:
    """Return whether the memory of a framework's ranks can be estimated."""
    return framework.environment in ENVIRONMENTS and not framework.heterogeneous and not framework.command


def estimable_runs(campaign: Campaign) -> dict[str, Run]:
    """Return one run of each cell whose memory can be estimated, by the key of the estimate."""
    by_cell = {run.cell: run for run in campaign.runs if is_estimable(run.framework)}
    executable = [run for run in by_cell.values() if campaign.not_executable_reason(run) is None]
    return {run_estimate_key(campaign.site, run): run for run in executable}


def memory_estimate_input(framework: Framework, graph: Graph, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of ranks.memory_estimate for one cell: only what changes memory.

    Args:
        framework: The framework.
        graph: The model.
        spec: Specification of a run, or of a trial of a batch search.
    """
    fields = {name: spec[name] for name in (*SPEC_FIELDS, *GEOMETRY_FIELDS) if name in spec}
    levels = search_levels(spec["levels"]) | {"batch_size": spec["local_batch"]}
    constant = {"levels": levels, "seed": 0, "cores_per_rank": 1, "interface": "lo", "steps": 1}
    return {
        "spec": fields | constant,
        "model": graph.to_json(),
        "data": None,
        "adapter": str(framework.folder),
        "modules": list(framework.modules),
    }


def estimate_key(site: Site, framework: Framework, graph: Graph, spec: Mapping[str, Any]) -> str:
    """Return the first 12 hex digits of the SHA-256 over everything an estimate depends on."""
    content = memory_estimate_input(framework, graph, spec) | {"adapter": framework.name}
    software = {name: value for name, value in digests(site, spec["levels"]).items() if name != "data_digest"}
    return digest_text(json.dumps([content, software, _program_digest()], sort_keys=True))[:12]


@functools.cache
def _program_digest() -> str:
    return digest_sources(PROGRAM)


def memory_spec(site: Site, run: Run) -> dict[str, Any]:
    """Return the part of a run's specification that its memory depends on."""
    return {
        "levels": run.levels,
        "device": device_kind_of(site, run.levels),
        **geometry_fields(run.geometry),
        **strategy_fields(run),
    }


def run_estimate_key(site: Site, run: Run) -> str:
    """Return the key of the estimate of a run's memory."""
    return estimate_key(site, run.framework, run.graph, memory_spec(site, run))


def read_estimates(results: Path) -> dict[str, MemoryEstimate]:
    """Return the estimates of a study by key, {} if the file is missing or broken."""
    file = results / MEMORY_ESTIMATES
    try:
        return parse(dict[str, MemoryEstimate], read_json(file), file)
    except (OSError, ValueError, InputError):
        return {}


def recorded_estimate(planned: PlannedRun, results: Path) -> dict[str, Any] | None:
    """Return the field `memory_estimate` of a run's record, None without an estimate."""
    if not is_estimable(planned.framework) or not planned.graph or not (estimates := read_estimates(results)):
        return None
    estimate = estimates.get(estimate_key(planned.site, planned.framework, planned.graph, planned.spec))
    sizes = estimate.by_category(planned.spec["device"]) if estimate else {}
    return {"rank": estimate.rank, "bytes": sizes} if estimate and sizes else None


def limit_bytes(site: Site, run: Run) -> int | None:
    """Return the memory that a rank of a run has, None if it is unknown.

    A CPU rank has an equal share of its node's memory.
    """
    if device_kind_of(site, run.levels) != "cpu":
        return site.memory.device_bytes
    geometry = run.geometry
    ranks = geometry.ranks if site.placement == "emulated" else min(geometry.ranks, geometry.ranks_per_node)
    stated = site.memory.node_gib and site.memory.node_gib * GIB
    requested = site.scheduler.memory_mb and site.scheduler.memory_mb * MIB
    machine_bytes = memory_bytes() if site.launcher == "local" else None
    node_bytes = stated or requested or machine_bytes
    return int(node_bytes / ranks) if node_bytes else None


@dataclass(frozen=True)
class MemoryDemand:
    """Memory that a rank of a cell's runs needs, and the memory that it has.

    Attributes:
        cell: Name of the cell.
        peak_bytes: Estimated peak of the rank that needs the most.
        limit_bytes: Memory that this rank has, None if it is unknown.
    """

    cell: str
    peak_bytes: int
    limit_bytes: int | None

    @property
    def share(self) -> float | None:
        """Demand over limit, None if the limit is unknown."""
        return self.peak_bytes / self.limit_bytes if self.limit_bytes else None

    def __str__(self) -> str:
        """Return the demand as text, such as 12.3 GB, 61 %."""
        return format_bytes(self.peak_bytes) + (
            f", {self.share:.0%}".replace("%", " %") if self.share else ""
        )


def memory_demands(site: Site, runs: Iterable[Run], results: Path) -> dict[str, MemoryDemand]:
    """Return the memory demand of each cell with an estimate."""
    estimates, demands = read_estimates(results), {}
    by_cell = {run.cell: run for run in runs if estimates and is_estimable(run.framework)}
    for cell, run in by_cell.items():
        estimate = estimates.get(run_estimate_key(site, run))
        if estimate and (sizes := estimate.by_category(device_kind_of(site, run.levels))):
            demands[cell] = MemoryDemand(cell, sum(sizes.values()), limit_bytes(site, run))
    return demands


def failed_estimates(campaign: Campaign) -> dict[str, str]:
    """Return by cell why its memory cannot be estimated."""
    estimates = read_estimates(campaign.results)
    errors = {key: estimate.error for key, estimate in estimates.items() if estimate.error}
    runs = estimable_runs(campaign) if errors else {}
    return {run.cell: error for key, run in runs.items() if (error := errors.get(key))}


def describe_demands(demands: Iterable[MemoryDemand]) -> list[Note]:
    """Return a note on cells that do not fit in memory, and one on cells that hardly do."""
    shares = {demand: demand.share for demand in demands if demand.share}
    notes = []
    for code, low, high, words in (
        ("does-not-fit", 1.0, math.inf, "not fit in memory"),
        ("hardly-fits", WARNED_SHARE, 1.0, "hardly fit in memory"),
    ):
        affected = [demand for demand, share in shares.items() if low < share <= high]
        if affected:
            worst = max(affected, key=lambda demand: shares[demand])
            text = (
                f"{number_of(len(affected), 'cell')} will {words}, as estimated: a rank of {worst.cell} "
                f"needs {worst} of {format_bytes(worst.limit_bytes or 0)}"
            )
            notes.append(Note(code, text, cells=len(affected), worst=worst.cell, share=worst.share))
    return notes


def raise_if_oversized(campaign: Campaign) -> None:
    """Raise InputError if a run without a record is estimated to need more memory than it has.

    Runs without an estimate pass, and so do all runs at a site with `memory: {refuse: false}`.
    """
    site = campaign.site
    if not site.memory.refuse:
        return
    left = [
        campaign.by_id[run_id] for run_id in campaign.record_paths if run_id not in campaign.statuses_by_run
    ]
    for note in describe_demands(memory_demands(site, left, campaign.results).values()):
        if note.code == "does-not-fit":
            raise InputError(
                note.code,
                str(note),
                file=display_path(site.file),
                key="memory",
                got=note.facts["worst"],
                hint="exclude them, use batch_size: largest, or run them anyway with refuse: false",
            )
