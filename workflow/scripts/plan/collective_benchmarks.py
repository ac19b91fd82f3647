"""Plan the collective benchmarks of a campaign: their specifications and keys.

A study benchmarks all-reduce and the collectives that its runs send, each with every framework that supports
it. A benchmark depends on collective, framework, number of nodes and the levels of COMMUNICATION_FACTORS, and
on nothing else of a run or study. All functions are pure: they depend on study, site and files in git only.
"""

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import CHECKOUT, digest_text
from declared.factors import Levels, factor_table
from declared.mesh import axes_of, is_mesh
from declared.site import Site
from models.collectives import ALL_GATHER, ALL_REDUCE, AXIS_COLLECTIVES, COLLECTIVES, REDUCE_SCATTER
from models.division import SEQUENCE
from plan.campaign import Campaign
from plan.design import Run
from plan.geometry import Geometry
from plan.identity import digest_rank_code, rank_code, site_environment_digest
from plan.other_measurements import Measurements
from plan.site_limits import unsupported_reason
from plan.site_resources import common_site_fields, device_kind_of, heterogeneous_resources, link_settings

SMALLEST_BYTES = 1024
GROWTH = 4
PROGRAM = CHECKOUT / "workflow" / "scripts" / "ranks" / "collective_benchmark.py"
# Factors besides nodes that decide which ranks communicate, and through which links.
COMMUNICATION_FACTORS = ("devices_per_node", "device", "bandwidth")
# Columns of network.csv that identify a benchmark.
KEYS = ["collective", "framework", "nodes", "ranks", "device", "bandwidth"]


@dataclass(frozen=True)
class CollectiveBenchmark:
    """One collective of one framework with the geometry of `run`, a run of the design."""

    run: Run
    collective: str = ALL_REDUCE

    @property
    def framework(self) -> str:
        """Name of the framework whose library is benchmarked."""
        return self.run.framework.name

    @property
    def nodes(self) -> int:
        """Number of nodes, two or more."""
        return self.run.geometry.nodes

    @property
    def geometry(self) -> Geometry:
        """Nodes and ranks."""
        return self.run.geometry

    @property
    def name(self) -> str:
        """`<framework>.n<nodes>`, COMMUNICATION_FACTORS that differ from their default, and the collective.

        All-reduce is not named.
        """
        levels = self.run.levels
        changed = [
            f"{name}={levels[name]}"
            for name in COMMUNICATION_FACTORS
            if levels[name] != factor_table()[name]["default"]
        ]
        collective = [] if self.collective == ALL_REDUCE else [self.collective]
        return ".".join([self.framework, f"n{self.nodes}", *changed, *collective])

    def spec(self, site: Site) -> dict[str, Any]:
        """Return all that the benchmark depends on except environment and code.

        It has the fields that launchers and ranks need.
        """
        name, levels = f"benchmark.{self.name}", self.run.levels
        return {
            "run_id": name,
            "collective": self.collective,
            "levels": {"framework": self.framework, "nodes": self.nodes},
            "seed": int(digest_text(name)[:8], 16) >> 1,
            "nodes": self.nodes,
            "ranks": self.geometry.ranks,
            "ranks_per_node": self.geometry.ranks_per_node,
            "replicas_per_rank": self.geometry.replicas_per_rank,
            "sizes": message_sizes(site.collective_max_bytes),
            "step_times": False,
            **common_site_fields(site),
            **link_settings(site, levels),
            "device": device_kind_of(site, levels),
            **heterogeneous_resources(site, levels, self.geometry),
        }

    def digests(self, site: Site) -> dict[str, str]:
        """Return the digests of environment and code (64 hex digits each)."""
        return {
            "environment_digest": site_environment_digest(self.run.framework.environment, site),
            "code_digest": benchmark_code_digest(self.framework),
        }

    def key(self, site: Site) -> str:
        """Return the first 12 hex digits of the SHA-256 over spec and digests."""
        parts = [self.spec(site), *self.digests(site).values()]
        return digest_text(json.dumps(parts, sort_keys=True))[:12]

    def final_record_path(self, results: Path, site: Site) -> Path:
        """Return results/<study>/network/<name>/<key>/collective_benchmark.json."""
        return results / "network" / self.name / self.key(site) / "collective_benchmark.json"


def required_benchmarks(runs: Iterable[Run]) -> list[CollectiveBenchmark]:
    """Return a benchmark for each distributed framework, number of nodes, kind of ranks, and collective."""
    multi_node = [run for run in runs if run.geometry.nodes > 1 and run.framework.distributed]
    sent = {ALL_REDUCE}.union(*({*run.framework.sends, *_mesh_collectives(run.levels)} for run in multi_node))
    benchmarks: dict[str, CollectiveBenchmark] = {}
    for run in multi_node:
        for collective in run.framework.collectives:
            if collective in sent:
                benchmark = CollectiveBenchmark(run, collective)
                benchmarks.setdefault(benchmark.name, benchmark)
    order = list(COLLECTIVES)
    return sorted(
        benchmarks.values(),
        key=lambda benchmark: (
            benchmark.framework,
            benchmark.nodes,
            order.index(benchmark.collective),
            benchmark.name,
        ),
    )


def _mesh_collectives(levels: Levels) -> set[str]:
    """Return the collectives that ranks use along the axes of a cell's mesh."""
    if not is_mesh(levels["parallelism"]):
        return set()
    axes = axes_of(levels["parallelism"])
    collectives = {name for axis in axes for name in AXIS_COLLECTIVES[axis]}
    if "tensor" in axes and levels["tensor_sharding"] == SEQUENCE:
        collectives |= {ALL_GATHER, REDUCE_SCATTER}
    return collectives


def planned_benchmarks(runs: Iterable[Run], site: Site) -> list[CollectiveBenchmark]:
    """Return the required benchmarks that the site can execute."""
    return [
        benchmark
        for benchmark in required_benchmarks(runs)
        if unsupported_reason(site, benchmark.run.levels) is None
    ]


def message_sizes(largest_bytes: int) -> list[int]:
    """Return message sizes in bytes from 1 KiB to `largest_bytes`, each four times the previous one."""
    n_bytes = [SMALLEST_BYTES]
    while GROWTH * n_bytes[-1] <= largest_bytes:
        n_bytes.append(GROWTH * n_bytes[-1])
    return n_bytes


@functools.cache
def benchmark_code_digest(framework: str) -> str:
    """Return the SHA-256 of the code of the benchmark and of the framework's ranks."""
    return digest_rank_code([PROGRAM, *rank_code(framework)])


class CollectiveBenchmarks(Measurements[CollectiveBenchmark]):
    """The collective benchmarks of a campaign, for the rules."""

    wildcard = "benchmark"

    def __init__(self, campaign: Campaign) -> None:
        super().__init__(campaign, planned_benchmarks(campaign.runs, campaign.site))

    @functools.cached_property
    def table(self) -> str:
        """The table network.csv, or network.csv.gz."""
        return str(self._campaign.table_file("network"))

    @functools.cached_property
    def has_results(self) -> bool:
        """Whether benchmarks are planned, or a published table exists."""
        return Path(self.table).is_file() if self._campaign.published_folder else bool(self.by_name)
