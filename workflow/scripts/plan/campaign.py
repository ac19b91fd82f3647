"""A campaign as the workflow sees it: one study at one site, the runs, and where everything lies.

The Snakefile makes one Campaign while it is parsed; all that its rules need to know is here.
"""

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from common.errors import InputError
from common.files import write_json
from environments.description import environment_stamp, lineage
from plan.design import Run, design
from plan.identity import data_folder, run_key, variant
from plan.study import Site, Study, load_config, load_framework, load_site, load_study

MODES = ("campaign", "available")


@dataclass(frozen=True)
class Campaign:
    """One study at one site. Paths are relative to the checkout where results lie, absolute where the cache does."""

    study: Study
    site: Site
    mode: str
    runs: list[Run]
    published: Path | None

    @cached_property
    def results(self) -> Path:
        """results/<study>."""
        return Path("results") / self.study.name

    @property
    def runs_csv(self) -> Path:
        """The table of runs that figures and tables are made from."""
        return (self.published or self.results) / "runs.csv"

    @property
    def epochs_csv(self) -> Path:
        """The table of epochs that figures and tables are made from."""
        return (self.published or self.results) / "epochs.csv"

    @cached_property
    def records(self) -> dict[str, str]:
        """Where the record of every run lies that the site can make: run_id -> record.json, in planned order."""
        return {run.run_id: self._record(run) for run in self.runs if self.site.has(run.levels["framework"])}

    @cached_property
    def by_id(self) -> dict[str, Run]:
        """The runs by their id."""
        return {run.run_id: run for run in self.runs}

    @cached_property
    def priorities(self) -> dict[str, int]:
        """Snakemake's priority of every run: the planned order, first run highest."""
        return {run.run_id: len(self.runs) - place for place, run in enumerate(self.runs)}

    @cached_property
    def environments(self) -> dict[str, str]:
        """The environments that the runs need, parents first: name -> its stamp, environment.json."""
        wanted = sorted({load_framework(self.by_id[run_id].levels["framework"]).environment for run_id in self.records})
        return {name: str(self._stamp(name)) for name in lineage(wanted)}

    @cached_property
    def datasets(self) -> dict[str, str]:
        """The data sets that the runs need: name -> the prepared data set's manifest.json."""
        return {name: str(data_folder(self.site, name) / "manifest.json") for name in self.study.factors["dataset"]}

    def environment_of(self, run_id: str) -> str:
        """The stamp of the environment that a run needs."""
        return self.environments[load_framework(self.by_id[run_id].levels["framework"]).environment]

    def dataset_of(self, run_id: str) -> str:
        """The manifest of the data set that a run needs."""
        return self.datasets[self.by_id[run_id].levels["dataset"]]

    def available(self) -> list[str]:
        """The records that exist now."""
        return [path for path in self.records.values() if os.path.exists(path)]

    def outlook(self) -> str:
        """What there is and what is left, in one line."""
        done = len(self.available())
        said = f"{self.study.name} at {self.site.name}: {len(self.runs)} runs, {done} with a record"
        return (
            f"{said}, {len(self.records) - done} to run" if self.mode == "campaign" else f"{said} (records={self.mode})"
        )

    def bind(self) -> None:
        """Tie the results to this site (and, where the site is this machine, to it), once and for all."""
        file = self.results / "campaign.json"
        if self.mode == "campaign" and not file.exists():
            write_json(
                file, {**self._place(), "study": self.study.name, "bound_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
            )

    def check_bound(self) -> None:
        """InputError when results/<study> belongs to another site and runs would be added to it."""
        file = self.results / "campaign.json"
        if self.mode != "campaign" or not file.exists():
            return
        try:
            bound = json.loads(file.read_text())
            there = {key: bound[key] for key in ("site", "machine")}
        except (ValueError, TypeError, KeyError):
            raise InputError(
                f"{file}: is broken; expected site and machine; remove it if the results were made here"
            ) from None
        if there != self._place():
            where = f"site {there['site']}" + (f" on {there['machine']}" if there["machine"] else "")
            raise InputError(
                f"{file}: these results belong to {where}; for figures of them add --config records=available, "
                f"to run here move {self.results} away"
            )

    def _place(self) -> dict[str, str | None]:
        return {"site": self.site.name, "machine": socket.gethostname() if self.site.launcher == "local" else None}

    def _record(self, run: Run) -> str:
        return f"{self.results}/runs/{run.run_id}/{run_key(self.study, self.site, run)}/record.json"

    def _stamp(self, environment: str) -> Path:
        return environment_stamp(self.site.cache, environment, variant(self.site), self.site.deployment)


def load_campaign(values: Mapping[str, Any]) -> Campaign:
    """The campaign that the workflow's configuration names. InputError in one line when something in it is wrong."""
    config = load_config(values)
    study, site = load_study(config["study"]), load_site(config["site"])
    mode = config["records"]
    published = None
    if mode not in MODES:
        published, mode = Path(mode), "published"
        for name in ("runs.csv", "epochs.csv"):
            if not (published / name).is_file():
                expected = f"{', '.join(MODES)} or a folder with runs.csv and epochs.csv"
                raise InputError(f"config/config.yaml: records: there is no {published / name}; expected {expected}")
    campaign = Campaign(study, site, mode, design(study, site), published)
    campaign.check_bound()
    if mode == "campaign":
        _ = campaign.environments  # a broken description is found now, not in the middle of the rules
    return campaign


def locks(state: Path) -> list[Path]:
    """Snakemake's lock files in `state` (.snakemake)."""
    return list((state / "locks").glob("*.lock"))


def take_over(state: Path) -> None:
    """Note in `state` which process works here. InputError when a Snakemake that is dead has left its lock."""
    if not locks(state):
        me = {"pid": os.getpid(), "start": _start_of(os.getpid()), "machine": socket.gethostname()}
        write_json(state / "owner.json", me)
    elif not alive(state):
        raise InputError(f"{state.name}/locks: left by a Snakemake that was killed; run make unlock, then start again")


def alive(state: Path) -> bool:
    """Whether the process that noted itself in `state` lives; a process of another machine is taken to."""
    try:
        owner = json.loads((state / "owner.json").read_text())
    except (FileNotFoundError, ValueError):
        return True
    if owner["machine"] != socket.gethostname():
        return True
    return _start_of(owner["pid"]) == owner["start"]


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since boot (proc(5)); None when there is none. Tells a reused process id apart."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]
