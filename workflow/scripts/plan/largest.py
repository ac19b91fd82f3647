"""Plan the searches for the largest batch that fits: candidates, specifications of trial runs, and keys.

Cells that differ only in factors without effect on memory share a search (plan.batch_sizes.search_levels). A
trial trains with the cell's ranks for two epochs of a few steps, since the optimizer has its state after the
first step, and validation takes place between two epochs. All functions are pure: they depend on study, site
and files in git only.

On CPUs nothing stops a rank before the node swaps. Therefore a trial limits each rank's memory (RLIMIT_DATA)
to its share of MEMORY_SHARE of the node's memory, or of the limit of its control groups. The limit counts
reserved memory, which is slightly more than the memory in use.
"""

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import digest_text, display_path
from declared.factors import LARGEST, Levels, has_largest_batch
from declared.site import Site
from plan.batch_sizes import batch_search_name, search_levels
from plan.campaign import Campaign
from plan.cell_checks import checked_geometry, smallest_geometry
from plan.design import Run
from plan.geometry import Geometry, trains_enough
from plan.identity import digests, geometry_fields
from plan.other_measurements import Measurements
from plan.site_limits import unsupported_reason
from plan.site_resources import device_kind_of, site_fields

TRIAL_EPOCHS = 2
TRIAL_UPDATES = 2  # optimizer steps of each epoch
MEMORY_SHARE = 0.9  # share of a node's memory that its ranks may use on CPUs; the system needs the rest
LIMITS_PER_SEARCH = 4  # time limit of a search's job, in time limits of a run; trials done by then are kept
STEPS_PER_DOUBLING = 32  # candidates between a size and its double: neighbours differ by 2 to 3 %


@dataclass(frozen=True)
class BatchSearch:
    """The search for the largest batch of all cells that need as much memory as the cell of `run`."""

    run: Run

    @property
    def name(self) -> str:
        """Name made of the levels that change memory."""
        return batch_search_name(self.run.levels)

    @property
    def levels(self) -> Levels:
        """The levels of a trial, without its batch size."""
        return search_levels(self.run.levels) | {"epochs": TRIAL_EPOCHS, "warmup_epochs": 0}

    @property
    def geometry(self) -> Geometry:
        """Nodes and ranks."""
        return self.run.geometry

    def trial_geometry(self, site: Site, batch_size: int) -> Geometry:
        """Return the geometry of a trial, with few steps in an epoch.

        Raises:
            InfeasibleCell: If the cell cannot be trained with this batch size.
        """
        levels = self.levels | {"batch_size": batch_size}
        geometry = checked_geometry(levels, self.run.framework, site)
        steps = min(geometry.steps, TRIAL_UPDATES * levels["sync_every"])
        samples = steps * geometry.replicas * geometry.local_batch
        return replace(geometry, steps=steps, samples_per_epoch=samples)

    def smallest(self, site: Site) -> int:
        """Return the smallest batch size that the cell can train with."""
        return smallest_geometry(self.levels, self.run.framework, site).local_batch

    def trial_spec(self, site: Site, batch_size: int) -> dict[str, Any]:
        """Return the specification of a trial, with the same fields as a run's (plan.identity.run_spec)."""
        levels, geometry = self.levels | {"batch_size": batch_size}, self.trial_geometry(site, batch_size)
        return {
            "run_id": f"largest.{self.name}",
            "levels": levels,
            "replicate": 1,
            "seed": int(digest_text(self.name)[:8], 16) >> 1,
            **geometry_fields(geometry),
            "step_times": False,
            **site_fields(site, levels, geometry),
            **({"memory_share": share} if (share := self.memory_share(site)) else {}),
        }

    def spec(self, site: Site) -> dict[str, Any]:
        """Return the specification of the trial with the smallest batch."""
        return self.trial_spec(site, self.smallest(site))

    def key(self, site: Site) -> str:
        """Return the first 12 hex digits of the SHA-256 over all that decides a search except memory."""
        settings = [TRIAL_UPDATES, STEPS_PER_DOUBLING]
        parts = [self.spec(site), settings, digests(site, self.run.levels)]
        return digest_text(json.dumps(parts, sort_keys=True))[:12]

    def final_record_path(self, results: Path, site: Site) -> Path:
        """Return results/<study>/largest/<name>/<key>/batch_search.json."""
        return results / "largest" / self.name / self.key(site) / "batch_search.json"

    def memory_share(self, site: Site) -> float | None:
        """Return the share of a node's memory that a rank of a trial may use, None on accelerators."""
        if device_kind_of(site, self.run.levels) != "cpu":
            return None
        geometry = self.run.geometry
        n_ranks = geometry.ranks_per_node if site.placement == "distinct-nodes" else geometry.ranks
        return MEMORY_SHARE / n_ranks

    def candidates(self, site: Site) -> list[int]:
        """Return the batch sizes to choose from in ascending order, STEPS_PER_DOUBLING for every doubling.

        Each is the largest one of its step that the cell can train with if there is enough memory. The last
        one is at most the whole data set in one optimizer step.
        """
        first = self.run.geometry
        last = first.samples_per_epoch // (first.replicas * self.levels["sync_every"])
        sizes: list[int] = []
        start = self.smallest(site)
        while start <= last:
            grain = 1 << max(0, start.bit_length() - STEPS_PER_DOUBLING.bit_length())
            end = min(start // grain * grain + grain, last + 1)
            trainable = (size for size in range(end - 1, start - 1, -1) if self._is_trainable(size))
            sizes += itertools.islice(trainable, 1)
            start = end
        return sizes

    def _is_trainable(self, batch_size: int) -> bool:
        """Return whether the cell can train with a batch size that is not below the smallest one."""
        geometry = self.run.geometry
        divides = batch_size % self.levels["microbatches"] == 0
        return divides and trains_enough(batch_size * geometry.replicas, geometry.samples_per_epoch)


def required_searches(runs: Iterable[Run]) -> list[BatchSearch]:
    """Return the searches for the batch sizes of `runs`, sorted by name."""
    searches = {
        batch_search_name(run.levels): BatchSearch(run) for run in runs if has_largest_batch(run.levels)
    }
    return [searches[name] for name in sorted(searches)]


def planned_searches(runs: Iterable[Run], site: Site) -> list[BatchSearch]:
    """Return the required searches that the site can execute."""
    return [
        search for search in required_searches(runs) if unsupported_reason(site, search.run.levels) is None
    ]


class BatchSearches(Measurements[BatchSearch]):
    """The searches of a campaign, for the rules."""

    wildcard = "search"

    def __init__(self, campaign: Campaign) -> None:
        super().__init__(campaign, planned_searches(campaign.runs, campaign.site))

    def check_available(self, files: list[str]) -> list[str]:
        """Return `files`, which depend on searches.

        Raises:
            InputError: If the campaign has no search.
        """
        searches = required_searches(self._campaign.runs)
        self._campaign.check_searches("batch sizes", (search.run for search in searches))
        if searches:
            return files
        raise InputError(
            "missing-level",
            f"no cell has the level {LARGEST}, so no run would use a batch size from a search",
            file=display_path(self._campaign.study.file),
            key="factors.batch_size",
            hint=f"add it: batch_size: {LARGEST}",
        )

    def dataset(self, name: str) -> str:
        """Return the file that marks the data set of a search as prepared."""
        return self._campaign.datasets[self.by_name[name].run.levels["dataset"]]

    @property
    def site(self) -> Site:
        """The site with the time limit of a search, which runs several trials."""
        site = self._campaign.site
        return replace(site, time_limit_s=LIMITS_PER_SEARCH * site.time_limit_s)
