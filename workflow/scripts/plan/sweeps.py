"""Which sweeps a campaign has, what each is measured under, and the key that it is kept under.

Pure functions of study, site and files in git, called while Snakemake parses. A sweep belongs to a collective, a framework, a number
of nodes and the levels of OF_SITE; nothing else of a run changes it, and neither does the study. The study decides which collectives
are swept: all-reduce, and what its strategies send, each by every framework that can.
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
from plan.identity import device, digest_rank_code, digests, lacks, links, rank_code, site_part, unlike
from plan.scheduling import deferred_resources

SMALLEST_BYTES = 1024
GROWTH = 4
PROGRAM = CHECKOUT / "workflow" / "scripts" / "ranks" / "sweep.py"
TABLE = "network.csv"
# Factors that decide, beside nodes, between whom and through what there is an exchange.
OF_SITE = ("devices_per_node", "device", "bandwidth")
# Columns of network.csv that tell sweeps apart.
KEYS = ["collective", "framework", "nodes", "ranks", "device", "bandwidth"]


@dataclass(frozen=True)
class Sweep:
    """A collective of one framework on so many nodes and devices. `run` is a run of the design that is laid out like it."""

    run: Run
    collective: str = ALL_REDUCE

    @property
    def framework(self) -> str:
        """The framework whose library does it."""
        return self.run.framework.name

    @property
    def nodes(self) -> int:
        """Nodes, two or more."""
        return self.run.geometry.nodes

    @property
    def geometry(self) -> Geometry:
        """Nodes and ranks, as a run of the design has them."""
        return self.run.geometry

    @property
    def name(self) -> str:
        """`<framework>.n<nodes>`, the levels of what is the site's in most studies, and the collective, if it is not all-reduce."""
        levels = self.run.levels
        told = [f"{name}={levels[name]}" for name in OF_SITE if levels[name] != factor_table()[name]["default"]]
        return ".".join([self.framework, f"n{self.nodes}", *told, *[self.collective] * (self.collective != ALL_REDUCE)])


def wanted(runs: Iterable[Run]) -> list[Sweep]:
    """A sweep for each distributed framework of `runs`, each of its numbers of nodes from two on, each kind of ranks, and each
    collective that it can and that any of the runs sends."""
    several = [run for run in runs if run.geometry.nodes > 1 and run.framework.distributed]
    sent = {ALL_REDUCE}.union(*({*run.framework.sends, *_of_mesh(run.levels["parallelism"])} for run in several))
    found: dict[str, Sweep] = {}
    for run in several:
        for collective in run.framework.collectives:
            if collective in sent:
                sweep = Sweep(run, collective)
                found.setdefault(sweep.name, sweep)
    order = list(COLLECTIVES)
    return sorted(
        found.values(),
        key=lambda sweep: (sweep.framework, sweep.nodes, order.index(sweep.collective), sweep.name),
    )


def _of_mesh(level: str) -> set[str]:
    """What ranks send along the axes of a level of parallelism; nothing of one that is no mesh."""
    return {name for axis in axes_of(level) for name in AXIS_COLLECTIVES[axis]} if is_mesh(level) else set()


def planned(runs: Iterable[Run], site: Site) -> list[Sweep]:
    """The wanted sweeps that the site can make."""
    return [sweep for sweep in wanted(runs) if lacks(site, sweep.run.levels) is None]


def sizes(largest_bytes: int) -> list[int]:
    """Message sizes in bytes from 1 KiB to `largest_bytes`, each four times the one before."""
    made = [SMALLEST_BYTES]
    while GROWTH * made[-1] <= largest_bytes:
        made.append(GROWTH * made[-1])
    return made


def spec(site: Site, sweep: Sweep) -> dict[str, Any]:
    """All that a sweep depends on apart from software, with the keys that launchers and the worker's context want."""
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
        "sizes": sizes(site.sweep_max_bytes),
        "step_times": False,
        **site_part(site),
        **links(site, sweep.run.levels),
        "device": device(site, sweep.run.levels),
        **unlike(site, sweep.run.levels, sweep.geometry),
    }


@functools.cache
def code_digest(framework: str) -> str:
    """SHA-256 of what exchanges and times: the sweep, the shared worker, the libraries' modules, the adapter."""
    return digest_rank_code([PROGRAM, *rank_code(framework)])


def environment_digest(site: Site, sweep: Sweep) -> str:
    """The digest of the framework's environment, as its runs have it."""
    return digests(site, sweep.run.levels)["environment_digest"]


def key(site: Site, sweep: Sweep) -> str:
    """First 12 hex digits of the SHA-256 over spec, environment digest and code digest."""
    parts = [spec(site, sweep), environment_digest(site, sweep), code_digest(sweep.framework)]
    return digest_text(json.dumps(parts, sort_keys=True))[:12]


def output(results: Path, site: Site, sweep: Sweep) -> Path:
    """results/<study>/network/<name of the sweep>/<key>/sweep.json."""
    return results / "network" / sweep.name / key(site, sweep) / "sweep.json"


class Sweeps:
    """The sweeps of a campaign as the rules see them."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.by_name = {sweep.name: sweep for sweep in planned(campaign.runs, campaign.site)}
        self.outputs = {
            name: str(output(campaign.results, campaign.site, sweep)) for name, sweep in self.by_name.items()
        }

    @functools.cached_property
    def table(self) -> str:
        """The network.csv that table and figure are made from."""
        return str((self._campaign.published or self._campaign.results) / TABLE)

    @functools.cached_property
    def worth_drawing(self) -> bool:
        """Whether there is something to show: sweeps that are planned, or a published table."""
        return Path(self.table).is_file() if self._campaign.published else bool(self.by_name)

    def available(self) -> list[str]:
        """The sweeps' outputs that exist now."""
        return [path for path in self.outputs.values() if Path(path).exists()]

    def environment(self, name: str) -> str:
        """The stamp of the environment that a sweep needs."""
        return self._campaign.environments[self.by_name[name].run.framework.environment]

    def resources(self) -> dict[str, Callable[[Any], Any]]:
        """What the job of a sweep asks of the scheduler: Snakemake's resources as functions of the rule's wildcards."""
        geometries = {name: sweep.geometry for name, sweep in self.by_name.items()}
        return deferred_resources(self._campaign.site, geometries, "sweep")
