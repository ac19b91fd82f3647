"""Match the cells of two campaigns, and list what else differs between them.

A cell is compared if both campaigns trained the same model on the same data and measured it in the same way.
Date, site and software may differ. These differences are listed, because a change cannot be attributed to
one of several.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis.conditions import NOTABLE_OTHER_SHARE, algorithms_note, join_names
from analysis.level_words import level_text
from analysis.records import cell_levels, framework_order, measured_elsewhere, read_timing_runs, successful
from common.errors import InputError
from common.files import display_path
from common.notes import Note
from common.units import LINK_RATES, in_one_unit
from declared.factors import factor_names
from declared.imported import campaign_folder, campaign_name

# Columns that must agree in both campaigns for a cell to be compared, with the reason.
MUST_MATCH = {
    "data_digest": "the training data differ, or were prepared differently",
    "samples_per_epoch": "the number of samples in an epoch differs",
    "effective_batch": "the effective batch size differs",
    "n_devices": "the number of devices differs",
    "timing_scope": "epochs were timed by different clocks (all ranks', or the master's alone)",
}
MEASURED = {True: "measured elsewhere", False: "measured by Ringside"}
EMULATED_IN_ONE = Note(
    "emulated-in-one",
    "nodes are emulated in one of the two campaigns, whose times say nothing about a network (placement)",
)
SAME_RUNS = Note("same-runs", "both campaigns have the same runs of it, so it was not measured again")
# Columns that can explain a change, and how notes name them.
EXPLAINS = {
    "site": "site",
    "devices": "devices",
    "drivers": "accelerators' drivers",
    "systems": "operating system",
    "library_version": "library",
    "python_version": "Python",
    "deployment": "form of the environment",
    "modules": "environment modules",
    "environment_digest": (
        "environment (its lock, its recipe, how it is realized, what the site has installed)"
    ),
    "code_digest": "training code",
    "transport": "transport of the gradients",
    "cores_per_rank": "cores per rank",
    "cpu_share": "share of the cores",
    "bandwidth_bytes_s": "links",
    "placement": "placement",
    "oversubscribed": "threads on crowded cores",
}
DIGEST_DIGITS = 12


@dataclass(frozen=True)
class Compared:
    """The runs of two campaigns, the base and the other one.

    Attributes:
        names: What tables call the base and the other campaign.
        base_runs: Runs of the base.
        other_runs: Runs of the other campaign.
    """

    names: tuple[str, str]
    base_runs: pd.DataFrame
    other_runs: pd.DataFrame

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Planned cells of both campaigns in the order of tables, as returned by `cell_levels`."""
        return cell_levels(pd.concat([self.base_runs, self.other_runs], ignore_index=True))

    @cached_property
    def refused(self) -> dict[str, Note]:
        """Cell -> why it is not compared, in the order of `cells`."""
        reasons = {}
        runs = [successful(self.base_runs), successful(self.other_runs)]
        planned = [set(self.base_runs["cell"]), set(self.other_runs["cell"])]
        by_cell = [{str(cell): rows for cell, rows in frame.groupby("cell")} for frame in runs]
        for cell in self.cells["cell"]:
            if reason := self._refusal_reason(str(cell), planned, by_cell):
                reasons[cell] = reason
        return reasons

    @cached_property
    def common(self) -> list[str]:
        """Cells that are compared, in the order of `cells`."""
        return [cell for cell in self.cells["cell"] if cell not in self.refused]

    def _refusal_reason(
        self, cell: str, planned: Sequence[set[str]], by_cell: Sequence[dict[str, pd.DataFrame]]
    ) -> Note | None:
        for name, planned_cells in zip(self.names, planned, strict=True):
            if cell not in planned_cells:
                return Note("no-such-cell", f"{name} has no such cell", campaign=name)
        for name, runs in zip(self.names, by_cell, strict=True):
            if cell not in runs:
                return Note("no-successful-run", f"{name} has no successful run of it", campaign=name)
        base_runs, other_runs = by_cell[0][cell], by_cell[1][cell]
        for column, meaning in MUST_MATCH.items():
            levels = _levels(base_runs[column]), _levels(other_runs[column])
            if all(levels) and levels[0] != levels[1]:
                return Note("measured-differently", f"{meaning} ({column})", column=column)
        placements = [set(runs["placement"].dropna()) for runs in (base_runs, other_runs)]
        is_multi_node, has_emulated = (
            base_runs["nodes"].iloc[0] > 1,
            "emulated" in placements[0] | placements[1],
        )
        if is_multi_node and has_emulated and placements[0] != placements[1]:
            return EMULATED_IN_ONE
        runs_of_both = [
            set(zip(runs["run_id"], runs["key"].fillna(""), runs["epoch_time_s"], strict=True))
            for runs in (base_runs, other_runs)
        ]
        if runs_of_both[0] & runs_of_both[1]:
            return SAME_RUNS
        return None

    @cached_property
    def differences(self) -> list[Note]:
        """Differences between the compared runs of the two campaigns that can explain a change."""
        base_runs, other_runs = (self._compared_runs(runs) for runs in (self.base_runs, self.other_runs))
        origins = [MEASURED[measured_elsewhere(runs)] for runs in (self.base_runs, self.other_runs)]
        notes: list[Note] = []
        if origins == [MEASURED[True]] * 2:
            notes.append(Note("both-elsewhere", f"runs of both were {MEASURED[True]}"))
        elif origins[0] != origins[1]:
            notes.append(_changed("origin", "runs", origins, ()))
        if (dates := [_dates(runs) for runs in (base_runs, other_runs)])[0] != dates[1]:
            notes.append(_changed("dates", "dates", dates, ()))
        if unknown := [
            name for name in MUST_MATCH if base_runs[name].notna().any() != other_runs[name].notna().any()
        ]:
            text = f"recorded in one campaign only: {', '.join(unknown)}"
            notes.append(Note("recorded-in-one", text, columns=unknown))
        shares = [float(runs["other_cpu_share"].max()) for runs in (base_runs, other_runs)]
        if max(shares) > NOTABLE_OTHER_SHARE:
            parts = " → ".join(f"up to {100 * share:.2g} %" for share in shares)
            text = f"CPU time of other programs during runs: {parts}"
            notes.append(Note("other-cpu-time", text, shares=shares))
        frameworks = framework_order(base_runs)
        for column, noun in EXPLAINS.items():
            by_levels: dict[tuple[str, ...], list[str]] = {}
            for framework in frameworks:
                levels = [
                    _levels(runs.loc[runs["framework"] == framework, column])
                    for runs in (base_runs, other_runs)
                ]
                if levels[0] != levels[1]:
                    by_levels.setdefault(tuple(map(_enumerate_levels, levels)), []).append(framework)
            notes += [
                _changed(column, noun, ends, () if changed == frameworks else changed)
                for ends, changed in by_levels.items()
            ]
        return notes

    @cached_property
    def algorithms(self) -> str:
        """A note on compared frameworks with an algorithm of their own, with accuracies; "" if none has."""
        notes = [algorithms_note(self._compared_runs(runs)) for runs in (self.base_runs, self.other_runs)]
        by_campaign = {name: note for name, note in zip(self.names, notes, strict=True) if note}
        text = " ".join(f"In {name}: {note}" for name, note in by_campaign.items())
        return Note("own-algorithms", text, by_campaign=by_campaign) if by_campaign else ""

    def _compared_runs(self, runs: pd.DataFrame) -> pd.DataFrame:
        ok = successful(runs)
        ok = ok[ok["cell"].isin(self.common)]
        rates = ok["bandwidth_bytes_s"]
        texts = rates.map(lambda rate: in_one_unit([rate], LINK_RATES), na_action="ignore")
        return ok.assign(bandwidth_bytes_s=texts)


def read(base: str, other_campaign: str) -> Compared:
    """Read two campaigns, each from a folder with runs.csv or by the name of a study.

    Raises:
        InputError: If a folder has no runs.csv or no successful run, or if no cell can be compared.
    """
    files = [runs_csv_of(folder, key) for key, folder in (("BASE", base), ("OTHER", other_campaign))]
    runs = [read_timing_runs(file) for file in files]
    for file, frame in zip(files, runs, strict=True):
        if successful(frame).empty:
            problem = "has no successful run"
            raise InputError("no-successful-run", problem, file=file, hint="there is nothing to compare")
    compared = Compared(names(base, other_campaign), *runs)
    if not compared.common:
        reason = _explain_no_common_cell(compared)
        location = f"{display_path(files[0])} and {display_path(files[1])}"
        raise InputError("nothing-to-compare", f"cannot be compared: {reason}", file=location, got=reason)
    return compared


def names(base: str, other_campaign: str) -> tuple[str, str]:
    """Return the names of two campaigns (`campaign_name`), with (base) and (other) if they are equal."""
    first, second = campaign_name(base), campaign_name(other_campaign)
    return (first, second) if first != second else (f"{first} (base)", f"{second} (other)")


def runs_csv_of(folder: str, key: str) -> Path:
    """Return the path of the runs.csv of a campaign.

    Args:
        folder: The campaign's folder, or the name of a study.
        key: The argument that the folder comes from, for the error.

    Raises:
        InputError: If the file does not exist.
    """
    file = campaign_folder(folder) / "runs.csv"
    if not file.is_file() or set("{}") & set(folder):
        raise InputError(
            "missing-file",
            f"there is no {folder[:200]}/runs.csv",
            key=key,
            got=folder,
            expected="a study with results, or a campaign's folder (without braces), such as results/NAME",
        )
    return file


def _explain_no_common_cell(compared: Compared) -> Note:
    """Return a note on why no cell can be compared, the most frequent reason first."""
    common = set(compared.base_runs["cell"]) & set(compared.other_runs["cell"])
    if not common:
        levels = {
            name: tuple(_levels(runs[name]) for runs in (compared.base_runs, compared.other_runs))
            for name in factor_names(compared.base_runs)
            if name in compared.other_runs
        }
        differ = {
            name: tuple(map(_enumerate_levels, ends))
            for name, ends in levels.items()
            if not set(ends[0]) & set(ends[1])
        }
        details = "; ".join(f"{name}: {x} and {y}" for name, (x, y) in differ.items())
        return Note("no-common-cell", f"they have no cell in common ({details})", levels=differ)
    counts = Counter(reason for cell, reason in compared.refused.items() if cell in common)
    text = "; ".join(f"{reason} ({n} of {len(common)} cells)" for reason, n in counts.most_common())
    codes = {reason.code: n for reason, n in counts.items()}
    return Note("all-cells-refused", text, reasons=codes, of=len(common))


def _changed(column: str, noun: str, ends: Sequence[str], frameworks: Sequence[str]) -> Note:
    """Return a note on what a column was in both campaigns; `frameworks` changed, all of them if ()."""
    before, after = ends
    of_some = f" of {', '.join(frameworks)}" if frameworks else ""
    text = f"{noun}{of_some}: {before} → {after}"
    return Note("changed", text, column=column, before=before, after=after, frameworks=frameworks)


def _levels(values: pd.Series) -> tuple[str, ...]:
    """Return the sorted levels of a column as text, without missing ones."""
    return tuple(sorted({level_text(value) for value in values.dropna()}))


def _enumerate_levels(levels: Sequence[str]) -> str:
    short = [level[:DIGEST_DIGITS] if len(level) == 64 else level for level in levels]
    return join_names(short, " and ") or "not known"


def _dates(runs: pd.DataFrame) -> str:
    dates = sorted(str(start)[:10] for start in runs["started_at"].dropna())
    if not dates:
        return "not known"
    return dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
