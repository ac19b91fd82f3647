"""Two campaigns side by side: which cells both have, what keeps some of them from being compared, and what else differs.

A cell is compared where both campaigns trained the same thing in it, measured in the same way. What may differ is what a
comparison is for: date, site, software; it is listed, since a change cannot be told from whatever else differs with it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.conditions import NOTABLE_FOREIGN_SHARE, algorithms
from analysis.measured import cells, factors, framework_order, read_timed, successful
from common.errors import InputError
from common.files import shown
from common.notes import Note

# The same in every run of a cell that can be compared, with what a difference in it means.
SAME = {
    "data_digest": "the training data differ, or were prepared differently",
    "samples_per_epoch": "the number of samples in an epoch differs",
    "effective_batch": "the effective batch size differs",
    "replicas": "the number of replicas differs",
    "timing_scope": "epochs were timed by different clocks (all ranks', or the master's alone)",
}
EMULATED_IN_ONE = Note(
    "emulated-in-one", "nodes are emulated in only one of the two, which says nothing about a network (placement)"
)
SAME_RUNS = Note("same-runs", "both campaigns have the same runs of it: it was not measured again")
# What may explain a change, in words.
EXPLAINS = {
    "site": "site",
    "devices": "devices",
    "drivers": "accelerators' drivers",
    "systems": "operating system",
    "library_version": "library",
    "python_version": "Python",
    "deployment": "form of the environment",
    "modules": "environment modules",
    "environment_digest": "environment (its lock, its recipe, how it is realized, what the site has installed)",
    "code_digest": "training code",
    "transport": "transport of the gradients",
    "cores_per_rank": "cores per rank",
    "cpu_share": "share of the cores",
    "bandwidth_bytes_s": "links in MB/s",
    "placement": "placement",
    "oversubscribed": "threads on crowded cores",
}
PER_FRAMEWORK = (
    "library_version",
    "python_version",
    "deployment",
    "modules",
    "environment_digest",
    "code_digest",
    "transport",
)
DIGITS = 12  # of a digest


@dataclass(frozen=True)
class Compared:
    """The runs of the campaign `base`, and of the `other` one. `names`: what tables call the two."""

    names: tuple[str, str]
    base: pd.DataFrame
    other: pd.DataFrame

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The planned cells of both: cell, every factor, in the order of tables."""
        both = pd.concat([self.base, self.other], ignore_index=True)
        return cells(both)

    @cached_property
    def refused(self) -> dict[str, Note]:
        """Cell -> why it cannot be compared, in the order of `cells`."""
        found = {}
        runs = [successful(self.base), successful(self.other)]
        planned = [set(self.base["cell"]), set(self.other["cell"])]
        by_cell = [{str(cell): own for cell, own in some.groupby("cell")} for some in runs]
        for cell in self.cells["cell"]:
            if why := self._why_not(str(cell), planned, by_cell):
                found[cell] = why
        return found

    @cached_property
    def common(self) -> list[str]:
        """The cells that are compared."""
        return [cell for cell in self.cells["cell"] if cell not in self.refused]

    def _why_not(
        self, cell: str, planned: Sequence[set[str]], by_cell: Sequence[dict[str, pd.DataFrame]]
    ) -> Note | None:
        for name, there in zip(self.names, planned, strict=True):
            if cell not in there:
                return Note("no-such-cell", f"{name} has no such cell", campaign=name)
        for name, runs in zip(self.names, by_cell, strict=True):
            if cell not in runs:
                return Note("no-successful-run", f"{name} has no successful run of it", campaign=name)
        a, b = by_cell[0][cell], by_cell[1][cell]
        for column, meaning in SAME.items():
            levels = _levels(a[column]), _levels(b[column])
            if all(levels) and levels[0] != levels[1]:
                return Note("measured-differently", f"{meaning} ({column})", column=column)
        places = [set(one["placement"].dropna()) for one in (a, b)]
        if a["nodes"].iloc[0] > 1 and places[0] != places[1] and "emulated" in places[0] | places[1]:
            return EMULATED_IN_ONE
        same = [set(zip(one["run_id"], one["key"], one["epoch_time_s"], strict=True)) for one in (a, b)]
        if same[0] & same[1]:
            return SAME_RUNS
        return None

    @cached_property
    def differences(self) -> list[Note]:
        """What differs between the compared runs of the two and may explain a change, a line each."""
        a, b = (self._compared_runs(runs) for runs in (self.base, self.other))
        said = [_changed("dates", "dates", _dates(a), _dates(b))] if _dates(a) != _dates(b) else []
        if unknown := [column for column in SAME if _known(a[column]) != _known(b[column])]:
            text = f"recorded in only one of them: {', '.join(unknown)}"
            said.append(Note("recorded-in-one", text, columns=unknown))
        most = [float(runs["foreign_cpu_share"].max()) for runs in (a, b)]
        if any(share > NOTABLE_FOREIGN_SHARE for share in most):
            text = "other programs beside runs: " + " → ".join(f"up to {100 * share:.2g} %" for share in most)
            said.append(Note("foreign-cpu-time", text, shares=most))
        for column, words in EXPLAINS.items():
            if column not in PER_FRAMEWORK:
                levels = [_levels(runs[column]) for runs in (a, b)]
                said += [_changed(column, words, *map(_said, levels))] if levels[0] != levels[1] else []
                continue
            by_framework: dict[tuple[str, str], list[str]] = {}
            for framework in framework_order(a):
                levels = [_levels(runs.loc[runs["framework"] == framework, column]) for runs in (a, b)]
                if levels[0] != levels[1]:
                    by_framework.setdefault((_said(levels[0]), _said(levels[1])), []).append(framework)
            said += [
                _changed(column, f"{words} of {', '.join(names)}", *ends, frameworks=names)
                for ends, names in by_framework.items()
            ]
        return said

    @cached_property
    def algorithms(self) -> str:
        """Which of the compared frameworks train with algorithms of their own, with accuracies in each campaign; empty for none."""
        said = [algorithms(self._compared_runs(runs)) for runs in (self.base, self.other)]
        told = {name: one for name, one in zip(self.names, said, strict=True) if one}
        text = " ".join(f"In {name}: {one}" for name, one in told.items())
        return Note("own-algorithms", text, by_campaign=told) if told else ""

    def _compared_runs(self, runs: pd.DataFrame) -> pd.DataFrame:
        ok = successful(runs)
        ok = ok[ok["cell"].isin(self.common)]
        return ok.assign(bandwidth_bytes_s=ok["bandwidth_bytes_s"] / 1e6)


def read(base: str, other: str) -> Compared:
    """The campaigns in two folders with runs.csv. InputError where there is none, or where nothing can be compared."""
    files = [_table_in(folder, key) for key, folder in (("base", base), ("other", other))]
    runs = [read_timed(file) for file in files]
    for file, some in zip(files, runs, strict=True):
        if successful(some).empty:
            problem = "has no successful run"
            raise InputError("no-successful-run", problem, file=shown(file), hint="there is nothing to compare")
    compared = Compared(names(base, other), *runs)
    if not compared.common:
        why = _nothing(compared)
        both = f"{shown(files[0])} and {shown(files[1])}"
        raise InputError("nothing-to-compare", f"cannot be compared: {why}", file=both, got=why)
    return compared


def names(base: str, other: str) -> tuple[str, str]:
    """What two campaigns are called: as their folders, where these have other names."""
    one, two = (Path(folder).resolve().name for folder in (base, other))
    return (one, two) if one != two else (f"{one} (base)", f"{two} (other)")


def stem(base: str, other: str) -> Path:
    """Where the comparison of two folders goes, without suffix."""
    return Path("results", "comparison", f"{Path(base).resolve().name}--{Path(other).resolve().name}", "comparison")


def asked(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """The folders that a configuration asks to compare; None where it names neither. InputError where there are no tables."""
    folders = {key: str(config[key]) for key in ("base", "other") if key in config}
    if len(folders) == 1:
        refuse()
    for key, folder in folders.items():
        _table_in(folder, key)
    return (folders["base"], folders["other"]) if folders else None


def refuse() -> None:
    """InputError: two campaigns have to be named."""
    raise InputError(
        "missing-key",
        "which two campaigns? expected two folders with runs.csv: ./ringside compare FOLDER FOLDER, or snakemake compare --config "
        "base=FOLDER other=FOLDER",
    )


def _table_in(folder: str, key: str) -> Path:
    file = Path(folder) / "runs.csv"
    if not file.is_file() or set("{}") & set(folder):
        raise InputError(
            "missing-file",
            f"there is no {folder[:200]}/runs.csv",
            key=key,
            got=folder,
            expected="a campaign's folder (without braces), such as results/NAME",
        )
    return file


def _nothing(compared: Compared) -> Note:
    """Why no cell can be, the most frequent reason first."""
    a, b = (set(runs["cell"]) for runs in (compared.base, compared.other))
    if not a & b:
        levels = {name: (_levels(compared.base[name]), _levels(compared.other[name])) for name in factors()}
        differ = {name: (_said(one), _said(two)) for name, (one, two) in levels.items() if not set(one) & set(two)}
        each = "; ".join(f"{name}: {one} and {two}" for name, (one, two) in differ.items())
        text = f"they have no cell in common ({each or 'no combination of levels is in both'})"
        return Note("no-common-cell", text, levels=differ)
    refused = [why for cell, why in compared.refused.items() if cell in a & b]
    reasons = pd.Series(list(map(str, refused))).value_counts()
    text = "; ".join(f"{why} ({count} of {len(a & b)} cells)" for why, count in reasons.items())
    return Note("all-cells-refused", text, reasons=Counter(why.code for why in refused), of=len(a & b))


def _changed(column: str, words: str, before: str, after: str, **facts: Any) -> Note:
    """That something is not what it was, in a line."""
    text = f"{words}: {before} → {after}"
    return Note("changed", text, column=column, before=before, after=after, **facts)


def _levels(values: pd.Series) -> tuple[str, ...]:
    """What occurs in a column, as text, sorted; nothing known is no level."""
    return tuple(sorted({_text(value) for value in values.dropna()}))


def _known(values: pd.Series) -> bool:
    return bool(values.notna().any())


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _said(levels: Sequence[str]) -> str:
    short = [level[:DIGITS] if len(level) == 64 else level for level in levels]
    return " and ".join(short[:3]) + (f" and {len(short) - 3} more" if len(short) > 3 else "") if short else "not known"


def _dates(runs: pd.DataFrame) -> str:
    dates = sorted(str(start)[:10] for start in runs["started_at"].dropna())
    if not dates:
        return "not known"
    return dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
