"""Every run for the page: a row of the table of runs, and what opens on a click (curves, phases, record, the end of its log)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.measured import level_text, series_factors, title, treatment_text, varying
from common.files import read_json
from common.notes import Note
from declared.factors import is_numeric
from environments import scorep
from plan.campaign import Campaign
from report.material import Material
from report.text import Tail, clean, tail
from runs.attempts import UNFINISHED, attempts
from runs.phases import START, WAIT
from traces.cells import PHASES, STEP, in_order, phase_label

CURVES = ("epoch_time_s", "train_loss", "validation_loss", "train_accuracy", "validation_accuracy")
LOGS_TOGETHER = 12_000_000  # characters of all logs' ends
LOG_LEAST, LOG_MOST = 1_000, 20_000  # of one
MOST_LEVELS = 40  # that a filter lists
DIGITS = 3  # of the numbers in the table; those that are opened have DETAIL_DIGITS
DETAIL_DIGITS = 6
ELSEWHERE = Note(
    "records-elsewhere",
    "Logs and records are where the campaign ran; this page was made from its published tables alone.",
)


@dataclass(frozen=True)
class Column:
    """A column of the table of runs. `kind`: order, number, level, text, run; `decimals` of numbers; `choose`: it has a list to
    filter by; `hidden`: it is there to be searched and filtered by alone."""

    name: str
    title: str
    kind: str
    decimals: int | None = None
    choose: bool = False
    hidden: bool = False


@dataclass(frozen=True)
class Measured:
    """A number of runs.csv that the table shows: its column, heading, and the factor to the heading's unit."""

    column: str
    heading: str
    scale: float = 1.0


MEASURED = (
    Measured("epoch_time_s", "epoch time (s)"),
    Measured("validation_accuracy", "validation accuracy (%)", 100),
    Measured("perplexity", "perplexity"),
    Measured("startup_s", "start-up (s)"),
    Measured("wall_s", "whole run (s)"),
    Measured("foreign_cpu_share", "foreign CPU (%)", 100),
)


@dataclass(frozen=True)
class Table:
    """The table of runs: its columns, and a row for each run in the order of runs.csv; None is an empty field."""

    columns: list[Column]
    rows: list[list[Any]]

    def to_json(self) -> dict[str, Any]:
        """For the page's program."""
        return {"columns": [asdict(column) for column in self.columns], "rows": self.rows}


def order(runs: pd.DataFrame) -> tuple[pd.Series, bool]:
    """The place of each run, 1 for the first, by the clock where all successful ones say when they started, else as planned.

    By the clock a run that never started has none. Second: whether it is by the clock.
    """
    done = runs["status"] == "ok"
    by_clock = bool(done.any()) and bool(runs.loc[done, "started_at"].notna().all())
    times = runs["started_at" if by_clock else "order_key"].dropna().sort_values(kind="stable")
    return pd.Series(np.arange(1.0, len(times) + 1), index=times.index).reindex(runs.index), by_clock


def series(material: Material) -> pd.Series:
    """The name of each run's series, as the figures' legends have it."""
    runs, names = material.every_run, series_factors(material.runs)
    if names == ["framework"]:
        return runs["framework"]
    said = runs[names].drop_duplicates().to_dict("records")
    texts = {tuple(levels.values()): treatment_text({str(k): v for k, v in levels.items()}) for levels in said}
    return pd.Series([texts[levels] for levels in runs[names].itertuples(index=False, name=None)], index=runs.index)


def table(material: Material) -> Table:
    """The table of all runs of the design, whether or not they succeeded."""
    runs = material.every_run
    made: list[tuple[Column, list[Any]]] = [(Column("order", "run", "order", 0), _numbers(order(runs)[0], 0))]
    for name in varying(runs):
        few = runs[name].nunique() <= MOST_LEVELS
        kind = "level" if is_numeric(name) else "text"
        values = [_plain(level) for level in runs[name]] if is_numeric(name) else [level_text(x) for x in runs[name]]
        made.append((Column(name, title(name), kind, choose=few), values))
    made.append((Column("replicate", "replicate", "number", 0), _numbers(runs["replicate"], 0)))
    if 1 < runs["session"].nunique() <= MOST_LEVELS:
        made.append((Column("session", "session", "text", choose=True, hidden=True), _texts(runs["session"])))
    made.append((Column("status", "status", "text", choose=True), _texts(runs["status"])))
    for response in MEASURED:
        values = runs[response.column].astype(float) * response.scale
        if values.notna().any():
            decimals = _decimals(values)
            made.append((Column(response.column, response.heading, "number", decimals), _numbers(values, decimals + 2)))
    if runs["reason"].notna().any():
        made.append((Column("reason", "reason", "text"), _texts(runs["reason"])))
    made.append((Column("run_id", "name", "run"), runs["run_id"].tolist()))
    rows = zip(*(values for _, values in made), strict=True)
    return Table([column for column, _ in made], [list(row) for row in rows])


def details(material: Material, campaign: Campaign) -> Iterator[dict[str, Any]]:
    """What opens on a click, in the order of the table: run_id, epochs by column, phases of a traced run (`phases_of`) or why it has none,
    record or row, log and where it lies."""
    curves = _curves(material.epochs)
    told = {str(run_id): phases_of(rows) for run_id, rows in material.phases.groupby("run_id", sort=False)}
    characters = max(LOG_LEAST, min(LOG_MOST, LOGS_TOGETHER // max(1, len(material.every_run))))
    for row in material.every_run.to_dict("records"):
        found = {"run_id": row["run_id"], "epochs": curves.get(row["run_id"]), **_phases(row, told)}
        if campaign.published is not None:
            yield found | {"row": _told(row), "note": ELSEWHERE}
            continue
        folder = campaign.results / "runs" / str(row["run_id"]) / str(row["key"])
        record, attempt = _record(folder), _attempt(folder, row)
        log = tail(attempt / "log.txt", characters) if attempt else None
        yield found | {
            **({"record": record} if record else {"row": _told(row)}),
            **_log(attempt, log),
        }


def _phases(row: dict[str, Any], told: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What is told of a run's phases; nothing of a run that was not traced or did not succeed."""
    if row["run_id"] in told:
        return {"phases": told[row["run_id"]]}
    return {} if pd.isna(row["without_phases"]) else {"without_phases": clean(str(row["without_phases"]))}


def phases_of(rows: pd.DataFrame) -> dict[str, Any]:
    """The phases of a run, of its rows of phases.csv: of a step (name, share of the step in %, ms as a mean over ranks, of the median rank
    and of the slowest one), of the start (name, s as a mean over ranks and of the rank for which it takes longest).

    Ranks are ordered by what they compute in a step, which is all but waiting; `median` and `slowest` are their numbers.
    """
    steps, start = (
        rows[rows["scope"] == scope].pivot(index="rank", columns="phase", values=column).astype(float).fillna(0.0)
        for scope, column in (("step", "step_s"), ("start", "seconds"))
    )
    ordered = (steps.sum(axis=1) - steps.get(WAIT, 0.0)).sort_values(kind="stable").index
    found: dict[str, Any] = {"step": [], "start": []}
    if len(ordered):
        median, slowest = ordered[(len(ordered) - 1) // 2], ordered[-1]
        whole = 1e3 * steps.assign(**{STEP: steps.sum(axis=1)})
        for name in [*in_order(steps, PHASES), STEP]:
            mean = float(whole[name].mean())
            numbers = [100 * mean / float(whole[STEP].mean()), mean, *whole.loc[[median, slowest], name].tolist()]
            found["step"].append([phase_label("step", name), *(_short(number) for number in numbers)])
        found |= {"ranks": len(ordered), "median": int(median), "slowest": int(slowest)}
    for name in in_order(start, START):
        found["start"].append([name, _short(start[name].mean()), _short(start[name].max())])
    return found


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def _log(attempt: Path | None, log: Tail | None) -> dict[str, str]:
    """Return the end of the log, and a note of where it is, or of why there is none."""
    if attempt is None:
        return {"note": Note("not-attempted", "This run was not attempted here.")}
    ended = clean(_text(attempt / UNFINISHED)) if (attempt / UNFINISHED).is_file() else None
    left = f" It left no record: {ended}." if ended is not None else ""
    if log is None:
        return {"note": Note("no-log", f"{attempt} has no log.{left}", attempt=attempt, unfinished=ended)}
    file, anchor = attempt / "log.txt", attempt / scorep.ANCHOR
    trace = anchor if anchor.is_file() else None
    traced = (
        f" It ran under Score-P: {trace} opens in Vampir; ./ringside trace shows it beside the phases." if trace else ""
    )
    note = Note(
        "log",
        f"{file}: {log.extent}.{left}{traced}",
        file=file,
        extent=log.extent.code,
        unfinished=ended,
        score_p=trace,
    )
    return {"note": note, "log": log.text}


def _attempt(folder: Path, row: dict[str, Any]) -> Path | None:
    """The attempt that the row is made of, else the last one."""
    if not folder.is_dir():
        return None
    tried = {path.name: path for path in attempts(folder)}
    named = None if pd.isna(row["attempt"]) else tried.get(f"attempt-{row['attempt']}")
    return named or (list(tried.values())[-1] if tried else None)


def _record(folder: Path) -> Any:
    try:
        return _without_controls(read_json(folder / "record.json"))
    except (OSError, ValueError):
        return None


def _text(file: Path) -> str:
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


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """A row of runs.csv as far as it says something; factors that are at their place in the table of factors come with it."""
    return {name: _plain(value) for name, value in row.items() if not pd.isna(value)}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
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


def _decimals(values: pd.Series) -> int:
    """Decimals that give the median DIGITS digits."""
    middle = float(values.abs().median())
    return max(0, DIGITS - 1 - math.floor(math.log10(middle))) if middle > 0 else DIGITS - 1


def _curves(epochs: pd.DataFrame) -> dict[str, dict[str, list[Any]]]:
    """By run: epoch, how many of them are warm-up, and those of CURVES that it has."""
    there = [name for name in CURVES if epochs[name].notna().any()]
    values = {name: _shortened(epochs[name].to_numpy(float)) for name in there}
    number, warm_up = epochs["epoch"].to_numpy(int), epochs["warm_up"].to_numpy(bool)
    found = {}
    for run_id, rows in epochs.groupby("run_id", sort=False).indices.items():
        columns = {name: [values[name][row] for row in rows] for name in there}
        found[str(run_id)] = {
            "epoch": number[rows].tolist(),
            "warm_up": int(warm_up[rows].sum()),
            **{name: column for name, column in columns.items() if any(value is not None for value in column)},
        }
    return found


def _shortened(values: np.ndarray) -> list[float | None]:
    """Numbers of DETAIL_DIGITS digits; None for none."""
    return [float(f"{x:.{DETAIL_DIGITS}g}") if math.isfinite(x) else None for x in values.tolist()]
