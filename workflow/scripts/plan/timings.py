"""Plan the timings that a search for strategies uses: their specifications and keys.

A study with strategies from a search times the parts of each model's layers on one rank, and messages between
two ranks. All functions are pure: they depend on study, site and files in git only.
"""

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, digest_text, display_path
from declared.factors import factor_table, levels_name
from declared.mesh import SEARCHED
from declared.site import Site
from plan.campaign import Campaign
from plan.design import Run
from plan.geometry import Geometry
from plan.identity import digest_rank_code, rank_code, site_environment_digest
from plan.other_measurements import Measurements
from plan.site_limits import unsupported_reason
from plan.site_resources import common_site_fields, device_kind_of, heterogeneous_resources, link_settings

PARTS, MESSAGES = "parts", "messages"  # kinds of timings
PROGRAMS = {PARTS: "parts_timed", MESSAGES: "messages_timed"}
FOLDER = CHECKOUT / "workflow" / "scripts" / "ranks"
# Factors that a timing of parts is named after: cells that differ in one of them have their own timings.
PART_FACTORS = ("model", "dataset", "batch_size", "device", "optimizer")
# Further levels in the specification of a timing of parts, for the optimizer. Cells that differ only in them
# share a timing, which has the levels of the first run.
# Without `autotune` and `attention`, timings use the library's defaults.
TRAINING_FACTORS = (
    "momentum", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "decayed_weights",
)  # fmt: skip
BUDGET_S = {PARTS: 100.0, MESSAGES: 12.0}  # seconds for all repetitions of a timing
SMALLEST_BYTES, GROWTH, N_SIZES = 1024, 4, 7  # sizes of messages: up to 4 MiB


@dataclass(frozen=True)
class Timing:
    """A timing of one kind for a framework.

    Attributes:
        kind: PARTS or MESSAGES.
        run: A run of the design with these levels.
        devices: Largest number of devices of such runs.
    """

    kind: str
    run: Run
    devices: int

    @property
    def framework(self) -> str:
        """Name of the framework."""
        return self.run.framework.name

    @property
    def name(self) -> str:
        """`<framework>.<PART_FACTORS>.p<devices>`, or `<framework>.messages` and the device."""
        factors = PART_FACTORS if self.kind == PARTS else ("device",)
        levels = levels_name({name: self.run.levels[name] for name in factors})
        parts = [levels, f"p{self.devices}"] if self.kind == PARTS else [MESSAGES, levels]
        return ".".join(filter(None, [self.framework, *parts]))

    @property
    def geometry(self) -> Geometry:
        """One rank for parts, two ranks for messages, on two nodes if the run has several."""
        geometry, ranks = self.run.geometry, 2 if self.kind == MESSAGES else 1
        nodes, ranks_per_node = (2, 1) if ranks == 2 and geometry.nodes > 1 else (1, ranks)
        return replace(
            geometry,
            nodes=nodes,
            ranks=ranks,
            ranks_per_node=ranks_per_node,
            replicas=1,
            replicas_per_rank=1,
            mesh=None,
        )

    def spec(self, site: Site) -> dict[str, Any]:
        """Return everything the timing depends on except software and model, for launchers and ranks."""
        name, geometry, levels = f"timing.{self.name}", self.geometry, self.run.levels
        scope: dict[str, Any] = {"sizes": [SMALLEST_BYTES * GROWTH**power for power in range(N_SIZES)]}
        names: tuple[str, ...] = ("framework", "device")
        if self.kind == PARTS:
            scope = {"batch": self.run.geometry.local_batch, "devices": self.devices}
            names = ("framework", *PART_FACTORS, *TRAINING_FACTORS)
        site_rate_levels = {**levels, "bandwidth": factor_table()["bandwidth"]["default"]}
        return {
            "run_id": name,
            "kind": self.kind,
            "budget_s": BUDGET_S[self.kind],
            "levels": {factor: levels[factor] for factor in names},
            "seed": int(digest_text(name)[:8], 16) >> 1,
            "nodes": geometry.nodes,
            "ranks": geometry.ranks,
            "ranks_per_node": geometry.ranks_per_node,
            "replicas_per_rank": geometry.replicas_per_rank,
            "step_times": False,
            **scope,
            **common_site_fields(site),
            **link_settings(site, site_rate_levels),
            "device": device_kind_of(site, levels),
            **heterogeneous_resources(site, levels, geometry),
        }

    def digests(self, site: Site) -> dict[str, str]:
        """Return the digests of environment and code (64 hex digits each)."""
        return {
            "environment_digest": site_environment_digest(self.run.framework.environment, site),
            "code_digest": timing_code_digest(self.framework, self.kind),
        }

    def key(self, site: Site) -> str:
        """Return the first 12 hex digits of the SHA-256 over spec, model and digests."""
        model = self.run.graph.to_json() if self.kind == PARTS else {}
        parts = [self.spec(site), model, *self.digests(site).values()]
        return digest_text(json.dumps(parts, sort_keys=True))[:12]

    def final_record_path(self, results: Path, site: Site) -> Path:
        """Return results/<study>/costs/<name>/<key>/timing.json."""
        return results / "costs" / self.name / self.key(site) / "timing.json"


def required_timings(runs: Iterable[Run]) -> list[Timing]:
    """Return the timings that the search for the strategies of `runs` uses, none without such a search."""
    partitioned = [run for run in runs if run.framework.strategies]
    if not any(run.levels["parallelism"] == SEARCHED for run in partitioned):
        return []
    timings: dict[tuple[object, ...], Timing] = {}
    for run in partitioned:
        for kind, names in ((PARTS, PART_FACTORS), (MESSAGES, ("device",))):
            if kind == PARTS or run.geometry.ranks > 1:
                group = (kind, run.framework.name, *(run.levels[name] for name in names))
                timing = timings.setdefault(group, Timing(kind, run, 1))
                timings[group] = replace(timing, devices=max(timing.devices, run.geometry.ranks))
    return sorted(timings.values(), key=lambda timing: (timing.kind, timing.name))


def planned_timings(runs: Iterable[Run], site: Site) -> list[Timing]:
    """Return the required timings that the site can execute."""
    return [
        timing for timing in required_timings(runs) if unsupported_reason(site, timing.run.levels) is None
    ]


@functools.cache
def timing_code_digest(framework: str, kind: str) -> str:
    """Return the SHA-256 of the code of the timing program and of the framework's ranks."""
    return digest_rank_code([FOLDER / f"{PROGRAMS[kind]}.py", *rank_code(framework)])


class Timings(Measurements[Timing]):
    """The timings of a campaign, for the rules."""

    wildcard = "timing"

    def __init__(self, campaign: Campaign) -> None:
        super().__init__(campaign, planned_timings(campaign.runs, campaign.site))

    def check_available(self, files: list[str]) -> list[str]:
        """Return `files`, which depend on timings.

        Raises:
            InputError: If the campaign has no timings, so that no strategy can be searched.
        """
        timings = required_timings(self._campaign.runs)
        self._campaign.check_searches("strategies", (timing.run for timing in timings))
        if timings:
            return files
        raise InputError(
            "missing-level",
            f"no cell has the level {SEARCHED}, so no run would use a strategy from a search",
            file=display_path(self._campaign.study.file),
            key="factors.parallelism",
            hint=(
                "add it, or search for a model without a study: ./ringside strategies --model NAME "
                "--batch-size N"
            ),
        )
