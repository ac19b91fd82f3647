"""Read runs.csv and epochs.csv, select runs, and list their factors, levels and cells."""

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from pandas.core.groupby import DataFrameGroupBy

from common.errors import InputError
from common.run_status import RunStatus
from common.schemas import schema
from common.tables import read_results, read_table
from declared.factors import (
    LARGEST,
    MAX_SERIES,
    N_DEVICES,
    NODES_AND_DEVICES,
    UNTRACED,
    factor_names,
    factor_rules,
    size_factor_of,
    treatments_of,
    with_devices,
)
from declared.records import RECORD_TABLES


@dataclass(frozen=True)
class Records:
    """The tables that a product reads: tables of records, such as runs.csv, and tables of results.

    Each is read when it is first needed. The stage `records` collects tables of records (`declared.records`)
    from the record.json of each run.

    Attributes:
        runs_csv: The table of runs.
        epochs_csv: The table of epochs.
        files: Name -> file of other tables; None for a table that the study does not have.
    """

    runs_csv: Path
    epochs_csv: Path
    files: Mapping[str, Path | None] = field(default_factory=dict)
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False, compare=False)

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of `files`; a table whose file is None has no rows."""
        if name not in self._tables:
            self._tables[name] = _table(name, self.files.get(name))
        return self._tables[name]

    @functools.cached_property
    def every_run(self) -> pd.DataFrame:
        """All runs of the design."""
        return read_runs(self.runs_csv)

    @functools.cached_property
    def runs(self) -> pd.DataFrame:
        """Runs that tables of time use (`timing_runs`)."""
        return timing_runs(self.every_run)

    @functools.cached_property
    def epochs(self) -> pd.DataFrame:
        """Epochs of the successful runs, each with the cell of its run."""
        return self.epochs_of(self.runs)

    def epochs_of(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the epochs of the successful runs among `runs`."""
        run_cells = successful(runs).set_index("run_id")[["key", "cell"]]
        epochs = read_table(self.epochs_csv, "epochs")
        position = run_cells.index.get_indexer(epochs["run_id"])
        is_current = position >= 0
        keys = run_cells["key"].fillna("").to_numpy()
        is_current[is_current] = keys[position[is_current]] == epochs["key"].fillna("").to_numpy()[is_current]
        return epochs[is_current].assign(cell=run_cells["cell"].to_numpy()[position[is_current]])


def _table(name: str, file: Path | None) -> pd.DataFrame:
    """Return a table of records, checked against its schema, or a table of results.

    Raises:
        InputError: If the file cannot be read.
    """
    if name in RECORD_TABLES:
        return (
            pd.DataFrame(columns=list(schema(name)["properties"])) if file is None else read_table(file, name)
        )
    if file is None:
        return pd.DataFrame()
    try:
        return read_results(file)
    except (OSError, ValueError) as error:
        raise InputError("broken-file", f"cannot be read: {one_line(error)}", file=file) from None


def read_runs(path: Path) -> pd.DataFrame:
    """Return all runs of runs.csv, with their numbers of devices (`with_device_count`).

    The column `local_batch` has whole numbers if no run has a fraction.
    """
    runs = with_device_count(read_table(path, "runs"))
    is_whole = bool((runs["local_batch"].dropna() % 1 == 0).all())
    return runs.astype({"local_batch": "Int64"}) if is_whole else runs


def with_device_count(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the column `n_devices`, the number of devices that train.

    `replicas`, the copies of the model, are fewer with model parallelism, where ranks share a copy, and more
    than `ranks` if a rank has several devices.
    """
    return runs.assign(n_devices=runs[["ranks", "replicas"]].max(axis=1))


def read_timing_runs(path: Path) -> pd.DataFrame:
    """Return the runs of runs.csv that tables and figures of time use (`timing_runs`)."""
    return timing_runs(read_runs(path))


def has_words(runs: pd.DataFrame, factor: str) -> bool:
    """Return whether a numeric factor has a level that is a word, such as `largest` (`common.tables`)."""
    return isinstance(runs[factor].dtype, pd.CategoricalDtype)


def with_batch_numbers(runs: pd.DataFrame) -> pd.DataFrame:
    """Replace the level `largest` of the batch size by the number that each cell trained with."""
    if not has_words(runs, "batch_size"):
        return runs
    numbers = runs["batch_size"].astype(object).where(runs["batch_size"] != LARGEST, runs["local_batch"])
    return runs.assign(batch_size=numbers.astype("Int64"))


def size_factor_name(runs: pd.DataFrame) -> str:
    """Return the name of the factor by which cells scale (`declared.factors.size_factor_of`)."""
    return size_factor_of(varying(runs))


def groups_by(frame: pd.DataFrame, names: Sequence[str]) -> DataFrameGroupBy:
    """Return the rows grouped by factors, of which a missing level is a level; one group without factors."""
    # pandas refuses an empty list of names.
    return frame.assign(all=0).groupby(["all", *names], dropna=False)


def varying(runs: pd.DataFrame, exclude: Iterable[str] = ()) -> list[str]:
    """Return the factors with more than one level in `runs`, except those in `exclude`.

    N_DEVICES replaces nodes and devices_per_node if these two grow in turn (`declared.factors.is_ladder`). It
    is left out if `exclude` has both of them.
    """
    names = [name for name in factor_names(runs) if runs[name].nunique(dropna=False) > 1]
    if set(NODES_AND_DEVICES) <= set(names):
        sizes = runs[list(NODES_AND_DEVICES)].drop_duplicates().itertuples(index=False, name=None)
        names = with_devices(names, ((int(nodes), int(devices)) for nodes, devices in sizes))
    left_out = {*exclude, *([N_DEVICES] if set(NODES_AND_DEVICES) <= set(exclude) else [])}
    return [name for name in names if name not in left_out]


def treatments(runs: pd.DataFrame) -> list[str]:
    """Return the varying factors that describe how a cell trains, such as loop and accumulation."""
    return treatments_of(varying(runs))


def default_series_factors(runs: pd.DataFrame, exclude: Collection[str] = ()) -> list[str]:
    """Return the factors whose combinations are the series of a figure, except those in `exclude`.

    They are the framework if there are several; or else the first treatment factors, as many as make at most
    MAX_SERIES combinations; or the framework if no treatment varies.
    """
    if runs["framework"].nunique() > 1 and "framework" not in exclude:
        return ["framework"]
    chosen = [name for name in treatments(runs) if name not in exclude]
    while chosen and len(runs[chosen].drop_duplicates()) > MAX_SERIES:
        chosen.pop()
    return chosen or ["framework"]


def levels_in_order(runs: pd.DataFrame, factor: str) -> list[Any]:
    """Return the levels of `factor`: frameworks in table order, words in schema order, numbers ascending.

    Comparisons take the first one as base level.
    """
    if factor == "framework":
        return framework_order(runs)
    levels = runs[factor].dropna().unique().tolist()
    words = factor_rules(factor).get("enum")
    if words:
        return sorted(levels, key=words.index)
    return sorted(levels, key=lambda level: (isinstance(level, str), level))


def timing_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that tables and figures of time use: the untraced ones, or all if all were traced."""
    untraced = runs["trace"] == UNTRACED
    return runs[untraced] if untraced.any() and not untraced.all() else runs


def traced(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the traced runs."""
    return runs[runs["trace"] != UNTRACED]


def measured_elsewhere(runs: pd.DataFrame) -> bool:
    """Return whether runs were measured elsewhere: none has a key or a block, so none was planned here.

    Such runs have no random order, and what else their machines did is unknown.
    """
    return bool(len(runs)) and not runs["block"].notna().any() and not runs["key"].notna().any()


def are_times_to_train(runs: pd.DataFrame) -> bool:
    """Return whether the "epochs" of runs measured elsewhere are trainings until a target.

    Such an epoch has no number of samples.
    """
    ok = successful(runs)
    return bool(len(ok)) and measured_elsewhere(runs) and not ok["samples_per_epoch"].notna().any()


def count_steps(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with steps and all-reduces filled in by formula for runs measured elsewhere.

    Such runs have no key. Runs without a step time stay as they are, because their "epoch" can be a whole
    training.
    """
    n_allreduces = runs["samples_per_epoch"].astype(float) / runs["effective_batch"].astype(float)
    counted = {"steps": n_allreduces * runs["sync_every"].astype(float), "n_allreduces": n_allreduces}
    is_elsewhere = runs["key"].isna() & runs["step_time_median_s"].notna()
    return runs.assign(
        **{
            name: runs[name].astype(float).mask(is_elsewhere & runs[name].isna(), counts)
            for name, counts in counted.items()
        }
    )


def currency_of(runs: pd.DataFrame) -> str:
    """Return the currency of the prices of runs; "" without a price, or if there are several currencies."""
    currencies = set(runs["currency"].dropna()) if "currency" in runs else set()
    return currencies.pop() if len(currencies) == 1 else ""


def successful(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the successful runs, which are the ones that count: status ok, with an epoch time."""
    return runs[(runs["status"] == "ok") & runs["epoch_time_s"].notna()]


def with_phases(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the successful traced runs with complete phases (records.aggregate)."""
    ok = successful(traced(runs))
    return ok[ok["without_phases"].isna()]


Result = TypeVar("Result")


def cache_last(
    *columns: str,
) -> Callable[[Callable[[pd.DataFrame], Result]], Callable[[pd.DataFrame], Result]]:
    """Return a decorator that caches the last result of a function of runs.

    A table and its notes need the same result in turn. The cached result is used for runs with equal index
    and equal `columns`.
    """

    def decorate(function: Callable[[pd.DataFrame], Result]) -> Callable[[pd.DataFrame], Result]:
        last: dict[bytes, Result] = {}

        @functools.wraps(function)
        def cached(runs: pd.DataFrame) -> Result:
            content = pd.util.hash_pandas_object(runs[list(columns)]).to_numpy().tobytes()
            if content not in last:
                result = function(runs)
                last.clear()
                last[content] = result
            return last[content]

        return cached

    return decorate


def block_of(runs: pd.DataFrame) -> np.ndarray:
    """Return the block number of each run [runs]. A block that continues in another session counts as two.

    A run without a block, measured elsewhere, gets a block of its own.
    """
    number = runs.groupby(["session", "block"], dropna=False).ngroup().to_numpy()
    alone = runs["block"].isna().to_numpy()
    return np.where(alone, -1 - np.arange(len(runs)), number) if alone.any() else number


def scale_to_dataset(ok: pd.DataFrame, column: str) -> pd.Series:
    """Return a column that counts per epoch, scaled to all samples of the data set, as epoch times are.

    Epochs can drop samples that do not fill a batch.
    """
    share = ok["samples_per_epoch"].astype(float) / ok["samples_trained"].astype(float)
    return ok[column].astype(float) * share.fillna(1.0)


def peak_memory_bytes(rows: pd.DataFrame) -> "pd.Series[float]":
    """Return the peak memory of a rank: that of its device, or the resident set if devices have no own."""
    resident = rows["memory_peak_bytes"].astype(float)
    return rows["device_memory_peak_bytes"].astype(float).fillna(resident)


def unsuccessful(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that are not successful."""
    return runs.drop(successful(runs).index)


def missing_cells(runs: pd.DataFrame) -> list[str]:
    """Return the cells without a successful run, except those out of memory, in the order of the design."""
    with_result = {*successful(runs)["cell"], *out_of_memory_cells(runs)}
    return [cell for cell in dict.fromkeys(runs["cell"]) if cell not in with_result]


def out_of_memory_cells(runs: pd.DataFrame) -> list[str]:
    """Return the cells that have no successful run because memory ran out, in the order of the design."""
    measured = set(successful(runs)["cell"])
    ran_out = dict.fromkeys(runs.loc[runs["status"] == RunStatus.OOM, "cell"])
    return [cell for cell in ran_out if cell not in measured]


def distinct_names(runs: pd.DataFrame, column: str) -> list[str]:
    """Return the distinct names in a column with several names per run (hosts, devices, drivers), sorted."""
    between = " " if column == "hosts" else "; "
    return sorted({name for names in runs[column].dropna() for name in names.split(between)})


def one_line(text: Any) -> str:
    """Return a text in one line, for a table cell."""
    return "" if pd.isna(text) else " ".join(str(text).split())


def baseline_frameworks(runs: pd.DataFrame) -> list[str]:
    """Return the single-device baseline frameworks: the frameworks that are their own baseline."""
    return sorted(set(runs.loc[runs["framework"] == runs["baseline"], "framework"]))


def framework_order(runs: pd.DataFrame) -> list[str]:
    """Return the frameworks in the order of tables: single-device baselines first, then by name."""
    first = baseline_frameworks(runs)
    return first + sorted(set(runs["framework"]) - set(first))


def cell_levels(runs: pd.DataFrame) -> pd.DataFrame:
    """Return cell, every factor, n_devices and baseline of each cell, in the order of tables and figures."""
    rank = {name: position for position, name in enumerate(framework_order(runs))}
    rows = runs[["cell", *factor_names(runs), "n_devices", "baseline"]].drop_duplicates("cell")
    order = (
        rows.assign(framework=rows["framework"].map(rank))
        .sort_values(factor_names(runs), kind="stable")
        .index
    )
    return rows.loc[order].reset_index(drop=True)


def to_float(value: object) -> float:
    """Return a number of a table, NaN if it is missing."""
    return math.nan if value is None or pd.isna(value) else float(value)  # type: ignore[arg-type]
