"""Table `what_if`: traced steps replayed with one change, and how close that is to measured runs.

For every traced cell and question (traces.questions), the replay gives the time of a sample after the change
relative to before. The prediction is the geometric mean of this ratio over traced runs, times the untraced
epoch time of the cell, so the cost of tracing cancels. Collective benchmarks show which part of the message
time the links take (prediction.message_times), and cells on one device how computation grows with the batch
size (prediction.study_predictor).
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, intervals, tables
from analysis.cell_means import CellMeans, estimate_means
from analysis.intervals import Estimate
from analysis.level_words import cell_words
from analysis.records import cell_levels, read_runs, successful, timing_runs, traced, with_batch_numbers
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from declared.factors import factor_names
from declared.mesh import NOT_MESHES, PLAIN
from declared.models import find_graph
from prediction.inputs import has_layer_strategy, measured_cells, uses_mesh
from prediction.message_times import (
    CollectiveBenchmark,
    MessageTimeModel,
    benchmark_points,
    bucket_bytes,
    message_rule,
)
from prediction.study_predictor import StudyPredictor
from traces import questions
from traces.questions import Question, Retime
from traces.replay import Chain, Messages, build_chains

TITLE = "What if: epoch times predicted by a replay of traced steps, and measured ones"
# Changes in question if the study has no other level.
DEFAULT_CHANGES = {"links": 2.0, "accumulation": 4, "batch": 2.0}
CHANGED_FACTORS = ("bandwidth", "sync_every", "batch_size")  # Their levels answer questions.
TARGET_ERROR = 0.05
COLUMNS = [
    "cell", *CHANGED_FACTORS, "question", "change", "assumes", "runs", "steps", "replay_off", "step_s",
    "step_after_s", "ratio", "ratio_low", "ratio_high", "epoch_time_s", "predicted_s", "predicted_s_low",
    "predicted_s_high", "to_cell", "measured_s", "measured_s_low", "measured_s_high", "measured_ratio",
    "measured_ratio_low", "measured_ratio_high", "error",
]  # fmt: skip
PREDICTION_METHOD = (
    "Predicted: time of a sample in the replay relative to the trace, times the untraced epoch time. "
    "Intervals of predictions are over traced runs. They do not include the uncertainty of message times or "
    "of a question's assumptions."
)
EXCLUDED = (
    "Excluded, because they use model parallelism, or no kept step has the same number of all-reduces on all "
    "ranks: {}."
)
NO_TRACE = Note("no-trace", "No traced run of the study kept steps that can be replayed.")


@dataclass(frozen=True)
class TracedStudy:
    """A study's runs (all of them), collective benchmark and kept steps (replay_steps.csv)."""

    runs: pd.DataFrame
    benchmark: CollectiveBenchmark
    steps: pd.DataFrame

    @cached_property
    def timing_runs(self) -> pd.DataFrame:
        """The runs that epoch times are computed from."""
        return timing_runs(self.runs)

    @cached_property
    def cell_means(self) -> CellMeans:
        """The mean epoch times of cells."""
        return estimate_means(self.timing_runs)

    @cached_property
    def predictor(self) -> StudyPredictor:
        """The law of the study's cells; its cells on one device show how computation grows."""
        return StudyPredictor(measured_cells(self.timing_runs), self.benchmark)

    @cached_property
    def by_levels(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """A successful untraced run of each cell, by the levels of all factors except `trace`."""
        ok = successful(self.timing_runs).drop_duplicates("cell")
        return {_levels(row): row for row in ok.to_dict("records")}

    @cached_property
    def traced_runs(self) -> pd.DataFrame:
        """The successful traced runs with kept steps."""
        ok = successful(traced(self.runs))
        return ok[ok["run_id"].isin(self.steps["run_id"])]

    def cells(self) -> Iterator["TracedCell"]:
        """Yield the traced cells with kept steps that can be replayed, in the order of tables.

        These use pure data parallelism, and their ranks report the same number of all-reduces, or none.
        """
        steps_of_run = dict(iter(self.steps.groupby("run_id")))
        ok = self.traced_runs
        runs_of_cell = dict(iter(ok[~uses_mesh(ok) & ~has_layer_strategy(ok)].groupby("cell")))
        for runs in (runs_of_cell[cell] for cell in cell_levels(self.runs)["cell"] if cell in runs_of_cell):
            cell = TracedCell(self, runs.iloc[0].to_dict(), [steps_of_run[run] for run in runs["run_id"]])
            if cell.chains:
                yield cell

    def excluded_cells(self, rows: pd.DataFrame) -> list[str]:
        """Return the traced cells with kept steps that have no row in `rows` (`build_rows`)."""
        return [cell for cell in self.traced_runs["cell"].unique() if cell not in set(rows["cell"])]


def _levels(row: Mapping[str, Any], **changes: Any) -> tuple[Any, ...]:
    return tuple({**row, **changes}[name] for name in factor_names() if name != "trace")


@dataclass(frozen=True)
class TracedCell:
    """A traced cell: one of its runs, and the kept steps of each run."""

    study: TracedStudy
    row: Mapping[str, Any]
    steps: Sequence[pd.DataFrame]

    @cached_property
    def chains(self) -> list[list[Chain]]:
        """The kept steps of each run as chains, with messages slowed down by computation at the same time."""
        chains_of_runs = []
        for chains in filter(None, (build_chains(steps, self.alone) for steps in self.steps)):
            if self.message_times is not None:
                speed = questions.speed_during_computation(chains, self.alone)
                chains = [chain.slowed(speed) for chain in chains]
            chains_of_runs.append(chains)
        return chains_of_runs

    @property
    def message_times(self) -> MessageTimeModel | None:
        """The all-reduce times of its library; None on one node or without a collective benchmark."""
        if self.row["nodes"] < 2:
            return None
        return self.study.benchmark.model((self.row["framework"], self.row["device"]))

    @property
    def rate(self) -> float:
        """The link rate in bytes/s; NaN if unknown."""
        return float(self.row["bandwidth_bytes_s"]) if pd.notna(self.row["bandwidth_bytes_s"]) else np.nan

    def sizes(self, count: int) -> np.ndarray:
        """Return bytes of each of `count` messages of an all-reduce: the library's buckets or equal parts."""
        graph = find_graph(self.row["model"], self.row["dataset"])
        if graph is None:
            return np.ones(count)
        sizes = bucket_bytes(graph, message_rule(self.row["framework"]))
        return sizes if len(sizes) == count else np.full(count, graph.gradient_bytes / max(count, 1))

    def messages(self, model: MessageTimeModel, sizes: np.ndarray, rate: float) -> Messages:
        """Return the times of messages of these sizes."""
        scale = (float(self.row["nodes"]), float(self.row["ranks"]), rate)
        return Messages(*model.times(sizes, *(np.full(len(sizes), value) for value in scale)))

    def alone(self, count: int) -> Messages:
        """Return the times of single messages, `count` of them; without a benchmark, their sizes instead."""
        sizes = self.sizes(count)
        if self.message_times is None:
            return Messages(np.zeros(count), sizes)
        return self.messages(self.message_times, sizes, self.rate)

    @property
    def every_chain(self) -> list[Chain]:
        """The chains of all runs."""
        return [chain for chains in self.chains for chain in chains]

    @property
    def max_allreduces_in_step(self) -> int:
        """The largest number of all-reduces in a step."""
        return max((len(step.allreduces) for chain in self.every_chain for step in chain.steps), default=0)

    def by_links(self, faster: float) -> Retime:
        """Return message times with faster links; without a known rate, links take all time of bytes."""
        if self.message_times is None:
            return questions.scale_moving(1 / faster)
        model = self.message_times
        if np.isnan(self.rate):
            model = replace(model, cost_s=model.cost_s / faster)
        count, is_cpu = self.max_allreduces_in_step, self.row["devices"] == "cpu"
        after = self.messages(model, self.sizes(count), self.rate * faster)
        return questions.retime_by_law(self.alone(count), after, limited_by_processors=is_cpu)

    def by_bytes(self, share: float) -> Retime:
        """Return message times with this share of the bytes."""
        if self.message_times is None:
            return questions.scale_moving(share)
        count = self.max_allreduces_in_step
        after = self.messages(self.message_times, share * self.sizes(count), self.rate)
        return questions.retime_by_law(self.alone(count), after)

    @cached_property
    def computed_s(self) -> Callable[[float], float] | None:
        """The time of a batch and its update on one device by batch size, or None if not measured.

        It was measured with the framework, or else with its baseline.
        """
        level = self.row["parallelism"]
        row = {**self.row, "lbann_layout": level if level in NOT_MESHES else PLAIN}
        fixed_s, sample_s, update_s = self.study.predictor.fit_device_computation(row)
        return None if np.isnan(sample_s) else lambda size: float(fixed_s + sample_s * size + update_s)

    def growth(self, times: float) -> tuple[float, bool]:
        """Return how computation grows with a batch `times` as large, and whether that was measured."""
        local_batch = self.row["local_batch"]
        if self.computed_s is None or not self.computed_s(0):
            return times, False
        return self.computed_s(times * local_batch) / self.computed_s(local_batch), True

    def questions(self) -> Iterator[Question]:
        """Yield the questions: how the study's other levels would do, or else DEFAULT_CHANGES."""
        row, tried = self.row, {name: self._cells_with_other_level(name) for name in CHANGED_FACTORS}
        if self.max_allreduces_in_step:
            if row["placement"] != "emulated" and row["nodes"] > 1:
                links = tried["bandwidth"].items()
                rates = {changed["bandwidth_bytes_s"] / self.rate: level for level, changed in links}
                for faster in sorted({DEFAULT_CHANGES["links"], *rates}):
                    level = rates.get(faster)
                    yield questions.links(faster, self.by_links(faster), factor="bandwidth", level=level)
            yield questions.half_the_bytes(self.by_bytes(0.5))
            yield questions.hidden()
            if row["sync_every"] == 1:
                batch_s = self.computed_s and self.computed_s(row["local_batch"])
                for level in sorted(tried["sync_every"]) or [None]:
                    every = int(level or DEFAULT_CHANGES["accumulation"])
                    chains = self.every_chain
                    yield questions.accumulated(every, batch_s, chains, factor="sync_every", level=level)
        for level in sorted(tried["batch_size"]) or [None]:
            times = level / row["batch_size"] if level else DEFAULT_CHANGES["batch"]
            yield questions.batch(times, *self.growth(times), factor="batch_size", level=level)
        if row["ranks"] > 1:
            yield questions.balanced(self.every_chain)
        yield questions.no_data()

    def _cells_with_other_level(self, name: str) -> dict[Any, dict[str, Any]]:
        """Return a run of each cell that differs in this factor alone, by its level."""
        levels = {row[name] for row in self.study.by_levels.values()} - {self.row[name]}
        cells = {level: _levels(self.row, **{name: level}) for level in levels}
        by_levels = self.study.by_levels
        return {level: by_levels[cell] for level, cell in cells.items() if cell in by_levels}

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield a row of the table for each question."""
        base = self.study.by_levels.get(_levels(self.row))
        untraced = self.study.cell_means.cell_mean(base["cell"]) if base else Estimate(np.nan)
        all_chains = self.every_chain
        steps = sum(len(chain.steps) for chain in all_chains)
        step_s = sum(chain.measured_s for chain in all_chains) / steps
        cell_columns = {
            "cell": self.row["cell"], **{name: self.row[name] for name in CHANGED_FACTORS},
            "runs": len(self.chains), "steps": steps, "step_s": step_s,
            "replay_off": max(abs(chain.seconds() / chain.measured_s - 1) for chain in all_chains),
            "epoch_time_s": untraced.value,
        }  # fmt: skip
        for question in self.questions():
            ratio = _geometric_mean([question.ratio(chains) for chains in self.chains])
            if math.isnan(ratio.value):
                continue  # Accumulation needs more kept steps than there are.
            yield {
                **cell_columns, "question": question.name, "change": question.text,
                "assumes": question.assumes, "step_after_s": step_s * ratio.value * question.samples,
                **intervals.columns("ratio", ratio),
                **intervals.columns("predicted_s", _product(untraced, ratio)),
                **self._experiment(question, base, _product(untraced, ratio).value),
            }  # fmt: skip

    def _experiment(
        self, question: Question, base: Mapping[str, Any] | None, predicted_s: float
    ) -> dict[str, Any]:
        """Return what the study measured for the changed cell, {} if it has none."""
        if not (question.factor and question.level and base):
            return {}
        row = self.study.by_levels[_levels(self.row, **{question.factor: question.level})]
        measured = self.study.cell_means.cell_mean(row["cell"])
        ratio = self.study.cell_means.ratios([row["cell"]], [base["cell"]]).iloc[0]
        return {
            "to_cell": row["cell"], **intervals.columns("measured_s", measured),
            **intervals.columns("measured_ratio", Estimate(ratio["value"], ratio["low"], ratio["high"])),
            "error": predicted_s / measured.value - 1,
        }  # fmt: skip


def _geometric_mean(ratios: Sequence[float]) -> Estimate:
    """Return the geometric mean over runs with its t interval on the log scale."""
    log_mean = intervals.mean(list(np.log(ratios)))
    value, low, high = (float(np.exp(bound)) for bound in (log_mean.value, log_mean.low, log_mean.high))
    return Estimate(value, low, high, log_mean.n)


def _product(first: Estimate, second: Estimate) -> Estimate:
    """Return the product of two independent estimates; relative widths of their intervals add as squares."""
    value = first.value * second.value
    below, above = (
        math.hypot(*(math.log(getattr(factor, end) / factor.value) for factor in (first, second)))
        for end in ("low", "high")
    )
    return Estimate(value, value * math.exp(-below), value * math.exp(above), min(first.n, second.n))


def build_rows(study: TracedStudy) -> pd.DataFrame:
    """Return a row for each traced cell and question, with COLUMNS."""
    if study.steps.empty:
        return pd.DataFrame(columns=COLUMNS)
    return pd.DataFrame([row for cell in study.cells() for row in cell.answers()]).reindex(columns=COLUMNS)


def in_order(rows: pd.DataFrame) -> list[str]:
    """Return the changes of all cells, grouped by question."""
    changes = rows.drop_duplicates("change")
    order = changes["question"].map(questions.NAMES.index)
    return changes.loc[order.sort_values(kind="stable").index, "change"].tolist()


def gain(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the saved time in per cent of the time before, from a column of ratios: value, low, high."""
    ends = {"value": name, "low": f"{name}_high", "high": f"{name}_low"}
    return pd.DataFrame({part: 100 * (1 - rows[column].astype(float)) for part, column in ends.items()})


def table(rows: pd.DataFrame, study: TracedStudy) -> tables.Table:
    """Return the table of `build_rows`."""
    runs = study.runs
    words = cell_words(traced(runs), exclude=["trace"])
    excluded = study.excluded_cells(rows)
    text = EXCLUDED.format("; ".join(words[cell] for cell in excluded))
    note_list: list[str] = [Note("cells-left-out", text, cells=excluded)] if excluded else []
    note_list += filter(None, [conditions.traced_runs_without_phases(runs)])
    if rows.empty:
        all_notes = [NO_TRACE, *note_list, conditions.measurement_note(timing_runs(runs))]
        return tables.Table(TITLE, rows, rows[["cell", "change"]], all_notes)
    predicted, measured = gain(rows, "ratio"), gain(rows, "measured_ratio")
    columns: dict[str, Any] = {}
    if rows["cell"].nunique() > 1:
        columns["cell"] = rows["cell"].map(words)
    columns["what if"] = rows["change"]
    columns["predicted (s)"] = tables.interval_texts(rows, "predicted_s")
    columns["saves (%)"] = [tables.interval(Estimate(*row)) for row in predicted.itertuples(index=False)]
    if rows["to_cell"].notna().any():
        columns["measured (s)"] = tables.interval_texts(rows, "measured_s")
        columns["saved (%)"] = [tables.interval(Estimate(*row)) for row in measured.itertuples(index=False)]
        columns["error (%)"] = rows["error"].astype(float).map(_signed_percent)
    cell_starts = rows.index[rows["cell"] != rows["cell"].shift()].tolist()
    all_notes = [*notes(rows), *note_list, conditions.measurement_note(timing_runs(runs))]
    return tables.Table(TITLE, rows, pd.DataFrame(columns), all_notes, ["cell", "what if"], cell_starts[1:])


def _signed_percent(share: float) -> str:
    """Return a share in per cent with its sign."""
    return tables.DASH if pd.isna(share) else f"{round(100 * share, 1) + 0.0:+.1f}".replace("-", "−")


def notes(rows: pd.DataFrame) -> list[str]:
    """Return notes on the predictions, their errors and their assumptions."""
    assumed = {str(row.change): row.assumes for row in rows.itertuples()}
    change_texts = dict.fromkeys(f"{row.change}: {row.assumes}" for row in rows.itertuples())
    replay_error = rows["replay_off"].max()
    exact = f"Replayed without a change, steps take their measured time within {100 * replay_error:.2g} %."
    return [
        _error_note(rows["error"].dropna().astype(float)),
        Note(
            "predicted",
            f"{PREDICTION_METHOD} Intervals of predicted times include that of the untraced time.",
        ),
        Note("replay-off", exact, share=replay_error),
        Note("assumed", f"Assumed: {'; '.join(change_texts)}.", assumed=assumed),
    ]


def _error_note(errors: pd.Series) -> Note:
    """Return a note on the errors of predictions that the study measured."""
    if errors.empty:
        text = (
            "The study has no cell that differs from a traced one in link rate, accumulation or batch size "
            "alone."
        )
        return Note("nothing-measured", text)
    worst, within = float(errors[errors.abs().idxmax()]), int((errors.abs() <= TARGET_ERROR).sum())
    text = (
        f"Mean absolute error of the {len(errors)} predictions that the study measured: "
        f"{100 * errors.abs().mean():.1f} %, the largest {_signed_percent(worst)} %; {within} within "
        f"{100 * TARGET_ERROR:g} %."
    )
    return Note("errors", text, predictions=len(errors), mean=errors.abs().mean(), worst=worst, within=within)


def main(*, runs: Path, network: Path | None = None, replay_steps: Path, out: Path) -> None:
    """Replay the kept steps of a study, and write the table.

    Args:
        runs: runs.csv of the study
        network: network.csv, if there is a collective benchmark
        replay_steps: replay_steps.csv of the study
        out: files to write, without their suffix
    """
    measured = with_batch_numbers(read_runs(runs))
    largest = max(measured_cells(measured)["gradient_bytes"].max(), 0.0)
    benchmark = (
        CollectiveBenchmark(benchmark_points(read_table(network, "network")), largest)
        if network
        else CollectiveBenchmark()
    )
    study = TracedStudy(measured, benchmark, read_table(replay_steps, "replay_steps"))
    tables.write(table(build_rows(study), study), out)


if __name__ == "__main__":
    sys.exit(run_program(main))
