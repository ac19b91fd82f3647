"""Compare the memory that runs need, as estimated before they start, with what their devices have.

Estimates are made in the environment of the framework by `ranks.memory_estimate`, and kept by key in
results/<study>/memory_estimates.json. A key is that of all that changes memory: levels but neutral factors,
the layout of ranks, the code of ranks and their software.
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
from common.normal_form import digest_sources
from common.notes import Note
from common.text import format_bytes, number_of
from common.units import MIB
from common.written import Keys, Rules, parse
from declared.devices import GIB
from declared.frameworks import LIBRARIES, RANKS, Framework
from declared.site import Site
from models.graph import Graph
from plan.batch_sizes import search_levels
from plan.campaign import MEMORY_ESTIMATES, Campaign
from plan.design import Run
from plan.identity import Planned, device, digests, geometry_fields, strategy_fields
from ranks.worker.node import memory_bytes

PROGRAM = [RANKS / "memory_estimate.py", LIBRARIES / "pytorch_memory.py"]
ENVIRONMENTS = ("pytorch", "deepspeed")  # whose trainers run with fake tensors (torch.FakeTensorMode)
WARNED_SHARE = 0.9  # of the memory; the rest is for what is not in a tensor, such as CUDA's context
Bytes = Annotated[int, Rules(ge=0, le=2**60)]
#: fields of a run's spec that change memory
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
    """The estimate of a cell's rank that needs most.

    Attributes:
        rank: Its number.
        tensor_bytes: Bytes of its tensors at their peak, by category (ranks.libraries.pytorch_memory).
        program_bytes: Resident memory of a rank that has imported its libraries.
        error: Why there is no estimate.
    """

    rank: int = 0
    tensor_bytes: dict[str, Bytes] | None = None
    program_bytes: Bytes = 0
    error: str | None = None

    def by_category(self, device_kind: str) -> dict[str, int]:
        """Return the memory of the rank: of its tensors, and on processors of its program, too."""
        if self.tensor_bytes is None:
            return {}
        program = {} if device_kind == "cuda" else {"program": self.program_bytes}
        return {**self.tensor_bytes, **program}


def is_estimable(framework: Framework) -> bool:
    """Return whether the memory of a framework's ranks can be estimated."""
    return framework.environment in ENVIRONMENTS and not framework.heterogeneous and not framework.command


def estimable_runs(campaign: Campaign) -> dict[str, Run]:
    """Return a run for each estimate that a campaign can have, by key."""
    by_cell = {run.cell: run for run in campaign.runs if is_estimable(run.framework)}
    possible = [run for run in by_cell.values() if campaign.unsupported_reason(run) is None]
    return {run_key(campaign.site, run): run for run in possible}


def rank_input(framework: Framework, graph: Graph, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ranks.memory_estimate reads for one estimate: only what changes memory.

    `spec` is that of a run, or of a trial of a batch search.
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
    """Return the first 12 hex digits of the SHA-256 over all that an estimate depends on."""
    content = rank_input(framework, graph, spec) | {"adapter": framework.name}
    software = {name: value for name, value in digests(site, spec["levels"]).items() if name != "data_digest"}
    return digest_text(json.dumps([content, software, _program_digest()], sort_keys=True))[:12]


@functools.cache
def _program_digest() -> str:
    return digest_sources(PROGRAM)


def run_spec(site: Site, run: Run) -> dict[str, Any]:
    """Return the part of a run's specification that its memory depends on."""
    return {
        "levels": run.levels,
        "device": device(site, run.levels),
        **geometry_fields(run.geometry),
        **strategy_fields(run),
    }


def run_key(site: Site, run: Run) -> str:
    """Return the key of the estimate of a run's memory."""
    return estimate_key(site, run.framework, run.graph, run_spec(site, run))


def read_estimates(results: Path) -> dict[str, MemoryEstimate]:
    """Return the estimates of a study by key, {} without any; a broken file counts as none."""
    file = results / MEMORY_ESTIMATES
    try:
        return parse(dict[str, MemoryEstimate], read_json(file), file)
    except (OSError, ValueError, InputError):
        return {}


def recorded_estimate(planned: Planned, results: Path) -> dict[str, Any] | None:
    """Return the field `memory_estimate` of a run's record: its estimate by category, None without any."""
    if not is_estimable(planned.framework) or not planned.graph or not (estimates := read_estimates(results)):
        return None
    own = estimates.get(estimate_key(planned.site, planned.framework, planned.graph, planned.spec))
    sizes = own.by_category(planned.spec["device"]) if own else {}
    return {"rank": own.rank, "bytes": sizes} if own and sizes else None


def limit_bytes(site: Site, run: Run) -> int | None:
    """Return the memory that a rank of a run has, None if it is not known.

    On processors, it is its share of the node's memory.
    """
    if device(site, run.levels) != "cpu":
        return site.memory.device_bytes
    layout = run.geometry
    ranks = layout.ranks if site.placement == "emulated" else min(layout.ranks, layout.ranks_per_node)
    stated = site.memory.node_gib and site.memory.node_gib * GIB
    requested = site.scheduler.memory_mb and site.scheduler.memory_mb * MIB
    of_machine = memory_bytes() if site.launcher == "local" else None
    node_bytes = stated or requested or of_machine
    return int(node_bytes / ranks) if node_bytes else None


@dataclass(frozen=True)
class Need:
    """Memory that the runs of a cell need, and have."""

    cell: str
    peak_bytes: int
    limit_bytes: int | None

    @property
    def share(self) -> float | None:
        """Share of the memory that is needed."""
        return self.peak_bytes / self.limit_bytes if self.limit_bytes else None

    def __str__(self) -> str:
        """Return the need in words, such as 12.3 GB, 61 %."""
        return format_bytes(self.peak_bytes) + (
            f", {self.share:.0%}".replace("%", " %") if self.share else ""
        )


def needs_by_cell(site: Site, runs: Iterable[Run], results: Path) -> dict[str, Need]:
    """Return the need of each cell with an estimate."""
    estimates, needs = read_estimates(results), {}
    by_cell = {run.cell: run for run in runs if estimates and is_estimable(run.framework)}
    for cell, run in by_cell.items():
        own = estimates.get(run_key(site, run))
        if own and (sizes := own.by_category(device(site, run.levels))):
            needs[cell] = Need(cell, sum(sizes.values()), limit_bytes(site, run))
    return needs


def failed_estimates(campaign: Campaign) -> dict[str, str]:
    """Return why the memory of a cell cannot be estimated, by cell."""
    errors = {key: own.error for key, own in read_estimates(campaign.results).items() if own.error}
    runs = estimable_runs(campaign) if errors else {}
    return {run.cell: error for key, run in runs.items() if (error := errors.get(key))}


def describe_needs(needs: Iterable[Need]) -> list[Note]:
    """Return a note on cells that do not fit in memory, and one on cells that hardly do."""
    shares = {need: need.share for need in needs if need.share}
    notes = []
    for code, low, high, words in (
        ("does-not-fit", 1.0, math.inf, "not fit in memory"),
        ("hardly-fits", WARNED_SHARE, 1.0, "hardly fit in memory"),
    ):
        affected = [need for need, share in shares.items() if low < share <= high]
        if affected:
            worst = max(affected, key=lambda need: shares[need])
            text = (
                f"{number_of(len(affected), 'cell')} will {words}, as estimated: a rank of {worst.cell} "
                f"needs {worst} of {format_bytes(worst.limit_bytes or 0)}"
            )
            notes.append(Note(code, text, cells=len(affected), worst=worst.cell, share=worst.share))
    return notes


def refuse_oversized(campaign: Campaign) -> None:
    """Raise InputError if a run without a record needs more memory than it has, by an existing estimate."""
    site = campaign.site
    if not site.memory.refuse:
        return
    left = [campaign.by_id[run_id] for run_id in campaign.records if run_id not in campaign.statuses]
    for note in describe_needs(needs_by_cell(site, left, campaign.results).values()):
        if note.code == "does-not-fit":
            raise InputError(
                note.code,
                str(note),
                file=display_path(site.file),
                key="memory",
                got=note.facts["worst"],
                hint="exclude them, use batch_size: largest, or run them all the same with refuse: false",
            )
