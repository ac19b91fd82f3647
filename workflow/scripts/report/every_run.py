"""Collect every run for the page: its row in the table of runs, and the details that open on a click."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import tables
from analysis.level_words import level_text, title, treatment_text
from analysis.records import default_series_factors, has_words, measured_elsewhere, varying
from common.files import read_json
from common.notes import Note
from declared.factors import is_numeric
from environments import scorep
from plan.campaign import Campaign
from report.material import Material
from report.text import Tail, clean, tail
from runs.attempts import UNFINISHED, list_attempts
from runs.phases import START, WAIT
from traces.cells import PHASES, STEP, in_order, phase_label

CURVES = ("epoch_time_s", "train_loss", "validation_loss", "train_accuracy", "validation_accuracy")
MAX_LOG_CHARACTERS = 12_000_000  # Limit of all log tails together.
MIN_LOG_CHARACTERS, MAX_CHARACTERS_PER_LOG = 1_000, 20_000  # Limits of one log tail.
MAX_FILTER_LEVELS = 40  # A column with more levels has no list to filter by.
DIGITS = 3  # Significant digits of numbers in the table.
DETAIL_DIGITS = 6
RECORDS_ELSEWHERE = Note(
    "records-elsewhere",
    "Logs and records stay where the runs were measured: this page was made from published tables.",
)


@dataclass(frozen=True)
class Column:
    """A column of the table of runs.

    Attributes:
        name: Its key.
        title: Its heading.
        kind: order, number, level, text or run.
        decimals: Decimals of numbers.
        choose: Whether a list of its values filters the table.
        hidden: Whether it is not shown, only searched and filtered.
    """

    name: str
    title: str
    kind: str
    decimals: int | None = None
    choose: bool = False
    hidden: bool = False


# Columns of runs.csv in the table of runs: heading, and multiplier to the unit of the heading.
MEASUREMENTS = {
    "epoch_time_s": ("epoch time (s)", 1),
    "validation_accuracy": ("validation accuracy (%)", 100),
    "perplexity": ("perplexity", 1),
    "startup_s": ("start-up (s)", 1),
    "wall_s": ("whole run (s)", 1),
    "other_cpu_share": ("other CPU (%)", 100),
}


@dataclass(frozen=True)
class RunTable:
    """The table of runs: columns, and a row per run in the order of runs.csv. None is an empty field."""

    columns: list[Column]
    rows: list[list[Any]]


def run_order(runs: pd.DataFrame) -> tuple[pd.Series, bool]:
    """Return the position of each run, from 1, and whether positions follow the clock.

    They follow the clock if all successful runs recorded their start; a run that never started then has no
    position. Otherwise they follow the plan or, for imported measurements, the order of the table.
    """
    done = runs["status"] == "ok"
    by_clock = bool(done.any()) and bool(runs.loc[done, "started_at"].notna().all())
    if not by_clock and measured_elsewhere(runs):
        return pd.Series(np.arange(1.0, len(runs) + 1), index=runs.index), False
    times = runs["started_at" if by_clock else "order_key"].dropna().sort_values(kind="stable")
    return pd.Series(np.arange(1.0, len(times) + 1), index=times.index).reindex(runs.index), by_clock


def series_names(material: Material) -> pd.Series:
    """Return the name of each run's series, as in the legends of figures."""
    runs, names = material.every_run, default_series_factors(material.runs)
    if names == ["framework"]:
        return runs["framework"]
    combinations = runs[names].drop_duplicates().to_dict("records")
    texts = {
        tuple(levels.values()): treatment_text({str(k): v for k, v in levels.items()})
        for levels in combinations
    }
    return pd.Series(
        [texts[levels] for levels in runs[names].itertuples(index=False, name=None)], index=runs.index
    )


def run_table(material: Material) -> RunTable:
    """Return the table of all runs of the design, successful or not."""
    runs = material.every_run
    columns: list[tuple[Column, list[Any]]] = [
        (Column("order", "run", "order", 0), _numbers(run_order(runs)[0], 0))
    ]
    for name in varying(runs):
        is_filter = runs[name].nunique() <= MAX_FILTER_LEVELS
        numeric = is_numeric(name) and not has_words(runs, name)
        kind = "level" if numeric else "text"
        values = (
            [_json_value(level) for level in runs[name]] if numeric else [level_text(x) for x in runs[name]]
        )
        columns.append((Column(name, title(name), kind, choose=is_filter), values))
    columns.append((Column("replicate", "replicate", "number", 0), _numbers(runs["replicate"], 0)))
    if 1 < runs["session"].nunique() <= MAX_FILTER_LEVELS:
        columns.append(
            (Column("session", "session", "text", choose=True, hidden=True), _texts(runs["session"]))
        )
    columns.append((Column("status", "status", "text", choose=True), _texts(runs["status"])))
    for name, (heading, unit_multiplier) in MEASUREMENTS.items():
        numbers = runs[name].astype(float) * unit_multiplier
        if numbers.notna().any():
            decimals = _decimals(numbers, numbers.groupby(runs["cell"]).std().median())
            column = Column(name, heading, "number", decimals)
            columns.append((column, _numbers(numbers, decimals + 2)))
    if runs["reason"].notna().any():
        columns.append((Column("reason", "reason", "text"), _texts(runs["reason"])))
    columns.append((Column("run_id", "name", "run"), runs["run_id"].tolist()))
    rows = zip(*(values for _, values in columns), strict=True)
    return RunTable([column for column, _ in columns], [list(row) for row in rows])


def run_details(material: Material, campaign: Campaign) -> Iterator[dict[str, Any]]:
    """Yield the details of each run, in the order of the table.

    The details are the epochs by column, the phases of a traced run or why there are none, the record or else
    the row of runs.csv, and the end of the log with a note on its path.
    """
    curves = _curves(material.epochs)
    phases_by_run = {
        str(run_id): phase_details(rows) for run_id, rows in material.phases.groupby("run_id", sort=False)
    }
    characters = max(
        MIN_LOG_CHARACTERS, min(MAX_CHARACTERS_PER_LOG, MAX_LOG_CHARACTERS // max(1, len(material.every_run)))
    )
    for row in material.every_run.to_dict("records"):
        entry = {
            "run_id": row["run_id"],
            "epochs": curves.get(row["run_id"]),
            **_phase_fields(row, phases_by_run),
        }
        if campaign.published_folder is not None:
            yield entry | {"row": _known_fields(row), "note": RECORDS_ELSEWHERE}
            continue
        folder = campaign.results / "runs" / str(row["run_id"]) / str(row["key"])
        record, attempt = _read_record(folder), _find_attempt(folder, row)
        log = tail(attempt / "log.txt", characters) if attempt else None
        yield entry | {
            **({"record": record} if record else {"row": _known_fields(row)}),
            **_log_fields(attempt, log),
        }


def _phase_fields(row: dict[str, Any], phases_by_run: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the phases of a run, or why it has none; {} for untraced and unsuccessful runs."""
    if row["run_id"] in phases_by_run:
        return {"phases": phases_by_run[row["run_id"]]}
    return {} if pd.isna(row["without_phases"]) else {"without_phases": clean(str(row["without_phases"]))}


def phase_details(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the phases of a run, from its rows of phases.csv.

    Rows of `step` have name, share in %, and times in ms: mean over ranks, of the median rank, of the
    slowest rank. Rows of `start` have name, and times in s: mean over ranks, of the slowest rank. Ranks are
    ordered by the time of a step without waiting; `median` and `slowest` are rank numbers.
    """
    steps, start = (
        rows[rows["scope"] == scope]
        .pivot(index="rank", columns="phase", values=column)
        .astype(float)
        .fillna(0.0)
        for scope, column in (("step", "step_s"), ("start", "seconds"))
    )
    ordered = (steps.sum(axis=1) - steps.get(WAIT, 0.0)).sort_values(kind="stable").index
    details: dict[str, Any] = {"step": [], "start": []}
    if len(ordered):
        median, slowest = ordered[(len(ordered) - 1) // 2], ordered[-1]
        milliseconds = 1e3 * steps.assign(**{STEP: steps.sum(axis=1)})
        for name in [*in_order(steps, PHASES), STEP]:
            mean = float(milliseconds[name].mean())
            numbers = [
                100 * mean / float(milliseconds[STEP].mean()),
                mean,
                *milliseconds.loc[[median, slowest], name].tolist(),
            ]
            details["step"].append([phase_label("step", name), *(_round_short(number) for number in numbers)])
        details |= {"ranks": len(ordered), "median": int(median), "slowest": int(slowest)}
    for name in in_order(start, START):
        details["start"].append([name, _round_short(start[name].mean()), _round_short(start[name].max())])
    return details


def _round_short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def _log_fields(attempt: Path | None, log: Tail | None) -> dict[str, str]:
    """Return the end of the log, and a note on its path or on why there is none."""
    if attempt is None:
        return {"note": Note("not-attempted", "This run was not attempted here.")}
    ended = clean(_read_text(attempt / UNFINISHED)) if (attempt / UNFINISHED).is_file() else None
    unfinished = f" It left no record: {ended}." if ended is not None else ""
    if log is None:
        return {
            "note": Note("no-log", f"{attempt} has no log.{unfinished}", attempt=attempt, unfinished=ended)
        }
    file, anchor = attempt / "log.txt", attempt / scorep.ANCHOR
    trace = anchor if anchor.is_file() else None
    traced = (
        f" It ran under Score-P: {trace} opens in Vampir; ./ringside trace shows it with the phases."
        if trace
        else ""
    )
    separator = "" if log.extent.code in ("empty-log", "unreadable-log") else ":"
    note = Note(
        "log",
        f"{file}{separator} {log.extent}.{unfinished}{traced}",
        file=file,
        extent=log.extent.code,
        unfinished=ended,
        score_p=trace,
    )
    return {"note": note, "log": log.text}


def _find_attempt(folder: Path, row: dict[str, Any]) -> Path | None:
    """Return the folder of the attempt in the row, or else of the last attempt; None without attempts."""
    if not folder.is_dir():
        return None
    tried = {path.name: path for path in list_attempts(folder)}
    named = None if pd.isna(row["attempt"]) else tried.get(f"attempt-{row['attempt']}")
    return named or (list(tried.values())[-1] if tried else None)


def _read_record(folder: Path) -> Any:
    try:
        return _without_controls(read_json(folder / "record.json"))
    except (OSError, ValueError):
        return None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _without_controls(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): _without_controls(part) for key, part in value.items()}
    return [_without_controls(part) for part in value] if isinstance(value, list) else value


def _known_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a row of runs.csv that are not empty."""
    return {name: _json_value(value) for name, value in row.items() if not pd.isna(value)}


def _json_value(value: Any) -> Any:
    """Return a value as JSON can represent it: None for missing values and infinity."""
    if pd.isna(value):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return clean(value) if isinstance(value, str) else value


def _texts(column: pd.Series) -> list[str | None]:
    return [None if pd.isna(value) else " ".join(clean(str(value)).split()) for value in column]


def _numbers(column: pd.Series, decimals: int) -> list[float | int | None]:
    values = column.astype(float).round(decimals)
    return [None if math.isnan(x) else int(x) if decimals == 0 else x for x in values.tolist()]


def _decimals(values: pd.Series, spread: float) -> int:
    """Return the decimals that give the median DIGITS digits, or more if runs of a cell spread little."""
    middle = float(values.abs().median())
    if not middle > 0:
        return DIGITS - 1
    by_size = DIGITS - 1 - math.floor(math.log10(middle))
    return max(0, by_size, tables.decimals(middle, spread, DIGITS) if spread > 0 else 0)


def _curves(epochs: pd.DataFrame) -> dict[str, dict[str, list[Any]]]:
    """Return by run the numbers of its epochs, how many are warm-up, and its values of CURVES."""
    present = [name for name in CURVES if epochs[name].notna().any()]
    values = {name: _round_all(epochs[name].to_numpy(float)) for name in present}
    number, warm_up = epochs["epoch"].to_numpy(int), epochs["warm_up"].to_numpy(bool)
    curves_by_run = {}
    for run_id, rows in epochs.groupby("run_id", sort=False).indices.items():
        columns = {name: [values[name][row] for row in rows] for name in present}
        curves_by_run[str(run_id)] = {
            "epoch": number[rows].tolist(),
            "warm_up": int(warm_up[rows].sum()),
            **{
                name: column for name, column in columns.items() if any(value is not None for value in column)
            },
        }
    return curves_by_run


def _round_all(values: np.ndarray) -> list[float | None]:
    """Return numbers rounded to DETAIL_DIGITS digits; None for missing ones."""
    return [float(f"{x:.{DETAIL_DIGITS}g}") if math.isfinite(x) else None for x in values.tolist()]
