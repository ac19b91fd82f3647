"""What a campaign times before it searches for strategies, what each timing is made under, and the key that it is kept under.

Pure functions of study, site and files in git, as plan.sweeps. Where a study asks for strategies that are found, the parts of the layers of
each of its models are timed on one rank, and messages between two.
"""

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import CHECKOUT, digest_text, shown
from declared.factors import factor_table
from declared.mesh import FOUND
from declared.site import Site
from plan.campaign import Campaign
from plan.design import Geometry, Run
from plan.identity import STRATEGY, device, digest_rank_code, digests, lacks, links, rank_code, site_part, unlike
from plan.scheduling import deferred_resources

PARTS, MESSAGES = "parts", "messages"  # what is timed
PROGRAMS = {PARTS: "parts_timed", MESSAGES: "messages_timed"}
FOLDER = CHECKOUT / "workflow" / "scripts" / "ranks"
COSTS, OF_MESSAGES = "costs.csv", "messages.csv"
# Of a cell, what decides how long parts take; and how they are trained, of which cells that train by one strategy have the same.
OF_PARTS = ("model", "dataset", "batch_size", "device", "optimizer")
TRAINED = ("momentum", "weight_decay", "precision")
BUDGET_S = {PARTS: 100.0, MESSAGES: 12.0}  # for all repetitions of a timing
SMALLEST_BYTES, GROWTH, SIZES = 1024, 4, 7  # of messages: to 4 MiB


@dataclass(frozen=True)
class Timing:
    """What is timed for a framework: `kind`; of which a `run` of the design is an example, and the most `devices` that any like it has."""

    kind: str
    run: Run
    devices: int

    @property
    def framework(self) -> str:
        """The framework whose code computes and sends."""
        return self.run.framework.name

    @property
    def name(self) -> str:
        """`<framework>.<levels of OF_PARTS>.p<most devices>`, or `<framework>.messages`, with the device where that is not the site's."""
        levels, table = self.run.levels, factor_table()
        if self.kind == MESSAGES:
            told = [MESSAGES, *[f"device={levels['device']}"] * (levels["device"] != table["device"]["default"])]
        else:
            told = [f"{table[name].get('symbol', '')}{levels[name]}" for name in OF_PARTS[:3]]
            told += [f"{name}={levels[name]}" for name in OF_PARTS[3:] if levels[name] != table[name]["default"]]
            told.append(f"p{self.devices}")
        return ".".join([self.framework, *told]).replace("/", "_")

    @property
    def geometry(self) -> Geometry:
        """One rank for parts; for messages two, on two nodes where the run has several."""
        of, ranks = self.run.geometry, 2 if self.kind == MESSAGES else 1
        apart = ranks == 2 and of.nodes > 1
        nodes, inside = (2, 1) if apart else (1, ranks)
        return replace(of, nodes=nodes, ranks=ranks, ranks_per_node=inside, replicas=1, replicas_per_rank=1, mesh=None)


def wanted(runs: Iterable[Run]) -> list[Timing]:
    """The timings of the strategies that `runs` ask for: none where no cell trains by one that is found."""
    divided = [run for run in runs if run.framework.strategies]
    if not any(run.levels["parallelism"] == FOUND for run in divided):
        return []
    found: dict[tuple[Any, ...], Timing] = {}
    for run in divided:
        for kind, names in ((PARTS, OF_PARTS), (MESSAGES, ("device",))):
            if kind == PARTS or run.geometry.ranks > 1:
                of = (kind, run.framework.name, *(run.levels[name] for name in names))
                known = found.setdefault(of, Timing(kind, run, 1))
                found[of] = replace(known, devices=max(known.devices, run.geometry.ranks))
    return sorted(found.values(), key=lambda timing: (timing.kind, timing.name))


def planned(runs: Iterable[Run], site: Site) -> list[Timing]:
    """The wanted timings that the site can make."""
    return [timing for timing in wanted(runs) if lacks(site, timing.run.levels) is None]


def of_run(timings: Iterable[Timing], run: Run) -> Timing | None:
    """The timing of the parts of a run's model."""
    names = ("framework", *OF_PARTS)
    same = (each for each in timings if all(each.run.levels[name] == run.levels[name] for name in names))
    return next((each for each in same if each.kind == PARTS), None)


def spec(site: Site, timing: Timing) -> dict[str, Any]:
    """All that a timing depends on apart from software and the model, with the keys that launchers and the worker's context want."""
    name, geometry, levels = f"timing.{timing.name}", timing.geometry, timing.run.levels
    told: dict[str, Any] = {"sizes": [SMALLEST_BYTES * GROWTH**power for power in range(SIZES)]}
    names: tuple[str, ...] = ("framework", "device")
    if timing.kind == PARTS:
        told = {"batch": timing.run.geometry.local_batch, "devices": timing.devices}
        names = ("framework", *OF_PARTS, *TRAINED)
    at_the_sites_rate = {**levels, "bandwidth": factor_table()["bandwidth"]["default"]}
    return {
        "run_id": name,
        "kind": timing.kind,
        "budget_s": BUDGET_S[timing.kind],
        "levels": {each: levels[each] for each in names},
        "seed": int(digest_text(name)[:8], 16) >> 1,
        "nodes": geometry.nodes,
        "ranks": geometry.ranks,
        "ranks_per_node": geometry.ranks_per_node,
        "replicas_per_rank": geometry.replicas_per_rank,
        "step_times": False,
        **told,
        **site_part(site),
        **links(site, at_the_sites_rate),
        "device": device(site, levels),
        **unlike(site, levels, geometry),
    }


@functools.cache
def code_digest(framework: str, kind: str) -> str:
    """SHA-256 of what computes and times: the program, the shared worker, the libraries' modules, the adapter."""
    return digest_rank_code([FOLDER / f"{PROGRAMS[kind]}.py", *STRATEGY, *rank_code(framework)])


def environment_digest(site: Site, timing: Timing) -> str:
    """The digest of the framework's environment, as its runs have it."""
    return digests(site, timing.run.levels)["environment_digest"]


def key(site: Site, timing: Timing) -> str:
    """First 12 hex digits of the SHA-256 over spec, model, environment digest and code digest."""
    model = timing.run.graph.to_json() if timing.kind == PARTS else {}
    digest = code_digest(timing.framework, timing.kind)
    parts = [spec(site, timing), model, environment_digest(site, timing), digest]
    return digest_text(json.dumps(parts, sort_keys=True))[:12]


def output(results: Path, site: Site, timing: Timing) -> Path:
    """results/<study>/costs/<name of the timing>/<key>/timing.json."""
    return results / "costs" / timing.name / key(site, timing) / "timing.json"


class Timings:
    """The timings of a campaign as the rules see them."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.by_name = {timing.name: timing for timing in planned(campaign.runs, campaign.site)}
        self.outputs = {
            name: str(output(campaign.results, campaign.site, timing)) for name, timing in self.by_name.items()
        }

    def available(self) -> list[str]:
        """The timings' outputs that exist now."""
        return [path for path in self.outputs.values() if Path(path).exists()]

    def behind(self, files: list[str]) -> list[str]:
        """`files`, which are made of timings. InputError where there are none: no strategy would be found, or none that a run takes."""
        if self.by_name and self._campaign.mode == "campaign":
            return files
        study, site = self._campaign.study, self._campaign.site
        if self._campaign.mode != "campaign":
            raise InputError(
                "not-possible-here",
                "strategies are found for runs that are made",
                file="config/config.yaml",
                key="records",
                got=self._campaign.mode,
                expected=["campaign"],
            )
        if timings := wanted(self._campaign.runs):
            reason = lacks(site, timings[0].run.levels)
            code = reason.code if reason else "not-possible-here"
            raise InputError(code, f"no strategy can be found here: {reason}", file=shown(study.file))
        raise InputError(
            "missing-level",
            f"no cell has the level {FOUND}, so that no run would use a strategy that is found",
            file=shown(study.file),
            key="factors.parallelism",
            hint="add it, or ask for a model without a study: ./ringside strategies --model NAME --batch-size N",
        )

    def environment(self, name: str) -> str:
        """The stamp of the environment that a timing needs."""
        return self._campaign.environments[self.by_name[name].run.framework.environment]

    def resources(self) -> dict[str, Callable[[Any], Any]]:
        """What the job of a timing asks of the scheduler: Snakemake's resources as functions of the rule's wildcards."""
        geometries = {name: timing.geometry for name, timing in self.by_name.items()}
        return deferred_resources(self._campaign.site, geometries, "timing")
