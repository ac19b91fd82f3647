"""What tables and figures read: runs.csv and epochs.csv, their factors, their cells, and what did not succeed."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from common.errors import InputError
from common.schemas import schema
from common.tables import read_table
from declared.factors import MOST_SERIES, UNTRACED, scale_of, treatments_of
from declared.records import RECORDS
from models.collectives import COLLECTIVES

_ALONE = ("training_loop", "precision", "optimizer")  # their levels need no title


@dataclass(frozen=True)
class Records:
    """The records of a study, and tables that were made of them. Each file is read when it is first needed.

    Attributes:
        runs_csv: The table of runs.
        epochs_csv: The table of epochs.
        others: Name -> file of what else there is: other tables of records (declared.records), or tables of results.
    """

    runs_csv: Path
    epochs_csv: Path
    others: Mapping[str, Path | None] = field(default_factory=dict)
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False, compare=False)

    def table(self, name: str) -> pd.DataFrame:
        """Return one of the others; without rows where there is none."""
        if name not in self._tables:
            self._tables[name] = _table(name, self.others.get(name))
        return self._tables[name]

    @functools.cached_property
    def every_run(self) -> pd.DataFrame:
        """All runs of the design."""
        return read_runs(self.runs_csv)

    @functools.cached_property
    def runs(self) -> pd.DataFrame:
        """Those that numbers of time are made of."""
        return timed(self.every_run)

    @functools.cached_property
    def epochs(self) -> pd.DataFrame:
        """The epochs of the successful runs, each with the cell of its run."""
        return self.epochs_of(self.runs)

    def epochs_of(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Those of the successful ones of `runs`."""
        of_run = successful(runs).set_index("run_id")[["key", "cell"]]
        epochs = read_table(self.epochs_csv, "epochs", set(of_run.index))
        place = of_run.index.get_indexer(epochs["run_id"])
        kept = place >= 0
        kept[kept] = of_run["key"].to_numpy()[place[kept]] == epochs["key"].to_numpy()[kept]
        return epochs[kept].assign(cell=of_run["cell"].to_numpy()[place[kept]])


def _table(name: str, file: Path | None) -> pd.DataFrame:
    """A table of records, checked against its schema, or a table of results. InputError where it cannot be read."""
    if name in RECORDS:
        return pd.DataFrame(columns=list(schema(name)["properties"])) if file is None else read_table(file, name)
    if file is None:
        return pd.DataFrame()
    try:
        return pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise InputError("broken-file", f"cannot be read: {one_line(error)}", file=file) from None


def read_runs(path: Path) -> pd.DataFrame:
    """All runs of runs.csv. `replicas`, which all that compares times takes for how many train, count devices here: where ranks divide a
    copy of the model among them (a mesh), each is one."""
    runs = read_table(path, "runs")
    return runs.assign(replicas=runs[["ranks", "replicas"]].max(axis=1))


def read_timed(path: Path) -> pd.DataFrame:
    """The runs of runs.csv that tables and figures of time are made of (`timed`)."""
    return timed(read_runs(path))


def factors() -> list[str]:
    """Every factor that a study may vary, in the order of factors.schema.yaml."""
    return list(schema("factors")["properties"])


def title(factor: str) -> str:
    """The factor in words."""
    return schema("factors")["properties"][factor].get("title", factor)


def title_with_unit(factor: str) -> str:
    """The factor in words, as the label of an axis."""
    unit = schema("factors")["properties"][factor].get("unit")
    return f"{title(factor)} ({unit})" if unit and unit != title(factor) else title(factor)


def level_text(level: Any) -> str:
    """A level as a person writes it; an absent one is a dash."""
    if pd.isna(level):
        return "–"
    return f"{level:g}" if isinstance(level, float) else str(level)


def scale_factor(runs: pd.DataFrame) -> str:
    """The factor that makes a cell larger: nodes, or their devices where only these vary."""
    return scale_of(varying(runs))


def combination_text(levels: Mapping[str, Any]) -> str:
    """Levels of several factors in one line: `2 nodes, batch size 32`."""
    return ", ".join(_factor_level(factor, level) for factor, level in levels.items())


def _factor_level(factor: str, level: Any) -> str:
    if factor == "nodes":
        return f"{level} node" if level == 1 else f"{level} nodes"
    if factor in ("framework", "model", "dataset"):
        return level_text(level)
    if factor == "collective":
        return COLLECTIVES[str(level)].title
    if factor == "bandwidth":
        return f"{level} Mbit/s" if level else "the site's links"
    return f"{title(factor)} {level_text(level)}"


def treatment_text(levels: Mapping[str, Any]) -> str:
    """Levels as legends and panels name them, those of treatments in fewer words: `custom, every 4 batches`, `2 nodes`."""
    return ", ".join(_treatment_level(factor, level) for factor, level in levels.items())


def _treatment_level(factor: str, level: Any) -> str:
    if factor == "sync_every":
        return "every batch" if level == 1 else f"every {level} batches"
    return level_text(level) if factor in _ALONE else _factor_level(factor, level)


def cell_words(runs: pd.DataFrame, but: Collection[str] = ()) -> dict[str, str]:
    """A cell's name -> the levels that tell it from the others, in words; those of factors `but` are left out, and its name is
    given where nothing is left."""
    treated = [name for name in treatments(runs) if name not in but]
    names = varying(runs, but=[*treated, *but])
    found = {}
    for row in runs.drop_duplicates("cell").to_dict("records"):
        plain = combination_text({str(name): row[name] for name in names})
        treatment = treatment_text({name: row[name] for name in treated})
        found[str(row["cell"])] = ", ".join(part for part in (plain, treatment) if part) or str(row["cell"])
    return found


def varying(runs: pd.DataFrame, but: Iterable[str] = ()) -> list[str]:
    """The factors with more than one level in `runs`, those of `but` left out."""
    return [name for name in factors() if name not in but and runs[name].nunique(dropna=False) > 1]


def treatments(runs: pd.DataFrame) -> list[str]:
    """The varying factors that say how a cell is trained, such as loop and accumulation; those with words first."""
    return treatments_of(varying(runs))


def series_factors(runs: pd.DataFrame, but: Collection[str] = ()) -> list[str]:
    """The factors whose combinations are the series of a figure, those of `but` left out.

    The framework where there are several; else as many treatment factors, in their order, as make at most MOST_SERIES
    combinations. The framework where no treatment varies, too.
    """
    if runs["framework"].nunique() > 1 and "framework" not in but:
        return ["framework"]
    chosen = [name for name in treatments(runs) if name not in but]
    while chosen and len(runs[chosen].drop_duplicates()) > MOST_SERIES:
        chosen.pop()
    return chosen or ["framework"]


def levels_in_order(runs: pd.DataFrame, factor: str) -> list[Any]:
    """The levels of `factor` that occur: frameworks as tables list them, words as the schema does, numbers ascending.

    The first one is the base level that others are compared with.
    """
    if factor == "framework":
        return framework_order(runs)
    found = runs[factor].dropna().unique().tolist()
    words = schema("factors")["properties"][factor].get("enum")
    return sorted(found, key=words.index if words else None)


def timed(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that tables and figures of time are made of, here and nowhere else: those that nobody traced, all where all were."""
    untraced = runs["trace"] == UNTRACED
    return runs[untraced] if untraced.any() and not untraced.all() else runs


def traced(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs whose phases are kept."""
    return runs[runs["trace"] != UNTRACED]


def successful(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that numbers are made of: status ok, with an epoch time."""
    return runs[(runs["status"] == "ok") & runs["epoch_time_s"].notna()]


def with_phases(runs: pd.DataFrame) -> pd.DataFrame:
    """The successful traced runs whose kept phases are whole (records.aggregate)."""
    ok = successful(traced(runs))
    return ok[ok["without_phases"].isna()]


Result = TypeVar("Result")


def last_kept(*columns: str) -> Callable[[Callable[[pd.DataFrame], Result]], Callable[[pd.DataFrame], Result]]:
    """A function of runs that keeps its last result, for runs with the same index and content of these columns: what makes a table and its
    notes ask for it in turn."""

    def keeping(make: Callable[[pd.DataFrame], Result]) -> Callable[[pd.DataFrame], Result]:
        last: dict[bytes, Result] = {}

        @functools.wraps(make)
        def kept(runs: pd.DataFrame) -> Result:
            content = pd.util.hash_pandas_object(runs[list(columns)]).to_numpy().tobytes()
            if content not in last:
                made = make(runs)
                last.clear()
                last[content] = made
            return last[content]

        return kept

    return keeping


def block_of(runs: pd.DataFrame) -> np.ndarray:
    """The number of each run's block, [runs]: a block that was cut short and went on in another session is two."""
    return runs.groupby(["session", "block"], dropna=False).ngroup().to_numpy()


def scaled(ok: pd.DataFrame, column: str) -> pd.Series:
    """`column`, which counts an epoch, of successful runs for the data set's number of samples, as epoch times are."""
    share = ok["samples_per_epoch"].astype(float) / ok["samples_trained"].astype(float)
    return ok[column].astype(float) * share.fillna(1.0)


def unsuccessful(runs: pd.DataFrame) -> pd.DataFrame:
    """The other runs of the design."""
    return runs.drop(successful(runs).index)


def missing_cells(runs: pd.DataFrame) -> list[str]:
    """The cells without any successful run, in the order of the design."""
    measured = set(successful(runs)["cell"])
    return [cell for cell in dict.fromkeys(runs["cell"]) if cell not in measured]


def named_of(runs: pd.DataFrame, column: str) -> list[str]:
    """What a column with several names a run (hosts, devices, drivers, systems) has, each once, sorted."""
    between = " " if column == "hosts" else "; "
    return sorted({name for names in runs[column].dropna() for name in names.split(between)})


def one_line(text: Any) -> str:
    """A text that fits one row of a table."""
    return "" if pd.isna(text) else " ".join(str(text).split())


def bases(runs: pd.DataFrame) -> list[str]:
    """The undistributed frameworks of the study: those that are their own base."""
    return sorted(set(runs.loc[runs["framework"] == runs["base"], "framework"]))


def framework_order(runs: pd.DataFrame) -> list[str]:
    """The frameworks as every table and figure lists them: undistributed bases first, then by name."""
    first = bases(runs)
    return first + sorted(set(runs["framework"]) - set(first))


def cells(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per cell of the design (`cell`, every factor, `replicas`, `base`), in the order of tables and figures."""
    rank = {name: position for position, name in enumerate(framework_order(runs))}
    rows = runs[["cell", *factors(), "replicas", "base"]].drop_duplicates("cell")
    order = rows.assign(framework=rows["framework"].map(rank)).sort_values(factors(), kind="stable").index
    return rows.loc[order].reset_index(drop=True)
