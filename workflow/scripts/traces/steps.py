"""Sum up one traced run: its phases, its communication, and the critical path through its steps.

A rank is in one phase of a step at a time, while all-reduces go on in parallel (ranks.worker.phases).
Computation is every phase of a step except `wait`. A rank's communication is the union of its all-reduces.
The part without computation on the same rank is exposed. The k-th all-reduce of a step is the same on all
ranks: bytes move once the last rank has started it, and until then the others wait.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ranks.worker.phases import COMMUNICATION
from runs.phases import WAIT
from traces.intervals import Cover, Intervals

SHOWN_STEPS = 5  # in trace_steps.csv, of a typical run


@dataclass(frozen=True)
class Traced:
    """One traced run.

    Attributes:
        intervals: Intervals of timeline.read_intervals.
        warm_up: Number of warm-up epochs.
        steps: Steps of an epoch.
    """

    intervals: pd.DataFrame
    warm_up: int
    steps: int

    @cached_property
    def phases(self) -> pd.DataFrame:
        """The phases of traced steps of timed epochs, with `length` in s and `place`, a row of `numbers`."""
        return self._with_places(self.intervals["phase"] != COMMUNICATION)

    @cached_property
    def allreduces(self) -> pd.DataFrame:
        """The all-reduces of these steps, in the form of `phases`, by rank, step and start.

        `turn` numbers the all-reduces of a rank's step from 0. `moves` is when the last rank starts it, in s.
        """
        allreduces = self._with_places(self.intervals["phase"] == COMMUNICATION).sort_values(
            ["rank", "place", "start"], kind="stable"
        )
        allreduces["turn"] = allreduces.groupby(["rank", "place"]).cumcount()
        allreduces["moves"] = allreduces.groupby(["place", "turn"])["start"].transform("max")
        return allreduces

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """Epoch and step of every traced step of a timed epoch, in order."""
        of_steps = self.intervals[self._is_timed_step & (self.intervals["phase"] != COMMUNICATION)]
        return (
            of_steps[["epoch", "step"]]
            .drop_duplicates()
            .sort_values(["epoch", "step"])
            .reset_index(drop=True)
        )

    @cached_property
    def ranks(self) -> np.ndarray:
        """The ranks, [ranks]."""
        return np.unique(self.intervals["rank"].to_numpy())

    @cached_property
    def _is_timed_step(self) -> pd.Series:
        return (self.intervals["step"] > 0) & (self.intervals["epoch"] > self.warm_up)

    def _with_places(self, selected: pd.Series) -> pd.DataFrame:
        rows = self.intervals[self._is_timed_step & selected]
        keys = pd.MultiIndex.from_frame(self.numbers)
        place = keys.get_indexer(pd.MultiIndex.from_frame(rows[["epoch", "step"]]))
        return rows.assign(place=place, length=rows["end"] - rows["start"])[place >= 0]

    @cached_property
    def step_times(self) -> pd.DataFrame:
        """Start, end and sum of phases of every step of every rank: place, rank, start, end, sum."""
        by = self.phases.groupby(["place", "rank"])
        return by.agg(start=("start", "min"), end=("end", "max"), sum=("length", "sum")).reset_index()

    def rows(self) -> pd.DataFrame:
        """Return the run's rows of phases.csv: rank, scope, phase, count, step_s, seconds."""
        intervals, is_outside = self.intervals, self.intervals["step"] == 0
        around = intervals[
            is_outside & (intervals["epoch"] > self.warm_up) & (intervals["phase"] != COMMUNICATION)
        ]
        n_epochs = intervals.loc[is_outside & (intervals["epoch"] > self.warm_up), "epoch"].nunique()
        parts = [
            self._sum_phases(intervals[intervals["epoch"] == 0], "start", 1),
            self._step_rows(),
            self._sum_phases(around, "epoch", max(1, n_epochs)),
        ]
        if len(self.allreduces):
            parts.append(self._communication_rows())
        if len(self.numbers):
            parts.append(self.path())
        return pd.concat(parts, ignore_index=True)

    def _sum_phases(self, rows: pd.DataFrame, scope: str, n_epochs: int) -> pd.DataFrame:
        lengths = rows.assign(seconds=(rows["end"] - rows["start"]) / n_epochs)
        groups = lengths.groupby(["rank", "phase"], observed=True)["seconds"]
        sums = groups.agg(seconds="sum", count="size").reset_index().astype({"phase": str})
        return sums.assign(scope=scope, step_s=np.nan, count=sums["count"] / n_epochs)

    def _step_rows(self) -> pd.DataFrame:
        groups = self.phases.groupby(["rank", "phase"], observed=True)["length"]
        sums = groups.agg(["sum", "size"]).reset_index().astype({"phase": str})
        number = sums["rank"].map(self.phases.groupby("rank")["place"].nunique())
        return self._per_step(
            sums["rank"], sums["phase"], sums["sum"] / number, sums["size"] / number, "step"
        )

    def _per_step(
        self, rank: pd.Series, phase: pd.Series, step_s: pd.Series, count: pd.Series | float, scope: str
    ) -> pd.DataFrame:
        data = {"rank": rank, "scope": scope, "phase": phase, "count": count, "step_s": step_s}
        return pd.DataFrame({**data, "seconds": step_s * self.steps})

    @cached_property
    def by_step(self) -> dict[str, np.ndarray]:
        """Seconds of every rank in every step, [ranks, steps], by part of communication.

        The parts are communication, moving, waiting, exposed, exposed_moving and exposed_waiting.
        """
        allreduces, steps = self.allreduces, len(self.numbers)
        group = np.searchsorted(self.ranks, allreduces["rank"]) * steps + allreduces["place"].to_numpy()
        start, end, moves = (allreduces[name].to_numpy() for name in ("start", "end", "moves"))
        communication = Intervals(group, start, end).union()
        moving = Intervals(group, np.maximum(start, moves), end).union()
        size = steps * len(self.ranks)
        seconds = {"communication": communication.seconds(size), "moving": moving.seconds(size)}
        seconds["exposed"] = seconds["communication"] - self._overlapped_s(communication, size)
        seconds["exposed_moving"] = seconds["moving"] - self._overlapped_s(moving, size)
        seconds["waiting"] = seconds["communication"] - seconds["moving"]
        seconds["exposed_waiting"] = seconds["exposed"] - seconds["exposed_moving"]
        return {
            name: np.maximum(values, 0.0).reshape(len(self.ranks), steps) for name, values in seconds.items()
        }

    def _overlapped_s(self, union: Intervals, groups: int) -> np.ndarray:
        """Return the seconds of a union during which the same rank computes, in any step, [groups]."""
        covered, steps = np.zeros(len(union.group)), len(self.numbers)
        for position, rank in enumerate(self.ranks):
            is_computing = (self.phases["rank"] == rank).to_numpy() & (
                self.phases["phase"] != WAIT
            ).to_numpy()
            cover = Cover.from_intervals(
                self.phases["start"].to_numpy()[is_computing], self.phases["end"].to_numpy()[is_computing]
            )
            on_rank = union.group // max(1, steps) == position
            covered[on_rank] = cover.within(union.start[on_rank], union.end[on_rank])
        return np.bincount(union.group, weights=covered, minlength=groups)

    def _communication_rows(self) -> pd.DataFrame:
        """Return rows for the parts of `by_step`, and `until_first`: from step start to first all-reduce."""
        count = self.allreduces.groupby("rank").size().reindex(self.ranks, fill_value=0) / len(self.numbers)
        parts = [
            self._per_step(
                pd.Series(self.ranks),
                pd.Series([name] * len(self.ranks)),
                pd.Series(values.mean(axis=1)),
                count.to_numpy(),
                "communication",
            )
            for name, values in self.by_step.items()
        ]
        firsts = self.allreduces[self.allreduces["turn"] == 0].merge(
            self.step_times, on=["place", "rank"], suffixes=("", "_step")
        )
        until = (firsts["start"] - firsts["start_step"]).groupby(firsts["rank"]).mean()
        parts.append(
            self._per_step(
                pd.Series(until.index),
                pd.Series(["until_first"] * len(until)),
                until.reset_index(drop=True),
                count[until.index].to_numpy(),
                "communication",
            )
        )
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def through(self) -> pd.DataFrame:
        """The critical path through every step: columns first, moves, over and last.

        It leads through rank `first`, the last one to have nothing to do but wait for the step's last
        all-reduce; then through this all-reduce, from `moves` to `over`; then through rank `last`, which ends
        the step last. If `last` waits for no all-reduce, `first` is `last`, and both times are the end of
        the step.
        """
        ends = self.step_times.loc[self.step_times.groupby("place")["end"].idxmax()].set_index("place")
        path = pd.DataFrame(
            {"last": ends["rank"], "first": ends["rank"], "moves": ends["end"], "over": ends["end"]}
        )
        if self.allreduces.empty:
            return path
        allreduces = self.allreduces
        latest = allreduces.loc[allreduces.groupby("place")["moves"].idxmax()].set_index("place")
        last_allreduce = allreduces.merge(latest[["turn"]].reset_index(), on=["place", "turn"])
        last_allreduce["ready"] = np.maximum(last_allreduce["start"], self._wait_starts(last_allreduce))
        ready = last_allreduce.loc[last_allreduce.groupby("place")["ready"].idxmax()].set_index("place")
        own_end = last_allreduce.set_index(["place", "rank"])["end"].reindex(
            pd.MultiIndex.from_arrays([path.index, path["last"]])
        )
        ended = pd.Series(own_end.to_numpy(), index=path.index).fillna(
            last_allreduce.groupby("place")["end"].max()
        )
        exposed = self.by_step["exposed"][np.searchsorted(self.ranks, path["last"]), path.index]
        waited = pd.Series(exposed > 0, index=path.index) & (ended <= path["over"])
        path["first"] = ready["rank"].reindex(path.index).where(waited, path["first"]).astype(int)
        path["moves"] = ready["ready"].reindex(path.index).clip(upper=ended).where(waited, path["moves"])
        path["over"] = ended.where(waited, path["over"])
        return path

    def _wait_starts(self, allreduces: pd.DataFrame) -> pd.Series:
        """Return when each rank last began to wait before its all-reduce ended, or the all-reduce's start.

        The wait matters, because an all-reduce can start with its first gradient, while others are computed.
        """
        waits = self.phases.loc[self.phases["phase"] == WAIT, ["place", "rank", "start"]]
        pairs = allreduces[["place", "rank", "end"]].reset_index().merge(waits, on=["place", "rank"])
        wait_start = pairs[pairs["start"] <= pairs["end"]].groupby("index")["start"].max()
        return wait_start.reindex(allreduces.index).fillna(allreduces["start"])

    def path(self) -> pd.DataFrame:
        """Return the phases of the critical path, mean over steps, as rows without rank.

        They are the phases of `first` before the all-reduce, the all-reduce, and the phases of `last`
        afterwards. Waiting in these phases counts as communication.
        """
        steps, phases = self.through.loc[self.phases["place"]], self.phases
        start, end, rank = phases["start"].to_numpy(), phases["end"].to_numpy(), phases["rank"].to_numpy()
        before = np.maximum(np.minimum(end, steps["moves"]) - start, 0) * (rank == steps["first"])
        after = np.maximum(end - np.maximum(start, steps["over"]), 0) * (rank == steps["last"])
        name = phases["phase"].astype(str).replace(WAIT, COMMUNICATION).to_numpy()
        lengths = pd.Series((before + after).to_numpy()).groupby(name).sum()
        moving = float((self.through["over"] - self.through["moves"]).sum())
        if moving:
            lengths[COMMUNICATION] = lengths.get(COMMUNICATION, 0.0) + moving
        lengths = lengths[lengths > 0] / len(self.numbers)
        no_rank = pd.Series([pd.NA] * len(lengths), dtype="Int64")
        return self._per_step(
            no_rank, pd.Series(lengths.index), lengths.reset_index(drop=True), np.nan, "path"
        )

    @cached_property
    def typical_s(self) -> float:
        """The median over steps of the mean step time of ranks, in s; NaN without a traced step."""
        return float(self._step_durations.median())

    @cached_property
    def _step_durations(self) -> pd.Series:
        return (self.step_times["end"] - self.step_times["start"]).groupby(self.step_times["place"]).mean()

    def typical_step(self) -> tuple[int, int]:
        """Return epoch and number of the step whose time is nearest to the median."""
        middle = int((self._step_durations - self.typical_s).abs().idxmin())
        epoch, step = self.numbers.loc[middle]
        return int(epoch), int(step)

    def typical_steps(self) -> pd.DataFrame:
        """Return the intervals of SHOWN_STEPS consecutive steps around a step of median time.

        If untraced steps lie between them, only the step of median time is returned.
        """
        if self.numbers.empty:
            return self.intervals[:0]
        epoch, step = self.typical_step()
        epoch_steps = self.numbers.loc[self.numbers["epoch"] == epoch, "step"].to_numpy()
        at = int(np.flatnonzero(epoch_steps == step)[0])
        first = min(max(0, at - SHOWN_STEPS // 2), max(0, len(epoch_steps) - SHOWN_STEPS))
        selected = epoch_steps[first : first + SHOWN_STEPS]
        if len(selected) > 1 and selected[-1] - selected[0] >= len(selected):
            selected = np.array([step])
        intervals = self.intervals
        return intervals[(intervals["epoch"] == epoch) & intervals["step"].isin(selected)].sort_values(
            ["rank", "start"], kind="stable"
        )

    def sum_error(self, clocked: pd.DataFrame | None) -> float:
        """Return the largest relative difference, over ranks, of mean step time and the sum of phases.

        The step time is the time from the start of a step's first phase to the end of its last one. If the
        meter recorded step times, these are compared, too, and the larger difference counts.

        Args:
            clocked: epoch, rank, step and step_time_s of the meter, or None.

        Returns:
            The difference; NaN without a traced step.
        """
        steps = self.step_times.assign(lasted=self.step_times["end"] - self.step_times["start"])
        shares = [_rank_sum_error(steps, "lasted")]
        if clocked is not None:
            with_clock = steps.merge(self.numbers, left_on="place", right_index=True).merge(
                clocked, on=["epoch", "rank", "step"]
            )
            shares.append(_rank_sum_error(with_clock, "step_time_s"))
        return float(np.max(shares)) if len(steps) else float("nan")


def _rank_sum_error(steps: pd.DataFrame, time: str) -> float:
    of_rank = steps.groupby("rank")[["sum", time]].sum()
    return float((of_rank["sum"] / of_rank[time] - 1).abs().max())
