"""A campaign as the workflow sees it: one study at one site, the runs, and where everything lies.

The Snakefile makes one Campaign while it is parsed; all that its rules need to know is here.
"""

import csv
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from common.caches import PARTS, check_cache
from common.errors import InputError
from common.files import CHECKOUT, shown
from common.notes import Note
from common.text import number_of
from datasets.identity import data_folder
from declared.configuration import load_config, read_config
from declared.environments import lineage, read
from declared.site import Site, load_site
from declared.study import Study, load_study
from environments import installed
from environments.identity import environment_stamp
from plan.binding import as_bound, check_place, read_binding
from plan.decisions import Decision, decided, place
from plan.design import Run, cell_name, design, to_csv
from plan.identity import Planned, lacks, plan_run
from plan.machine import check_folder, check_machine
from plan.recorded import STATUSES, record_status
from plan.strategies import to_find

MODES = ("campaign", "available")
PILOT_BLOCKS = 2


@dataclass(frozen=True)
class Campaign:
    """One study at one site. Paths are relative to the checkout where results lie, absolute where the cache does.

    `possible`: the runs of its design. All of them are made, unless the study says a precision in place of a number of replicates.
    """

    study: Study
    site: Site
    mode: str
    possible: list[Run]
    published: Path | None

    @cached_property
    def results(self) -> Path:
        """results/<study>."""
        return Path("results") / self.study.name

    @cached_property
    def runs(self) -> list[Run]:
        """The runs, in planned order: all that are possible, or those that are known to be made (`now`), where replicates are chosen by
        precision: those of the first blocks, those that were decided, and those that have a record, whatever was decided since."""
        rule = self.study.replicates
        if not rule.adaptive:
            return self.possible
        refined = {decision.block + 1: set(decision.refined) for decision in self.decisions}
        return [
            run
            for run in self.possible
            if run.block <= rule.at_least or run.cell in refined.get(run.block, ()) or self._is_recorded(run)
        ]

    @cached_property
    def most(self) -> list[Run]:
        """The runs that may be made, in planned order: of the possible ones those of cells that may get more than the first blocks, where
        replicates are chosen by precision."""
        rule = self.study.replicates
        if not rule.adaptive:
            return self.possible
        known, refinable = {run.run_id for run in self.runs}, {cell_name(levels) for levels in self.study.refinable}
        return [run for run in self.possible if run.run_id in known or run.cell in refinable]

    @cached_property
    def decisions(self) -> list[Decision]:
        """What was decided so far, where replicates are chosen by precision."""
        return decided(self.results, self.study.replicates) if self.published is None else []

    def now(self) -> "Campaign":
        """As it is now: where replicates are chosen by precision, decisions may have been made since."""
        if not self.study.replicates.adaptive:
            return self
        again = replace(self)
        vars(again)["_paths"] = self._paths
        return again

    def known(self) -> tuple[int, bool]:
        """How many runs the site will make as far as is known, and whether more may be decided."""
        return len(self.records), self.open or self._decided_anew

    @property
    def open(self) -> bool:
        """Whether it has still to be decided which cells get more runs."""
        rule, last = self.study.replicates, self.decisions[-1:]
        if not rule.adaptive or self.published:
            return False
        decided = last and not (last[0].refined and last[0].block < rule.at_most - 1)
        return not decided and len(self.runs) < len(self.most)

    @property
    def runs_csv(self) -> Path:
        """The table of runs that figures and tables are made from."""
        return (self.published or self.results) / "runs.csv"

    @property
    def epochs_csv(self) -> Path:
        """The table of epochs that figures and tables are made from."""
        return (self.published or self.results) / "epochs.csv"

    @property
    def phases_csv(self) -> Path:
        """The table of the phases of traced runs; trace_steps.csv lies beside it."""
        return self.runs_csv.with_name("phases.csv")

    @property
    def traced(self) -> bool:
        """Whether there are phases of traced runs, or will be when the study has run."""
        return self.study.traced and (self.published is None or self.phases_csv.exists())

    @property
    def referenced(self) -> bool:
        """Whether runs have a reference beside them, or will have one."""
        if self.published is None:
            return self.site.reference
        with open(self.runs_csv, encoding="utf-8", errors="replace", newline="") as table, suppress(csv.Error):
            return any(row.get("reference_s") for row in csv.DictReader(table))
        return False  # whoever reads the table says what is wrong in it

    @cached_property
    def records(self) -> dict[str, str]:
        """Where the record of every run lies that the site can make: run_id -> record.json, in planned order."""
        return {run.run_id: self.record(run) for run in self.runs if self.lacks(run) is None}

    def lacks(self, run: Run) -> Note | None:
        """Why the site cannot make a run that was planned; None where it can."""
        return lacks(self.site, run.levels) or (to_find(self.study.name, self.site) if run.unfound else None)

    def never_precise(self) -> list[Note]:
        """That no cell can be called as precise as the study wants, in a line; else nothing."""
        rule = self.study.replicates
        timed = {cell_name(levels) for levels in self.study.timed}
        cells = len({run.cell for run in self.runs if self.lacks(run) is None} & timed)
        if not rule.adaptive or not cells or rule.at_most >= (known := rule.known_after(cells)):
            return []
        return [
            Note(
                "never-precise",
                f"at_most: {rule.at_most} cannot be enough: how far runs spread is known after {known} runs of {number_of(cells, 'cell')} at best, "
                f"and no cell is called precise before; say at_most: {known + 1} or more, or replicates: {rule.at_most}",
                at_most=rule.at_most,
                known_after=known,
                cells=cells,
            )
        ]

    def left_out(self) -> list[Note]:
        """Why the site cannot make runs that were planned: a line for each reason, with how many runs of how many cells."""
        left: dict[Note, list[Run]] = {}
        for run in self.runs:
            if run.run_id not in self.records and (reason := self.lacks(run)):
                left.setdefault(reason, []).append(run)
        return [_left_out(reason, runs) for reason, runs in left.items()]

    def records_of_block(self, block: int | None) -> list[str]:
        """The records of one block, in planned order; of all blocks without one. InputError when there is no such block."""
        wanted = {run.run_id for run in self.of_block(block).runs}
        return [path for run_id, path in self.records.items() if run_id in wanted]

    def of_block(self, block: int | None) -> "Campaign":
        """The campaign with the runs of one block only; as it is without one. InputError when there is no such block."""
        if block not in (None, *self.blocks):
            expected = f"one of {', '.join(map(str, self.blocks))}"
            raise InputError(
                "unknown-name", f"{block} is none of the study's blocks", key="block", got=block, expected=expected
            )
        return self if block is None else replace(self, possible=[run for run in self.possible if run.block == block])

    @cached_property
    def pilot(self) -> "Campaign":
        """The campaign with the runs of a pilot only: the first PILOT_BLOCKS blocks."""
        return replace(self, possible=[run for run in self.possible if run.block in self.blocks[:PILOT_BLOCKS]])

    @cached_property
    def blocks(self) -> list[int]:
        """The numbers of the blocks, also of those that may turn out to be empty."""
        return sorted({run.block for run in self.possible})

    @cached_property
    def by_id(self) -> dict[str, Run]:
        """The possible runs by their id."""
        return {run.run_id: run for run in self.possible}

    @cached_property
    def design_stands(self) -> bool:
        """Whether design.csv is what would be planned now, whatever has changed since in the files that it was made of."""
        try:
            return (self.results / "design.csv").read_text(encoding="utf-8") == to_csv(self.possible)
        except (OSError, ValueError):
            return False

    @cached_property
    def priorities(self) -> dict[str, int]:
        """Snakemake's priority of every run: the planned order, first run highest."""
        return {run.run_id: len(self.possible) - place for place, run in enumerate(self.possible)}

    @cached_property
    def environments(self) -> dict[str, str]:
        """The environments that the runs need, parents first: name -> its stamp, environment.json. Those whose strategy has to be found need
        theirs before."""
        unfound = {
            run.framework.environment for run in self.runs if run.unfound and lacks(self.site, run.levels) is None
        }
        wanted = sorted(unfound.union(self.by_id[run_id].framework.environment for run_id in self.records))
        return {name: str(self._stamp(name)) for name in lineage(wanted, realization=self.site.realization)}

    @cached_property
    def images(self) -> list[str]:
        """The environments among them that are images at this site."""
        wanted = self.site.realization
        return [name for name in self.environments if read(name).deployment(wanted) == "apptainer"]

    def image_stamps(self) -> list[str]:
        """The stamps of the images. InputError when there is none to be made."""
        if not self.images:
            raise InputError(
                "no-images",
                f"{self.site.deployment}; with it none of the study's environments is an image",
                file=shown(self.site.file),
                key="deployment",
                got=self.site.deployment,
                hint="say deployment: apptainer",
            )
        return [self.environments[name] for name in self.images]

    @cached_property
    def datasets(self) -> dict[str, str]:
        """The data sets that the runs need: name -> the file that says that it is prepared."""
        wanted = dict.fromkeys(self.by_id[run_id].levels["dataset"] for run_id in self.records)
        return {name: str(data_folder(self.site, name) / "prepared") for name in wanted}

    def environment_of(self, run_id: str) -> str:
        """The stamp of the environment that a run needs."""
        return self.environments[self.by_id[run_id].framework.environment]

    def dataset_of(self, run_id: str) -> str:
        """The file that says that the data set is prepared which a run needs."""
        return self.datasets[self.by_id[run_id].levels["dataset"]]

    def available(self) -> list[str]:
        """The records that exist now."""
        return [path for path in self.records.values() if os.path.exists(path)]

    @cached_property
    def statuses(self) -> dict[str, str]:
        """run_id -> the status in its record, of the runs that have one now."""
        return {run_id: record_status(Path(path)) for run_id, path in self.records.items() if os.path.exists(path)}

    def counted(self) -> str:
        """How many records of each status there are now, in words: 260 ok, 6 invalid; nothing where there is none."""
        counts = Counter(self.statuses.values())
        return ", ".join(f"{counts[status]:,} {status}" for status in STATUSES if counts[status])

    def outlook(self) -> str:
        """What there is and what is left, in one line."""
        if self.published:
            return f"{self.study.name}: figures and tables from {self.published}"
        left = len(self.records) - len(self.statuses)
        told = [self.counted()] + [f"{left:,} to run"] * (self.mode == "campaign" and left > 0)
        said = ", ".join(each for each in told if each) or "no record"
        most = f" so far, {len(self.most):,} at most" if self.mode == "campaign" and self.open else ""
        return f"{self.study.name} at {self.site.name}: {number_of(len(self.runs), 'run')}{most}: {said}"

    @property
    def _decided_anew(self) -> bool:
        """Whether the last decision will be made again, since a run that it was made of was repeated after it."""
        if not self.decisions:
            return False
        block = self.decisions[-1].block
        made_at = os.stat(place(self.results, block)).st_mtime_ns
        before = (self.records[run.run_id] for run in self.runs if run.block <= block and run.run_id in self.records)
        return any(os.path.exists(path) and os.stat(path).st_mtime_ns > made_at for path in before)

    def _is_recorded(self, run: Run) -> bool:
        """Whether a possible run has a record. Its key takes time: it is computed where there is a folder."""
        return os.path.isdir(self.results / "runs" / run.run_id) and os.path.exists(self.record(run))

    def planned(self, run: Run) -> Planned:
        """Return a run as it is measured here."""
        return plan_run(self.study, self.site, run)

    def record(self, run: Run) -> str:
        """Return where the record of a run lies, or will lie."""
        if run.run_id not in self._paths:
            self._paths[run.run_id] = f"{self.results}/runs/{run.run_id}/{self.planned(run).key}/record.json"
        return self._paths[run.run_id]

    @cached_property
    def _paths(self) -> dict[str, str]:
        """Where the records of runs lie, of those that were asked for: keys take time."""
        return {}

    def _stamp(self, environment: str) -> Path:
        return environment_stamp(self.site.cache, environment, self.site.variant, self.site.realization)


def _left_out(reason: Note, runs: Sequence[Run]) -> Note:
    """Return the line of the runs that cannot be made for one `reason`, with its code and facts."""
    cells = len({run.cell for run in runs})
    text = f"{number_of(len(runs), 'run')} of {number_of(cells, 'cell')} cannot run here: {reason}"
    return Note(reason.code, text, runs=len(runs), cells=cells, **reason.facts)


def configured(study: str = "", site: str = "", files: Sequence[str] = ()) -> dict[str, Any]:
    """Return the configuration of a program outside Snakemake.

    Args:
        study: A study, in place of the configured one.
        site: A site, in place of the configured one.
        files: Other files of config/ whose keys replace those of config.yaml.
    """
    config: dict[str, Any] = {}
    for name in ("config.yaml", *files):
        config |= read_config(CHECKOUT / "config" / name)
    return config | {key: name for key, name in (("study", study), ("site", site)) if name}


def planned(study: Study, site: Site) -> Campaign:
    """A campaign as it would be at a site, wherever that is and whatever is there already."""
    return Campaign(study, site, "campaign", design(study, site), None)


def load_campaign(values: Mapping[str, Any], look: bool = False) -> Campaign:
    """The campaign that the workflow's configuration names. InputError in one line when something in it is wrong.

    `look`: see first what the site has installed now, in place of taking what was found the last time.
    """
    config = load_config(values)
    study, records = load_study(config.study), config.records
    results = Path("results") / study.name
    check_folder(results, "move it away")
    if records not in MODES:
        return Campaign(study, load_site(config.site), "published", [], published_tables(records, study))
    bound = read_binding(results)
    if records == "available":
        site = load_site(config.site)
        site = load_site(bound["site"]) if bound else site
        if bound:
            site = as_bound(site, bound)
        return Campaign(study, site, records, design(study, site), None)
    site = load_site(config.site)
    for folder in (site.cache, *(site.cache / part for part in PARTS)):
        check_folder(folder, f"name another: cache of {shown(site.file)}, or RINGSIDE_CACHE")
    check_cache(site.cache)
    check_machine(site)
    if bound:
        check_place(bound, site, results)
    campaign = planned(study, site)
    if look and installed.inspect_site(site, {run.framework.environment for run in campaign.runs}):
        campaign = planned(study, load_site(config.site))
    _ = campaign.environments  # a broken description is found now, not in the middle of the rules
    return campaign


def measured_campaign(study: str, site: str, records: str) -> Campaign:
    """Return the campaign of a study as far as it was measured: nothing is planned or checked for running. As load_campaign."""
    there = "available" if records == "campaign" else records
    return load_campaign({"study": study, "site": site, "records": there})


def published_tables(records: str, study: Study) -> Path:
    """The folder with published tables that `records` names. InputError when it is none, or another study's."""
    from common.tables import check_first_line  # not above: it brings pandas, for which every start would wait

    folder = Path(records)
    for name in ("runs.csv", "epochs.csv"):
        if not os.path.isfile(folder / name) or set("{}") & set(records):
            expected = f"{', '.join(MODES)} or a folder (without braces) with runs.csv and epochs.csv"
            raise InputError(
                "missing-file",
                f"there is no {records[:200]}/{name}",
                file="config/config.yaml",
                key="records",
                got=records,
                expected=expected,
            )
        check_first_line(folder / name)
    with open(folder / "runs.csv", encoding="utf-8-sig", errors="replace", newline="") as table:
        try:
            first = next(csv.DictReader(table), {})
        except csv.Error as error:
            raise InputError("broken-file", f"cannot be read as CSV ({error})", file=folder / "runs.csv") from None
    if first.get("study", study.name) != study.name:
        problem = f"is of study {first['study']}, not {study.name}"
        raise InputError(
            "other-study",
            problem,
            file=folder / "runs.csv",
            got=first["study"],
            hint=f"name that study: {first['study']}",
        )
    return folder
