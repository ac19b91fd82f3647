"""Plan the collective benchmarks (sweeps) of a campaign: their specifications and keys.

Pure functions of study, site and files in git, called while Snakemake parses. A sweep depends on a
collective, a framework, a number of nodes and the levels of SITE_FACTORS, and on nothing else of a run or
study. A study sweeps all-reduce and the collectives that its runs send, each with every framework that
supports it.
"""

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import CHECKOUT, digest_text
from declared.factors import factor_table
from declared.mesh import axes_of, is_mesh
from declared.site import Site
from models.collectives import ALL_REDUCE, AXIS_COLLECTIVES, COLLECTIVES
from plan.campaign import Campaign
from plan.design import Geometry, Run
from plan.identity import (
    device,
    digest_rank_code,
    digests,
    heterogeneous_resources,
    link_settings,
    rank_code,
    site_part,
    unsupported_reason,
)
from plan.scheduling import deferred_resources

SMALLEST_BYTES = 1024
GROWTH = 4
PROGRAM = CHECKOUT / "workflow" / "scripts" / "ranks" / "sweep.py"
# Factors, besides nodes, that decide which ranks communicate and through which link.
SITE_FACTORS = ("devices_per_node", "device", "bandwidth")
# Columns of network.csv that identify a sweep.
KEYS = ["collective", "framework", "nodes", "ranks", "device", "bandwidth"]


@dataclass(frozen=True)
class Sweep:
    """One collective of one framework on a number of nodes and devices.

    ``run`` is a run of the design with this layout.
    """

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
        """Layout of nodes and ranks."""
        return self.run.geometry

    @property
    def name(self) -> str:
        """`<framework>.n<nodes>`, SITE_FACTORS unlike the default, and any collective but all-reduce."""
        levels = self.run.levels
        changed = [
            f"{name}={levels[name]}"
            for name in SITE_FACTORS
            if levels[name] != factor_table()[name]["default"]
        ]
        return ".".join(
            [self.framework, f"n{self.nodes}", *changed, *[self.collective] * (self.collective != ALL_REDUCE)]
        )


def required_sweeps(runs: Iterable[Run]) -> list[Sweep]:
    """Return a sweep for each distributed framework, number of nodes, kind of ranks, and collective."""
    multi_node = [run for run in runs if run.geometry.nodes > 1 and run.framework.distributed]
    sent = {ALL_REDUCE}.union(
        *({*run.framework.sends, *_mesh_collectives(run.levels["parallelism"])} for run in multi_node)
    )
    sweeps: dict[str, Sweep] = {}
    for run in multi_node:
        for collective in run.framework.collectives:
            if collective in sent:
                sweep = Sweep(run, collective)
                sweeps.setdefault(sweep.name, sweep)
    order = list(COLLECTIVES)
    return sorted(
        sweeps.values(),
        key=lambda sweep: (sweep.framework, sweep.nodes, order.index(sweep.collective), sweep.name),
    )


def _mesh_collectives(level: str) -> set[str]:
    """Return the collectives along the axes of a level of parallelism, none if it is no mesh."""
    return {name for axis in axes_of(level) for name in AXIS_COLLECTIVES[axis]} if is_mesh(level) else set()


def planned_sweeps(runs: Iterable[Run], site: Site) -> list[Sweep]:
    """Return the required sweeps that the site can make."""
    return [sweep for sweep in required_sweeps(runs) if unsupported_reason(site, sweep.run.levels) is None]


def message_sizes(largest_bytes: int) -> list[int]:
    """Return message sizes in bytes from 1 KiB to ``largest_bytes``, each four times the previous one."""
    n_bytes = [SMALLEST_BYTES]
    while GROWTH * n_bytes[-1] <= largest_bytes:
        n_bytes.append(GROWTH * n_bytes[-1])
    return n_bytes


def spec(site: Site, sweep: Sweep) -> dict[str, Any]:
    """Return all that a sweep depends on but software, with the keys that launchers and the worker need."""
    name = f"sweep.{sweep.name}"
    return {
        "run_id": name,
        "collective": sweep.collective,
        "levels": {"framework": sweep.framework, "nodes": sweep.nodes},
        "seed": int(digest_text(name)[:8], 16) >> 1,
        "nodes": sweep.nodes,
        "ranks": sweep.geometry.ranks,
        "ranks_per_node": sweep.geometry.ranks_per_node,
        "replicas_per_rank": sweep.geometry.replicas_per_rank,
        "sizes": message_sizes(site.sweep_max_bytes),
        "step_times": False,
        **site_part(site),
        **link_settings(site, sweep.run.levels),
        "device": device(site, sweep.run.levels),
        **heterogeneous_resources(site, sweep.run.levels, sweep.geometry),
    }


@functools.cache
def code_digest(framework: str) -> str:
    """Return the SHA-256 of the code of the benchmark and of the framework's ranks."""
    return digest_rank_code([PROGRAM, *rank_code(framework)])


def environment_digest(site: Site, sweep: Sweep) -> str:
    """Return the digest of the framework's environment."""
    return digests(site, sweep.run.levels)["environment_digest"]


def key(site: Site, sweep: Sweep) -> str:
    """Return the first 12 hex digits of the SHA-256 over spec, environment digest and code digest."""
    parts = [spec(site, sweep), environment_digest(site, sweep), code_digest(sweep.framework)]
    return digest_text(json.dumps(parts, sort_keys=True))[:12]


def output(results: Path, site: Site, sweep: Sweep) -> Path:
    """Return the record of a sweep, results/<study>/network/<name>/<key>/sweep.json."""
    return results / "network" / sweep.name / key(site, sweep) / "sweep.json"


class Sweeps:
    """The sweeps of a campaign, for the rules."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.by_name = {sweep.name: sweep for sweep in planned_sweeps(campaign.runs, campaign.site)}
        self.outputs = {
            name: str(output(campaign.results, campaign.site, sweep)) for name, sweep in self.by_name.items()
        }

    @functools.cached_property
    def table(self) -> str:
        """The table network.csv, or network.csv.gz."""
        return str(self._campaign.record_file("network"))

    @functools.cached_property
    def has_results(self) -> bool:
        """Whether sweeps are planned, or a published table exists."""
        return Path(self.table).is_file() if self._campaign.published else bool(self.by_name)

    def available(self) -> list[str]:
        """Return the sweeps' records that exist now."""
        return [path for path in self.outputs.values() if Path(path).exists()]

    def environment(self, name: str) -> str:
        """Return the stamp of the environment that a sweep needs."""
        return self._campaign.environments[self.by_name[name].run.framework.environment]

    def resources(self) -> dict[str, Callable[[Any], Any]]:
        """Return Snakemake's resources of a sweep's job as functions of the rule's wildcards."""
        geometries = {name: sweep.geometry for name, sweep in self.by_name.items()}
        return deferred_resources(self._campaign.site, geometries, "sweep")
