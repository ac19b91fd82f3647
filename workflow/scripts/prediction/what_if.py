"""What if: traced steps replayed with one thing changed, and how far that is from experiment where the study has one, as a table.

For every traced cell and question (traces.questions) the replay says what share of its time a sample takes after the change. The mean over
traced runs, on the log scale, times the untraced epoch time of the same cell is the prediction: so what tracing costs drops out. The network's
sweeps say which part of moving bytes is the links' (prediction.law), cells on one replica by how much work grows with a batch
(prediction.physics).
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
from analysis.intervals import Estimate
from analysis.measured import cell_words, cells, factors, read_runs, successful, timed, traced
from analysis.pooling import Pooling, pooled
from common.notes import Note
from common.options import run_program
from common.schemas import schema
from common.tables import read_table
from prediction import exchange, law, physics
from prediction.law import Law
from traces import questions
from traces.questions import Question, Retime
from traces.replay import Chain, Messages, chains

TITLE = "What if: epoch times predicted by a replay of traced steps, and measured ones"
ASKED = {"links": 2.0, "accumulation": 4, "batch": 2.0}  # where the study has no other level
TRIED = ("bandwidth", "sync_every", "batch_size")  # factors whose other levels answer questions
AIM = 0.05  # of an error
COLUMNS = [
    "cell", *TRIED, "question", "change", "assumes", "runs", "steps", "replay_off", "step_s", "step_after_s", "ratio", "ratio_low",
    "ratio_high", "epoch_time_s", "predicted_s", "predicted_s_low", "predicted_s_high", "to_cell", "measured_s", "measured_s_low",
    "measured_s_high", "measured_ratio", "measured_ratio_low", "measured_ratio_high", "error",
]  # fmt: skip
HOW = (
    "Predicted: the share of its time that a sample of a traced run takes in the replay, times the untraced epoch time. Intervals of predictions "
    "are over traced runs; neither the network's law nor what a question assumes is in them."
)
UNLIKE = "Left out, since ranks divide more than samples, or of no kept step all told the same number of exchanges: {}."
NO_TRACE = Note("no-trace", "No traced run of the study kept steps that can be replayed.")


@dataclass(frozen=True)
class Study:
    """A study's runs (all of them), sweeps (`law.points`) and kept steps (replay_steps.csv)."""

    runs: pd.DataFrame
    sweeps: pd.DataFrame
    steps: pd.DataFrame

    @cached_property
    def timed(self) -> pd.DataFrame:
        """The runs that epoch times are of."""
        return timed(self.runs)

    @cached_property
    def pooling(self) -> Pooling:
        """Their epoch times."""
        return pooled(self.timed)

    @cached_property
    def known(self) -> physics.Physics:
        """What one replica and the sweeps say."""
        return physics.plain(physics.prepared(self.timed), self.sweeps)

    @cached_property
    def by_levels(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Levels of all factors but `trace` -> a successful run of the cell that has them."""
        ok = successful(self.timed).drop_duplicates("cell")
        return {_levels(row): row for row in ok.to_dict("records")}

    def cells(self) -> Iterator["Cell"]:
        """The traced cells of which steps were kept that can be replayed (ranks divide samples alone, and tell as many exchanges, or
        none), in the order of tables."""
        kept = dict(iter(self.steps.groupby("run_id")))
        ok = successful(traced(self.runs))
        ok = ok[~physics.is_mesh(ok) & ~physics.of_strategies(ok)]
        of_cell = dict(iter(ok[ok["run_id"].isin(kept)].groupby("cell")))
        for runs in (of_cell[cell] for cell in cells(self.runs)["cell"] if cell in of_cell):
            row = runs.iloc[0].to_dict()
            made = Cell(self, row, {})
            chains = {run: made.of_run(kept[run]) for run in runs["run_id"]}
            if any(chains.values()):
                yield replace(made, chains={run: own for run, own in chains.items() if own})

    def left_out(self, rows: pd.DataFrame) -> list[str]:
        """The traced cells of which steps were kept, but that have no row in `rows` (`predict`)."""
        ok = successful(traced(self.runs))
        there = dict.fromkeys(ok.loc[ok["run_id"].isin(set(self.steps["run_id"])), "cell"])
        return [cell for cell in there if cell not in set(rows["cell"])]


def _levels(row: Mapping[str, Any], **other: Any) -> tuple[Any, ...]:
    return tuple({**row, **other}[name] for name in factors() if name != "trace")


@dataclass(frozen=True)
class Cell:
    """A traced cell: one of its runs, and of each the steps that are replayed."""

    study: Study
    row: Mapping[str, Any]
    chains: Mapping[str, Sequence[Chain]]

    @property
    def law(self) -> Law | None:
        """The network's law of its library; None where its nodes were not swept."""
        if self.row["nodes"] < 2:
            return None
        return self.study.known.law((self.row["framework"], self.row["device"]))

    @property
    def rate(self) -> float:
        """Of its links, bytes/s; NaN where it is not known."""
        return float(self.row["bandwidth_bytes_s"]) if pd.notna(self.row["bandwidth_bytes_s"]) else np.nan

    def sizes(self, count: int) -> np.ndarray:
        """Bytes of each of so many messages of an exchange: as the library makes them of tensors; of any other number of them alike."""
        gradients = self.study.known.gradients.get((self.row["model"], self.row["dataset"]))
        if gradients is None:
            return np.ones(count)
        rule = exchange.rule_of(self.row["framework"])
        made = exchange.buckets(gradients, rule.limits_bytes).bytes
        return made if len(made) == count else np.full(count, gradients.total_bytes / max(count, 1))

    def messages(self, network: Law, sizes: np.ndarray, rate: float) -> Messages:
        """What messages of these sizes take by a law."""
        nodes, ranks = (np.full(len(sizes), float(self.row[name])) for name in ("nodes", "ranks"))
        here = network.at(nodes, ranks, np.full(len(sizes), rate))
        return Messages(here.seconds(sizes), here.occupied(sizes))

    def alone(self, count: int) -> Messages:
        """What each of so many exchanges of a step would take alone; without a law their sizes share the network."""
        sizes = self.sizes(count)
        if self.law is None:
            return Messages(np.zeros(count), sizes)
        return self.messages(self.law, sizes, self.rate)

    def of_run(self, steps: pd.DataFrame) -> list[Chain]:
        """The kept steps of a run as chains, whose exchanges get on beside computing as fast as the law says that they did."""
        made = chains(steps, self.alone)
        if self.law is None:
            return made
        beside = questions.speed_beside(made, self.alone)
        return [chain.slowed(beside) for chain in made]

    @property
    def every_chain(self) -> list[Chain]:
        """Those of all runs."""
        return [chain for own in self.chains.values() for chain in own]

    @property
    def exchanges(self) -> int:
        """The most exchanges that a step has."""
        return max((len(step.exchanges) for chain in self.every_chain for step in chain.steps), default=0)

    def by_links(self, faster: float) -> Retime:
        """Moving times with links `faster` times as fast; of a rate that is not known, all time of bytes is the links'."""
        if self.law is None:
            return questions.scaled(1 / faster)
        other = replace(self.law, cost_s=self.law.cost_s / faster) if np.isnan(self.rate) else self.law
        after = self.messages(other, self.sizes(self.exchanges), self.rate * faster)
        return questions.by_law(self.alone(self.exchanges), after, beside=self.row["devices"] == "cpu")

    def by_bytes(self, share: float) -> Retime:
        """Moving times with a `share` of the bytes."""
        if self.law is None:
            return questions.scaled(share)
        after = self.messages(self.law, share * self.sizes(self.exchanges), self.rate)
        return questions.by_law(self.alone(self.exchanges), after)

    @cached_property
    def computed_s(self) -> Callable[[float], float] | None:
        """Batch size -> seconds of a batch and its update on one replica, by cells of its own or of its base; None without any."""
        made, here = self.study.known, self.row
        levels = tuple(here[name] for name in made.keys)
        for framework in (here["framework"], here["base"]):
            if (framework, *levels) in made.computation:
                alpha, beta, update = made.computation[(framework, *levels)]
                return lambda size: float(alpha + beta * size + update)
        return None

    def growth(self, times: float) -> tuple[float, bool]:
        """By how much work grows with a batch `times` as large, and whether cells on one replica of other batches say so."""
        own = self.row["local_batch"]
        if self.computed_s is None or not self.computed_s(0):
            return times, False
        return self.computed_s(times * own) / self.computed_s(own), True

    def questions(self) -> Iterator[Question]:
        """What is asked of it: the levels that the study has, or the usual ones; nothing of links that are none."""
        own, tried = self.row, {name: self._others(name) for name in TRIED}
        if self.exchanges:
            if own["placement"] != "emulated" and own["nodes"] > 1:
                rates = {row["bandwidth_bytes_s"] / self.rate: level for level, row in tried["bandwidth"].items()}
                for faster in sorted({ASKED["links"], *rates}):
                    yield questions.links(faster, self.by_links(faster), **_answer("bandwidth", rates.get(faster)))
            yield questions.half_the_bytes(self.by_bytes(0.5))
            yield questions.hidden()
            if own["sync_every"] == 1:
                batch_s = self.computed_s and self.computed_s(own["local_batch"])
                for every, level in (
                    {every: every for every in sorted(tried["sync_every"])} or {ASKED["accumulation"]: None}
                ).items():
                    yield questions.accumulated(int(every), batch_s, self.every_chain, **_answer("sync_every", level))
        times = {level / own["batch_size"]: level for level in tried["batch_size"]} or {ASKED["batch"]: None}
        for factor, level in sorted(times.items()):
            yield questions.batch(factor, *self.growth(factor), **_answer("batch_size", level))
        if own["ranks"] > 1:
            yield questions.balanced(self.every_chain)
        yield questions.no_data()

    def _others(self, name: str) -> dict[Any, dict[str, Any]]:
        """The cells that differ from it in this factor alone: level -> a run."""
        levels = {row[name] for row in self.study.by_levels.values()} - {self.row[name]}
        found = {level: self.study.by_levels.get(_levels(self.row, **{name: level})) for level in levels}
        return {level: row for level, row in found.items() if row is not None}

    def answers(self) -> Iterator[dict[str, Any]]:
        """A row of the table for each question."""
        base = self.study.by_levels.get(_levels(self.row))
        own = self.study.pooling.cell_mean(base["cell"]) if base else Estimate(np.nan)
        every = self.every_chain
        steps = sum(len(chain.steps) for chain in every)
        step_s = sum(chain.measured_s for chain in every) / steps
        head = {
            "cell": self.row["cell"], **{name: self.row[name] for name in TRIED}, "runs": len(self.chains), "steps": steps, "step_s": step_s,
            "replay_off": max(abs(chain.seconds() / chain.measured_s - 1) for chain in every), "epoch_time_s": own.value,
        }  # fmt: skip
        for question in self.questions():
            ratios = [question.ratio(chains) for chains in self.chains.values()]
            if all(math.isnan(one) for one in ratios):
                continue  # fewer steps were kept than would be accumulated
            ratio = _geometric([one for one in ratios if not math.isnan(one)])
            yield {
                **head, "question": question.name, "change": question.text, "assumes": question.assumes,
                "step_after_s": step_s * ratio.value * question.samples, **intervals.columns("ratio", ratio),
                **intervals.columns("predicted_s", _product(own, ratio)), **self._experiment(question, base, _product(own, ratio).value),
            }  # fmt: skip

    def _experiment(self, question: Question, base: Mapping[str, Any] | None, predicted_s: float) -> dict[str, Any]:
        """What the study measured, where it has the cell."""
        if question.factor is None or base is None:
            return {}
        row = self.study.by_levels[_levels(self.row, **{question.factor: question.level})]
        measured = self.study.pooling.cell_mean(row["cell"])
        ratio = self.study.pooling.ratios([row["cell"]], [base["cell"]]).iloc[0]
        return {
            "to_cell": row["cell"], **intervals.columns("measured_s", measured),
            **intervals.columns("measured_ratio", Estimate(ratio["value"], ratio["low"], ratio["high"])),
            "error": predicted_s / measured.value - 1,
        }  # fmt: skip


def _answer(factor: str, level: Any) -> dict[str, Any]:
    return {} if level is None else {"factor": factor, "level": level}


def _geometric(ratios: Sequence[float]) -> Estimate:
    """Geometric mean over runs with its t interval on the log scale."""
    found = intervals.mean(list(np.log(ratios)))
    value, low, high = (float(np.exp(part)) for part in (found.value, found.low, found.high))
    return Estimate(value, low, high, found.n)


def _product(one: Estimate, other: Estimate) -> Estimate:
    """The product of two independent numbers; its interval by the widths of theirs on the log scale, added as squares."""
    value = one.value * other.value
    below, above = (
        math.hypot(*(math.log(getattr(each, end) / each.value) for each in (one, other))) for end in ("low", "high")
    )
    return Estimate(value, value * math.exp(-below), value * math.exp(above), min(one.n, other.n))


def predict(study: Study) -> pd.DataFrame:
    """A row per traced cell and question: COLUMNS."""
    if study.steps.empty:
        return pd.DataFrame(columns=COLUMNS)
    return pd.DataFrame([row for cell in study.cells() for row in cell.answers()]).reindex(columns=COLUMNS)


def in_order(rows: pd.DataFrame) -> list[str]:
    """The changes of all cells, those that ask for the same thing beside each other."""
    asked = rows.drop_duplicates("change").set_index("change")["question"]
    return sorted(asked.index, key=lambda change: questions.NAMES.index(asked[change]))


def gain(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Time that is saved, in per cent of that before: value, low, high of a column of ratios."""
    ends = {"value": name, "low": f"{name}_high", "high": f"{name}_low"}
    return pd.DataFrame({part: 100 * (1 - rows[column].astype(float)) for part, column in ends.items()})


def table(rows: pd.DataFrame, study: Study) -> tables.Table:
    """The table of `predict`."""
    runs = study.runs
    words = cell_words(traced(runs), but=["trace"])
    unlike = study.left_out(rows)
    text = UNLIKE.format("; ".join(words[cell] for cell in unlike))
    left: list[str] = [Note("cells-left-out", text, cells=unlike)] if unlike else []
    left += filter(None, [conditions.traced_runs_without_phases(runs)])
    if rows.empty:
        said = [NO_TRACE, *left, conditions.setting_note(timed(runs))]
        return tables.Table(TITLE, rows, rows[["cell", "change"]], said)
    predicted, measured = gain(rows, "ratio"), gain(rows, "measured_ratio")
    shown: dict[str, Any] = {}
    if rows["cell"].nunique() > 1:
        shown["cell"] = rows["cell"].map(words)
    shown["what if"] = rows["change"]
    shown["predicted (s)"] = _shown(rows, "predicted_s")
    shown["saves (%)"] = [tables.interval(Estimate(*row)) for row in predicted.itertuples(index=False)]
    tried = rows["to_cell"].notna()
    if tried.any():
        shown["measured (s)"] = [
            text if here else tables.DASH for text, here in zip(_shown(rows, "measured_s"), tried, strict=True)
        ]
        saved = [tables.interval(Estimate(*row)) for row in measured.itertuples(index=False)]
        shown["saved (%)"] = [text if here else tables.DASH for text, here in zip(saved, tried, strict=True)]
        shown["error (%)"] = [
            _signed(error) if pd.notna(error) else tables.DASH for error in rows["error"].astype(float)
        ]
    firsts = rows.index[rows["cell"] != rows["cell"].shift()].tolist()
    said = [*notes(rows), *left, conditions.setting_note(timed(runs))]
    return tables.Table(TITLE, rows, pd.DataFrame(shown), said, ["cell", "what if"], firsts[1:])


def _signed(share: float) -> str:
    """A share in per cent, with its sign."""
    return f"{round(100 * share, 1) + 0.0:+.1f}".replace("-", "−")


def _shown(rows: pd.DataFrame, name: str) -> list[str]:
    parts = rows[[name, f"{name}_low", f"{name}_high"]].astype(float)
    return [tables.interval(Estimate(*row)) for row in parts.itertuples(index=False)]


def notes(rows: pd.DataFrame) -> list[str]:
    """What the numbers are, and what is assumed."""
    assumed = {str(row.change): row.assumes for row in rows.itertuples()}
    each = dict.fromkeys(f"{row.change}: {row.assumes}" for row in rows.itertuples())
    off = rows["replay_off"].max()
    exact = f"Played with nothing changed, steps take their measured time to {100 * off:.2g} %."
    return [
        _errors(rows["error"].dropna().astype(float)),
        Note("predicted", f"{HOW} Those of predicted times include the untraced time's."),
        Note("replay-off", exact, share=off),
        Note("assumed", f"Assumed: {'; '.join(each)}.", assumed=assumed),
    ]


def _errors(errors: pd.Series) -> Note:
    """How far predictions are off, where the study measured what they are of."""
    if errors.empty:
        text = "The study has no cell that differs from a traced one in link rate, accumulation or batch size alone."
        return Note("nothing-measured", text)
    worst, within = float(errors[errors.abs().idxmax()]), int((errors.abs() <= AIM).sum())
    text = (
        f"Mean absolute error of the {len(errors)} predictions that the study measured: {100 * errors.abs().mean():.1f} %, the largest "
        f"{_signed(worst)} %; {within} within {100 * AIM:g} %."
    )
    return Note("errors", text, predictions=len(errors), mean=errors.abs().mean(), worst=worst, within=within)


def main(*, runs: Path, network: Path | None = None, replay_steps: Path, out: Path) -> None:
    """Replay the kept steps of a study, and write the table.

    Args:
        runs: runs.csv of the study
        network: network.csv, where the network was swept
        replay_steps: replay_steps.csv of the study
        out: files to write, without their suffix
    """
    measured = read_runs(runs)
    sweeps = law.points(read_table(network, "network")) if network else law.points(_no_sweep())
    study = Study(measured, sweeps, read_table(replay_steps, "replay_steps"))
    tables.write(table(predict(study), study), out)


def _no_sweep() -> pd.DataFrame:
    return pd.DataFrame(columns=list(schema("network")["properties"]))


if __name__ == "__main__":
    sys.exit(run_program(main))
