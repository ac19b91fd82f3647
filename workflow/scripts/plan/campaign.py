"""Describe a campaign for the workflow: a study at a site, its runs, and the paths of its files.

The Snakefile creates one Campaign while Snakemake parses it, and all rules take runs and paths from there.
"""

import csv
import glob
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from common.caches import PARTS, check_cache
from common.errors import InputError
from common.files import CHECKOUT, display_path, stored_file
from common.notes import Note
from common.run_status import RECORD_STATUSES
from common.text import number_of
from datasets.identity import data_folder
from declared.configuration import load_config, read_config
from declared.environments import lineage, read
from declared.factors import levels_name
from declared.responses import RESPONSES
from declared.site import Site, load_site
from declared.study import Study, load_study
from environments import installed
from environments.identity import environment_stamp
from plan.binding import check_place, read_binding, restore_site
from plan.decisions import Decision, decision_file, read_decisions
from plan.design import Run, plan_design, to_csv
from plan.identity import PlannedRun, plan_run
from plan.machine import check_folder, check_machine
from plan.node_check import TABLE, without_slow_nodes
from plan.record_status import record_status
from plan.site_limits import unsupported_reason
from plan.strategies import missing_strategy_note

MODES = ("campaign", "available")
PILOT_BLOCKS = 2
MEMORY_ESTIMATES = "memory_estimates.json"  # file in results/<study> (plan.memory)


@dataclass(frozen=True)
class Campaign:
    """A study at a site. Paths of results are relative to the checkout, paths of the cache absolute.

    Sets of runs, from the largest: `designed_runs`, `max_runs` (if cells reach the interval
    target late), `runs` (planned by now). `record_paths` has the runs that the site can execute.

    Attributes:
        study: The study.
        site: Where it is measured.
        mode: Source of the records, from the configuration's key `records`: `campaign` (measure what has no
            record), `available` (use existing records only) or `published` (use the tables of
            published_folder).
        designed_runs: All runs of the design; a study with an interval target can need fewer.
        published_folder: Folder of runs.csv and epochs.csv in mode `published`, None in the others.
    """

    study: Study
    site: Site
    mode: str
    designed_runs: list[Run]
    published_folder: Path | None

    @property
    def is_measuring(self) -> bool:
        """Whether runs without a record are measured; otherwise only existing records are used."""
        return self.mode == "campaign"

    @cached_property
    def results(self) -> Path:
        """results/<study>."""
        return Path("results") / self.study.name

    @cached_property
    def runs(self) -> list[Run]:
        """The runs planned by now, in planned order.

        With an interval target these are the runs of the first blocks, the runs that decisions added, and all
        other runs that have a record.
        """
        rule = self.study.replicates
        if not rule.adaptive:
            return self.designed_runs
        refined = {decision.block + 1: set(decision.refined) for decision in self.decisions}
        return [
            run
            for run in self.designed_runs
            if run.block <= rule.at_least or run.cell in refined.get(run.block, ()) or self._is_recorded(run)
        ]

    @cached_property
    def max_runs(self) -> list[Run]:
        """The runs, in planned order, if every cell needs as many as its interval target allows."""
        rule = self.study.replicates
        if not rule.adaptive:
            return self.designed_runs
        planned_ids = {run.run_id for run in self.runs}
        refinable = {levels_name(levels) for levels in self.study.refinable}
        return [run for run in self.designed_runs if run.run_id in planned_ids or run.cell in refinable]

    @cached_property
    def decisions(self) -> list[Decision]:
        """The decisions so far, if the study has an interval target."""
        return read_decisions(self.results, self.study.replicates) if self.published_folder is None else []

    def with_current_decisions(self) -> "Campaign":
        """Return the campaign with the decisions that exist now."""
        if not self.study.replicates.adaptive:
            return self
        current = replace(self)
        vars(current)["_paths"] = self._paths
        return current

    def count_runs(self) -> tuple[int, bool]:
        """Return the number of runs that the site will execute, and whether decisions can add more."""
        return len(self.record_paths), self.can_grow or self._is_decision_outdated

    @property
    def can_grow(self) -> bool:
        """Whether decisions can still add runs."""
        rule, last = self.study.replicates, self.decisions[-1:]
        if not rule.adaptive or self.published_folder:
            return False
        is_final = last and not (last[0].refined and last[0].block < rule.at_most - 1)
        return not is_final and len(self.runs) < len(self.max_runs)

    @property
    def runs_csv(self) -> Path:
        """The table of runs that figures and tables are made from."""
        return (self.published_folder or self.results) / "runs.csv"

    @property
    def epochs_csv(self) -> Path:
        """The table of epochs that figures and tables are made from."""
        return (self.published_folder or self.results) / "epochs.csv"

    def table_file(self, name: str) -> Path:
        """Return the file of a table of records, such as `network`; a published one can be compressed."""
        file = self.runs_csv.with_name(f"{name}.csv")
        return stored_file(file) if self.published_folder else file

    @property
    def node_check(self) -> Path | None:
        """The table of verdicts that the node check writes, None if the campaign has no node check."""
        is_checked = self.study.node_check and self.site.launcher != "local" and self.is_measuring
        return self.results / TABLE if is_checked else None

    @property
    def nodes_checked(self) -> bool:
        """Whether there are or will be verdicts on the nodes."""
        return self.node_check is not None or self.table_file("nodes").exists()

    @property
    def traced(self) -> bool:
        """Whether there are or will be phases of traced runs."""
        return self.study.traced and (self.published_folder is None or self.table_file("phases").exists())

    @property
    def referenced(self) -> bool:
        """Whether runs have or will have times of the reference benchmark."""
        return self.site.reference if self.published_folder is None else self._has_values("reference_s")

    @cached_property
    def recorded_traits(self) -> dict[str, bool]:
        """Traits that depend on the site, or on the columns of published runs."""
        if self.published_folder is not None:
            columns = {
                "settings_recorded": "settings",
                "memory_estimated": "estimated_memory_peak_bytes",
                "priced": "price_per_node_hour",
                "grid_stated": "grid_g_co2_per_kwh",
            }
            stated = {trait: self._has_values(column) for trait, column in columns.items()}
        else:
            costs = self.site.costs
            stated = {
                "settings_recorded": True,
                "memory_estimated": (self.results / MEMORY_ESTIMATES).exists(),
                "priced": costs.price_per_node_hour is not None,
                "grid_stated": costs.grid_g_co2_per_kwh is not None,
            }
        return {"reference_timed": self.referenced, "peak_known": self.peak_known, **stated}

    @property
    def is_combined(self) -> bool:
        """Whether it combines other campaigns, so that its tables are made from theirs."""
        return bool(self.study.imported and self.study.imported.campaigns)

    @cached_property
    def peak_known(self) -> bool:
        """Whether devices can have a known peak: they are accelerators, or the site states a peak."""
        if "cuda" in self.study.factors["device"]:
            return True
        if self.published_folder is None:
            return self.site.device == "cuda" or bool(self.site.peak_tflops)
        return any(map(self._has_values, ("peak_flops_s", "drivers")))

    def check_responses(self) -> None:
        """Raise InputError if the study or a figure asks for a response that needs an unknown peak."""
        responses = {self.study.response, *(figure.y for figure in self.study.figures or ())}
        needing = [name for name in responses if name in RESPONSES and "peak_known" in RESPONSES[name].when]
        if needing and not self.peak_known:
            problem = f"the study asks for {needing[0]}, and no peak of the devices is known"
            place: dict[str, Any] = {"file": display_path(self.site.file), "key": "peak_tflops"}
            hint = RESPONSES[needing[0]].hint
            raise InputError("not-possible-here", problem, got=needing[0], hint=hint, **place)

    @cached_property
    def ranks_compared(self) -> bool:
        """Whether runs on several nodes have or will have times of the reference benchmark, or phases."""
        if self.published_folder is not None:
            return self.traced or self._has_values("reference_ranks_s")
        distinct = self.site.placement != "emulated" and any(run.geometry.nodes > 1 for run in self.runs)
        return distinct and (self.site.reference or self.traced)

    def _has_values(self, column: str) -> bool:
        """Return whether a run of a published campaign has a value in this column of runs.csv."""
        if self.study.imported:
            return column in self.study.imported.filled
        with (
            open(self.runs_csv, encoding="utf-8", errors="replace", newline="") as table,
            suppress(csv.Error),
        ):
            return any(row.get(column) for row in csv.DictReader(table))
        return False  # a broken table is reported where it is read

    @cached_property
    def record_paths(self) -> dict[str, str]:
        """Path of record.json, existing or not, by run_id of every planned run that the site can execute."""
        return {
            run.run_id: self.record_path(run) for run in self.runs if self.not_executable_reason(run) is None
        }

    def not_executable_reason(self, run: Run) -> Note | None:
        """Return why the site cannot execute a planned run now, None if it can."""
        if reason := unsupported_reason(self.site, run.levels):
            return reason
        if run.lacks_strategy:
            return missing_strategy_note(self.study.name, self.site)
        return run.missing_batch_size

    def check_searches(self, subject: str, runs: Iterable[Run]) -> None:
        """Raise InputError unless the campaign measures and its site can execute one of the searches.

        Args:
            subject: What is searched, in the plural.
            runs: One run for each search. Without any, the site is not checked.
        """
        if not self.is_measuring:
            problem = f"{subject} are searched only for runs to be measured"
            place: dict[str, Any] = {"file": "config/config.yaml", "key": "records", "got": self.mode}
            raise InputError("not-possible-here", problem, expected=["campaign"], **place)
        reasons = [unsupported_reason(self.site, run.levels) for run in runs]
        if reasons and (reason := reasons[0]) and all(reasons):
            problem = f"{subject} cannot be searched here: {reason}"
            raise InputError(reason.code, problem, file=display_path(self.study.file))

    def unreachable_target(self) -> list[Note]:
        """Return a note if no cell can reach the study's interval target, else []."""
        rule = self.study.replicates
        untraced = {levels_name(levels) for levels in self.study.untraced_cells}
        cells = len({run.cell for run in self.runs if self.not_executable_reason(run) is None} & untraced)
        if not rule.adaptive or not cells or rule.at_most >= (min_runs := rule.known_after(cells)):
            return []
        text = (
            f"at_most: {rule.at_most} is too small: the spread of runs is known after {min_runs} runs "
            f"of {number_of(cells, 'cell')} at best; set at_most: {min_runs + 1} or more, or replicates: "
            f"{rule.at_most}"
        )
        return [Note("never-precise", text, at_most=rule.at_most, known_after=min_runs, cells=cells)]

    def skipped_runs(self) -> list[Note]:
        """Return a note for each reason why the site cannot execute runs, with their number."""
        skipped: dict[Note, list[Run]] = {}
        for run in self.runs:
            if run.run_id not in self.record_paths and (reason := self.not_executable_reason(run)):
                skipped.setdefault(reason, []).append(run)
        return [_describe_skipped(reason, runs) for reason, runs in skipped.items()]

    def unused_records(self) -> list[Note]:
        """Return notes on records in results/<study> that the campaign does not use, else [].

        They have the key of an older setting and their run has no newer record, or the design no longer has
        their run.
        """
        folder = self.results / "runs"
        names = set(os.listdir(folder)) if folder.is_dir() else set()
        designed = {run.run_id for run in self.designed_runs}
        recorded = {name for name in names if any(folder.glob(f"{glob.escape(name)}/*/record.json"))}
        older = [
            name for name, path in self.record_paths.items() if name in recorded and not os.path.exists(path)
        ]
        notes = []
        if older:
            n_older = number_of(len(older), "run")
            text = f"records of {n_older} are of older settings; they are kept but not used"
            notes.append(Note("older-setting", text, runs=len(older)))
        if left_over := recorded - designed:
            text = (
                f"records of {number_of(len(left_over), 'run')} that the study no longer has (other levels, "
                "fewer replicates) are kept but not used"
            )
            notes.append(Note("not-in-the-design", text, runs=len(left_over)))
        return notes

    def record_paths_of_block(self, block: int | None) -> list[str]:
        """Return the paths of the records of a block (None: of all blocks) in planned order.

        Raises:
            InputError: If the study has no such block.
        """
        run_ids = {run.run_id for run in self.of_block(block).runs}
        return [path for run_id, path in self.record_paths.items() if run_id in run_ids]

    def of_block(self, block: int | None) -> "Campaign":
        """Return the campaign with the runs of one block only (None: all blocks).

        Raises:
            InputError: If the study has no such block.
        """
        if block not in (None, *self.blocks):
            expected = f"one of {', '.join(map(str, self.blocks))}"
            problem = f"{block} is not a block of the study"
            raise InputError("unknown-name", problem, key="block", got=block, expected=expected)
        if block is None:
            return self
        return replace(self, designed_runs=[run for run in self.designed_runs if run.block == block])

    @cached_property
    def pilot(self) -> "Campaign":
        """The campaign with the runs of the pilot only, the first PILOT_BLOCKS blocks."""
        return replace(
            self, designed_runs=[run for run in self.designed_runs if run.block in self.blocks[:PILOT_BLOCKS]]
        )

    @cached_property
    def blocks(self) -> list[int]:
        """The numbers of all blocks of the design; with an interval target the last ones can stay empty."""
        return sorted({run.block for run in self.designed_runs})

    @cached_property
    def by_id(self) -> dict[str, Run]:
        """The runs of the design by run_id."""
        return {run.run_id: run for run in self.designed_runs}

    @cached_property
    def is_design_current(self) -> bool:
        """Whether design.csv has the content that would be written now."""
        try:
            return (self.results / "design.csv").read_text(encoding="utf-8") == to_csv(self.designed_runs)
        except (OSError, ValueError):
            return False

    @cached_property
    def priorities(self) -> dict[str, int]:
        """Snakemake's priority of every run: the planned order, first run highest."""
        return {
            run.run_id: len(self.designed_runs) - position for position, run in enumerate(self.designed_runs)
        }

    @cached_property
    def environments(self) -> dict[str, str]:
        """Stamps (environment.json) of environments of runs and searches, parents first."""
        searching = {run.framework.environment for run in self._searched_runs}
        needed = sorted(
            searching.union(self.by_id[run_id].framework.environment for run_id in self.record_paths)
        )
        site = self.site
        return {
            name: str(environment_stamp(site.cache, name, site.variant, site.realization))
            for name in lineage(needed, realization=site.realization)
        }

    @cached_property
    def _searched_runs(self) -> list[Run]:
        """The runs that the site can execute after a search for their strategy or batch size."""
        return [
            run
            for run in self.runs
            if (run.lacks_strategy or run.missing_batch_size)
            and unsupported_reason(self.site, run.levels) is None
        ]

    @cached_property
    def images(self) -> list[str]:
        """The environments that are container images at this site."""
        realization = self.site.realization
        return [name for name in self.environments if read(name).deployment(realization) == "apptainer"]

    def image_stamps(self) -> list[str]:
        """Return the stamps of the images.

        Raises:
            InputError: If none of the environments is an image.
        """
        if not self.images:
            problem = f"{self.site.deployment}; with it none of the study's environments is an image"
            place = {"file": display_path(self.site.file), "key": "deployment", "got": self.site.deployment}
            raise InputError("no-images", problem, hint="set deployment: apptainer", **place)
        return [self.environments[name] for name in self.images]

    @cached_property
    def datasets(self) -> dict[str, str]:
        """The data sets that the runs need, with the file that marks each as prepared."""
        searching = [run for run in self._searched_runs if not run.lacks_strategy]
        runs = [*(self.by_id[run_id] for run_id in self.record_paths), *searching]
        names = dict.fromkeys(run.levels["dataset"] for run in runs if run.reads_data)
        return {name: str(data_folder(self.site, name) / "prepared") for name in names}

    def environment_of(self, run_id: str) -> str:
        """Return the stamp of the environment that a run needs."""
        return self.environments[self.by_id[run_id].framework.environment]

    def dataset_of(self, run_id: str) -> list[str]:
        """Return the file that marks a run's data set as prepared, [] for a command that does not read it."""
        run = self.by_id[run_id]
        return [self.datasets[run.levels["dataset"]]] if run.reads_data else []

    def existing_record_paths(self) -> list[str]:
        """Return the paths of the records that exist now."""
        return [path for path in self.record_paths.values() if os.path.exists(path)]

    @cached_property
    def statuses_by_run(self) -> dict[str, str]:
        """Status by run_id of the runs that have a record."""
        return {
            run_id: record_status(Path(path))
            for run_id, path in self.record_paths.items()
            if os.path.exists(path)
        }

    def describe_statuses(self) -> str:
        """Return the number of records of each status, such as `260 ok, 6 invalid`; "" without records."""
        counts = Counter(self.statuses_by_run.values())
        return ", ".join(f"{counts[status]:,} {status}" for status in RECORD_STATUSES if counts[status])

    def summary(self) -> str:
        """Return the progress of the campaign in one line."""
        if self.study.imported:
            names = ", ".join(self.study.imported.campaigns)
            origin = (
                f"of {names}"
                if names
                else f"measured elsewhere, figures and tables from {self.published_folder}"
            )
            return f"{self.study.name}: {origin}"
        if self.published_folder:
            return f"{self.study.name}: figures and tables from {self.published_folder}"
        left = len(self.record_paths) - len(self.statuses_by_run)
        to_run = f"{left:,} to run" if self.is_measuring and left else ""
        progress = ", ".join(filter(None, [self.describe_statuses(), to_run])) or "no record"
        limit = f" so far, {len(self.max_runs):,} at most" if self.is_measuring and self.can_grow else ""
        return f"{self.study.name} at {self.site.name}: {number_of(len(self.runs), 'run')}{limit}: {progress}"

    @property
    def _is_decision_outdated(self) -> bool:
        """Whether the last decision will be made again, because one of its runs was repeated since."""
        if not self.decisions:
            return False
        block = self.decisions[-1].block
        decided_at = os.stat(decision_file(self.results, block)).st_mtime_ns
        before = (
            self.record_paths[run.run_id]
            for run in self.runs
            if run.block <= block and run.run_id in self.record_paths
        )
        return any(os.path.exists(path) and os.stat(path).st_mtime_ns > decided_at for path in before)

    def _is_recorded(self, run: Run) -> bool:
        """Return whether a run of the design has a record.

        The key takes time to compute, so it is computed only if the run has a folder.
        """
        return os.path.isdir(self.results / "runs" / run.run_id) and os.path.exists(self.record_path(run))

    def planned_run(self, run: Run) -> PlannedRun:
        """Return a run with its specification and digests at the campaign's site."""
        return plan_run(self.study, self.site, run)

    def record_path(self, run: Run) -> str:
        """Return the path of a run's record, whether or not it exists."""
        if run.run_id not in self._paths:
            self._paths[run.run_id] = (
                f"{self.results}/runs/{run.run_id}/{self.planned_run(run).key}/record.json"
            )
        return self._paths[run.run_id]

    @cached_property
    def _paths(self) -> dict[str, str]:
        """Paths of records by run_id, filled on demand because keys take time."""
        return {}


def _describe_skipped(reason: Note, runs: Sequence[Run]) -> Note:
    """Return the note on runs that cannot be executed for one reason, with the reason's code and facts."""
    cells = len({run.cell for run in runs})
    text = f"{number_of(len(runs), 'run')} of {number_of(cells, 'cell')} cannot run here: {reason}"
    return Note(reason.code, text, runs=len(runs), cells=cells, **reason.facts)


def load_merged_config(study: str = "", site: str = "", files: Sequence[str] = ()) -> dict[str, Any]:
    """Return the unchecked configuration of a program outside Snakemake.

    Args:
        study: Study to use instead of the configured one.
        site: Site to use instead of the configured one.
        files: Files of config/ that override keys of config.yaml.
    """
    config: dict[str, Any] = {}
    for name in ("config.yaml", *files):
        config |= read_config(CHECKOUT / "config" / name)
    return config | {key: name for key, name in (("study", study), ("site", site)) if name}


def imported_note(study: Study) -> Note | None:
    """Return the note on the source of measurements made elsewhere, None for a study planned here."""
    imported = study.imported
    if imported is None:
        return None
    stated, cells = imported.description.stated, len(imported.cells)
    origin = "of several campaigns" if imported.campaigns else "measured elsewhere"
    text = (
        f"{study.name}: {origin}, {number_of(imported.n_rows, 'run')} of "
        f"{number_of(cells, 'cell')} in {imported.folder} ({stated.source}; {stated.licence}); nothing is "
        f"left to run, and ./ringside run {study.name} draws figures and tables"
    )
    facts = {"imported": str(imported.folder), "source": stated.source, "licence": stated.licence}
    runs = {"runs": imported.n_rows, "cells": cells}
    return Note("measured-elsewhere", text, study=study.name, **runs, **facts)


def plan_campaign(study: Study, site: Site) -> Campaign:
    """Return the campaign of a study at a site, without checks of existing results and of this machine."""
    return Campaign(study, site, "campaign", plan_design(study, site), None)


def load_campaign(values: Mapping[str, Any], probe: bool = False) -> Campaign:
    """Return the campaign of a configuration, after checks that its mode needs.

    To measure, the machine, the cache and the binding of the results are checked, and nodes that the node
    check found slow are excluded. To use existing records, the site is restored as it was when they were
    measured.

    Args:
        values: The configuration (see `load_merged_config`).
        probe: Whether to inspect what the site has installed now; otherwise the last inspection counts.

    Raises:
        InputError: If a part of the configuration, the machine or the results is wrong.
    """
    config = load_config(values)
    study = load_study(config.study)
    records = str(study.imported.folder) if study.imported else config.records
    results = Path("results") / study.name
    check_folder(results, "move it away")
    if records not in MODES:
        is_combined = study.imported and study.imported.campaigns  # the workflow makes these tables
        folder = Path(records) if is_combined else published_tables(records, study)
        return Campaign(study, load_site(config.site), "published", [], folder)
    bound = read_binding(results)
    if records == "available":
        site = load_site(config.site)
        site = load_site(bound["site"]) if bound else site
        if bound:
            site = restore_site(site, bound)
        return Campaign(study, site, records, plan_design(study, site), None)
    site = load_site(config.site)
    for folder in (site.cache, *(site.cache / part for part in PARTS)):
        check_folder(folder, f"change cache in {display_path(site.file)}, or set RINGSIDE_CACHE")
    check_cache(site.cache)
    check_machine(site)
    if bound:
        check_place(bound, site, results)
    campaign = plan_campaign(study, without_slow_nodes(site, results))
    if probe and installed.inspect_site(site, {run.framework.environment for run in campaign.runs}):
        campaign = plan_campaign(study, without_slow_nodes(load_site(config.site), results))
    campaign.check_responses()
    _ = campaign.environments  # reports a broken environment.yaml before rules are parsed
    return campaign


def measured_campaign(study: str, site: str, records: str) -> Campaign:
    """Return the campaign of a study with its existing records, without the checks before measuring.

    Raises:
        InputError: If a part of the configuration is wrong.
    """
    existing = "available" if records == "campaign" else records
    return load_campaign({"study": study, "site": site, "records": existing})


def published_tables(records: str, study: Study) -> Path:
    """Return the folder of published tables that `records` names.

    Raises:
        InputError: If it has no tables, or tables of another study.
    """
    from common.tables import read_header  # imported late, because pandas would delay every start

    folder = Path(records)
    for name in ("runs.csv", "epochs.csv"):
        if not os.path.isfile(folder / name) or set("{}") & set(records):
            expected = f"{', '.join(MODES)} or a folder (without braces) with runs.csv and epochs.csv"
            place: dict[str, Any] = {"file": "config/config.yaml", "key": "records", "got": records}
            problem = f"there is no {records[:200]}/{name}"
            raise InputError("missing-file", problem, expected=expected, **place)
        read_header(folder / name)
    with open(folder / "runs.csv", encoding="utf-8-sig", errors="replace", newline="") as table:
        try:
            first = next(csv.DictReader(table), {})
        except csv.Error as error:
            raise InputError(
                "broken-file", f"cannot be read as CSV ({error})", file=folder / "runs.csv"
            ) from None
    if first.get("study", study.name) != study.name:
        problem = f"is of study {first['study']}, not {study.name}"
        hint = f"name that study: {first['study']}"
        raise InputError("other-study", problem, file=folder / "runs.csv", got=first["study"], hint=hint)
    return folder
