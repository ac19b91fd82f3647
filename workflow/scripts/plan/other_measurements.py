"""Describe the measurements of a campaign besides runs: collective benchmarks, timings, batch searches."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from declared.site import Site
from plan.campaign import Campaign
from plan.design import Run
from plan.geometry import Geometry
from plan.scheduling import deferred_resources


class Measurement(Protocol):
    """A planned measurement that is not a run."""

    @property
    def run(self) -> Run:
        """A run of the design with the same ranks."""

    @property
    def name(self) -> str:
        """Name, unique among measurements of this kind."""

    @property
    def geometry(self) -> Geometry:
        """Nodes and ranks."""

    def spec(self, site: Site) -> dict[str, Any]:
        """Return its specification for the ranks."""

    def key(self, site: Site) -> str:
        """Return the key under which its record is stored."""

    def final_record_path(self, results: Path, site: Site) -> Path:
        """Return the path of its final record in results/<study>."""


MeasurementT = TypeVar("MeasurementT", bound=Measurement)


class Measurements(Generic[MeasurementT]):
    """The measurements of one kind in a campaign, for the rules.

    Attributes:
        wildcard: The wildcard of their rule.
        by_name: The measurements that the site can execute, by name.
        record_paths: Path of the final record of each, existing or not, by name.
    """

    wildcard: str

    def __init__(self, campaign: Campaign, planned: Iterable[MeasurementT]) -> None:
        self._campaign = campaign
        self.by_name = {measurement.name: measurement for measurement in planned}
        self.record_paths = {
            name: str(measurement.final_record_path(campaign.results, campaign.site))
            for name, measurement in self.by_name.items()
        }

    def existing_record_paths(self) -> list[str]:
        """Return the paths of the records that exist now."""
        return [path for path in self.record_paths.values() if Path(path).exists()]

    def environment(self, name: str) -> str:
        """Return the stamp of the environment that a measurement needs."""
        return self._campaign.environments[self.by_name[name].run.framework.environment]

    def resources(self) -> dict[str, Callable[[Any], Any]]:
        """Return Snakemake's resources of a measurement's job as functions of the rule's wildcards."""
        geometries = {name: measurement.geometry for name, measurement in self.by_name.items()}
        return deferred_resources(self.site, self._campaign.results, geometries, self.wildcard)

    @property
    def site(self) -> Site:
        """The site, with the time limit of these measurements' jobs."""
        return self._campaign.site
