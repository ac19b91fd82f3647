"""What the intervals of one traced run add up to: its phases, its exchange, the critical path through its steps.

A rank is in one phase of a step at a time; exchanges go on beside them (ranks.worker.phases). Computing is every phase of a step
but `wait`. Communication of a rank is the union of its exchanges, exposed what of it no computing of the same rank covers. The
k-th exchange of a step is the same one on all ranks: bytes move once the last rank has started it, until then the others wait.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ranks.worker.phases import EXCHANGE
from runs.phases import WAIT
from traces.intervals import Cover, Intervals

SHOWN_STEPS = 5  # of a typical run, that are kept as they are


@dataclass(frozen=True)
class Traced:
    """One run. `intervals`: as timeline.read_intervals has them; `warm_up`: its epochs that do not count; `steps`: of one of its epochs."""

    intervals: pd.DataFrame
    warm_up: int
    steps: int

    @cached_property
    def phases(self) -> pd.DataFrame:
        """The phases of traced steps of timed epochs, with `place`, the number of their step in `numbers`, and `length` in s."""
        return self._placed(self.intervals["phase"] != EXCHANGE)

    @cached_property
    def exchanges(self) -> pd.DataFrame:
        """The exchanges of these steps as `phases`, by rank, step and start; `turn` counts those of a rank's step, from 0; `moves`: s,
        when the last rank has started it."""
        found = self._placed(self.intervals["phase"] == EXCHANGE).sort_values(["rank", "place", "start"], kind="stable")
        found["turn"] = found.groupby(["rank", "place"]).cumcount()
        found["moves"] = found.groupby(["place", "turn"])["start"].transform("max")
        return found

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """Epoch and step of every step that was traced in a timed epoch, in order."""
        of_steps = self.intervals[self._of_steps & (self.intervals["phase"] != EXCHANGE)]
        return of_steps[["epoch", "step"]].drop_duplicates().sort_values(["epoch", "step"]).reset_index(drop=True)

    @cached_property
    def ranks(self) -> np.ndarray:
        """The ranks, [ranks]."""
        return np.unique(self.intervals["rank"].to_numpy())

    @cached_property
    def _of_steps(self) -> pd.Series:
        return (self.intervals["step"] > 0) & (self.intervals["epoch"] > self.warm_up)

    def _placed(self, kept: pd.Series) -> pd.DataFrame:
        found = self.intervals[self._of_steps & kept]
        keys = pd.MultiIndex.from_frame(self.numbers)
        place = keys.get_indexer(pd.MultiIndex.from_frame(found[["epoch", "step"]]))
        return found.assign(place=place, length=found["end"] - found["start"])[place >= 0]

    @cached_property
    def step_times(self) -> pd.DataFrame:
        """The first start and the last end of the phases of every step of every rank, and their sum: place, rank, start, end, sum."""
        by = self.phases.groupby(["place", "rank"])
        return by.agg(start=("start", "min"), end=("end", "max"), sum=("length", "sum")).reset_index()

    def rows(self) -> pd.DataFrame:
        """What phases.csv has of the run: rank, scope, phase, count, step_s, seconds (config/schemas/phases.schema.yaml)."""
        parts = [self._start(), self._steps(), self._epochs()]
        if len(self.exchanges):
            parts.append(self._of_exchange())
        if len(self.numbers):
            parts.append(self.path())
        return pd.concat(parts, ignore_index=True)

    def _start(self) -> pd.DataFrame:
        mine = self.intervals[self.intervals["epoch"] == 0]
        return self._summed(mine, "start", 1)

    def _epochs(self) -> pd.DataFrame:
        around = self.intervals[(self.intervals["epoch"] > self.warm_up) & (self.intervals["step"] == 0)]
        return self._summed(around[around["phase"] != EXCHANGE], "epoch", max(1, around["epoch"].nunique()))

    def _summed(self, mine: pd.DataFrame, scope: str, over: int) -> pd.DataFrame:
        lengths = mine.assign(seconds=(mine["end"] - mine["start"]) / over)
        found = (
            lengths.groupby(["rank", "phase"], observed=True, sort=True)["seconds"].agg(["sum", "size"]).reset_index()
        )
        found["count"] = found.pop("size") / over
        return found.rename(columns={"sum": "seconds"}).assign(
            scope=scope, step_s=np.nan, phase=found["phase"].astype(str)
        )

    def _steps(self) -> pd.DataFrame:
        of_rank = self.phases.groupby("rank")["place"].nunique()
        by = self.phases.groupby(["rank", "phase"], observed=True)["length"].agg(["sum", "size"]).reset_index()
        number = by["rank"].map(of_rank)
        return self._per_step(by["rank"], by["phase"].astype(str), by["sum"] / number, by["size"] / number, "step")

    def _per_step(
        self, rank: pd.Series, phase: pd.Series, step_s: pd.Series, count: pd.Series | float, scope: str
    ) -> pd.DataFrame:
        data = {"rank": rank, "scope": scope, "phase": phase, "count": count, "step_s": step_s}
        return pd.DataFrame({**data, "seconds": step_s * self.steps})

    @cached_property
    def by_step(self) -> dict[str, np.ndarray]:
        """Seconds of every rank in every step, [ranks, steps]: communication, moving, waiting, exposed, exposed_moving,
        exposed_waiting."""
        found, steps = self.exchanges, len(self.numbers)
        group = np.searchsorted(self.ranks, found["rank"]) * steps + found["place"].to_numpy()
        start, end, moves = (found[name].to_numpy() for name in ("start", "end", "moves"))
        communication = Intervals(group, start, end).union()
        moving = Intervals(group, np.maximum(start, moves), end).union()
        size = steps * len(self.ranks)
        seconds = {"communication": communication.seconds(size), "moving": moving.seconds(size)}
        seconds["exposed"] = seconds["communication"] - self._hidden(communication, size)
        seconds["exposed_moving"] = seconds["moving"] - self._hidden(moving, size)
        seconds["waiting"] = seconds["communication"] - seconds["moving"]
        seconds["exposed_waiting"] = seconds["exposed"] - seconds["exposed_moving"]
        return {name: np.maximum(values, 0.0).reshape(len(self.ranks), steps) for name, values in seconds.items()}

    def _hidden(self, union: Intervals, groups: int) -> np.ndarray:
        """Seconds of a union, in groups by rank and step, that the rank's own computing covers, whichever step it is of."""
        covered, steps = np.zeros(len(union.group)), len(self.numbers)
        for place, rank in enumerate(self.ranks):
            mine = (self.phases["rank"] == rank).to_numpy() & (self.phases["phase"] != WAIT).to_numpy()
            cover = Cover.of(self.phases["start"].to_numpy()[mine], self.phases["end"].to_numpy()[mine])
            of_rank = union.group // max(1, steps) == place
            covered[of_rank] = cover.within(union.start[of_rank], union.end[of_rank])
        return np.bincount(union.group, weights=covered, minlength=groups)

    def _of_exchange(self) -> pd.DataFrame:
        """A row for each of `by_step`, and of ranks that exchange `until_first`: from the start of a step until its first exchange."""
        count = self.exchanges.groupby("rank").size().reindex(self.ranks, fill_value=0) / len(self.numbers)
        parts = [
            self._per_step(
                pd.Series(self.ranks),
                pd.Series([name] * len(self.ranks)),
                pd.Series(values.mean(axis=1)),
                count.to_numpy(),
                "exchange",
            )
            for name, values in self.by_step.items()
        ]
        firsts = self.exchanges[self.exchanges["turn"] == 0].merge(
            self.step_times, on=["place", "rank"], suffixes=("", "_step")
        )
        until = (firsts["start"] - firsts["start_step"]).groupby(firsts["rank"]).mean()
        parts.append(
            self._per_step(
                pd.Series(until.index),
                pd.Series(["until_first"] * len(until)),
                until.reset_index(drop=True),
                count[until.index].to_numpy(),
                "exchange",
            )
        )
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def through(self) -> pd.DataFrame:
        """The critical path through every step: `first`, the rank that is last to have nothing left but the step's last exchange, since
        when (`moves`) and until when (`over`) it is this exchange, and `last`, the rank that ends the step last. Without an exchange that
        `last` waits for, `first` is `last`, and both times are the step's end."""
        ends = self.step_times.loc[self.step_times.groupby("place")["end"].idxmax()].set_index("place")
        found = pd.DataFrame({"last": ends["rank"], "first": ends["rank"], "moves": ends["end"], "over": ends["end"]})
        if self.exchanges.empty:
            return found
        of_step = self.exchanges
        latest = of_step.loc[of_step.groupby("place")["moves"].idxmax()].set_index("place")
        its = of_step.merge(latest[["turn"]].reset_index(), on=["place", "turn"])
        its["ready"] = np.maximum(its["start"], self._waits_since(its))
        ready = its.loc[its.groupby("place")["ready"].idxmax()].set_index("place")
        own = its.set_index(["place", "rank"])["end"].reindex(pd.MultiIndex.from_arrays([found.index, found["last"]]))
        over = pd.Series(own.to_numpy(), index=found.index).fillna(its.groupby("place")["end"].max())
        exposed = self.by_step["exposed"][np.searchsorted(self.ranks, found["last"]), found.index]
        waited = pd.Series(exposed > 0, index=found.index) & (over <= found["over"])
        found["first"] = ready["rank"].reindex(found.index).where(waited, found["first"]).astype(int)
        found["moves"] = ready["ready"].reindex(found.index).clip(upper=over).where(waited, found["moves"])
        found["over"] = over.where(waited, found["over"])
        return found

    def _waits_since(self, exchanges: pd.DataFrame) -> pd.Series:
        """When the rank of each exchange last began to wait in its step before the exchange ended; its start where it never did.

        An exchange may be told from its first gradient on, while the others are still computed.
        """
        waits = self.phases.loc[self.phases["phase"] == WAIT, ["place", "rank", "start"]]
        both = exchanges[["place", "rank", "end"]].reset_index().merge(waits, on=["place", "rank"])
        begun = both[both["start"] <= both["end"]].groupby("index")["start"].max()
        return begun.reindex(exchanges.index).fillna(exchanges["start"])

    def path(self) -> pd.DataFrame:
        """The composition of the critical path, mean over steps, as rows without rank: what `first` did until the exchange,
        the exchange, what `last` did afterwards. Where one of them waits, that is exchange, too."""
        steps, mine = self.through.loc[self.phases["place"]], self.phases
        start, end, rank = mine["start"].to_numpy(), mine["end"].to_numpy(), mine["rank"].to_numpy()
        before = np.maximum(np.minimum(end, steps["moves"]) - start, 0) * (rank == steps["first"])
        after = np.maximum(end - np.maximum(start, steps["over"]), 0) * (rank == steps["last"])
        name = mine["phase"].astype(str).replace(WAIT, EXCHANGE).to_numpy()
        lengths = pd.Series((before + after).to_numpy()).groupby(name).sum()
        moving = float((self.through["over"] - self.through["moves"]).sum())
        if moving:
            lengths[EXCHANGE] = lengths.get(EXCHANGE, 0.0) + moving
        lengths = lengths[lengths > 0] / len(self.numbers)
        nobody = pd.Series([pd.NA] * len(lengths), dtype="Int64")
        return self._per_step(nobody, pd.Series(lengths.index), lengths.reset_index(drop=True), np.nan, "path")

    @cached_property
    def typical_s(self) -> float:
        """The median of its step times, s; NaN where no step was traced. A step's time is the mean of its ranks'."""
        return float(self._lasted.median())

    @cached_property
    def _lasted(self) -> pd.Series:
        return (self.step_times["end"] - self.step_times["start"]).groupby(self.step_times["place"]).mean()

    def typical_steps(self) -> pd.DataFrame:
        """The intervals of SHOWN_STEPS steps that follow each other, around one of median time; of an epoch of which not every
        step was traced, of this one alone."""
        if self.numbers.empty:
            return self.intervals[:0]
        middle = int((self._lasted - self.typical_s).abs().idxmin())
        epoch, step = self.numbers.loc[middle]
        there = self.numbers.loc[self.numbers["epoch"] == epoch, "step"].to_numpy()
        at = int(np.flatnonzero(there == step)[0])
        first = min(max(0, at - SHOWN_STEPS // 2), max(0, len(there) - SHOWN_STEPS))
        kept = there[first : first + SHOWN_STEPS]
        if len(kept) > 1 and kept[-1] - kept[0] >= len(kept):
            kept = np.array([step])
        mine = self.intervals
        return mine[(mine["epoch"] == epoch) & mine["step"].isin(kept)].sort_values(["rank", "start"], kind="stable")

    def off(self, clocked: pd.DataFrame | None) -> float:
        """By which share the sum of the phases of a rank's mean step differs from its time, largest of all ranks; NaN where no step
        was traced.

        A step lasts from the start of its first phase to the end of its last one, and as long as the meter says (`clocked`: epoch,
        rank, step, step_time_s), where it took step times.
        """
        mine = self.step_times.assign(lasted=self.step_times["end"] - self.step_times["start"])
        shares = [_off(mine, "lasted")]
        if clocked is not None:
            both = mine.merge(self.numbers, left_on="place", right_index=True).merge(
                clocked, on=["epoch", "rank", "step"]
            )
            shares.append(_off(both, "step_time_s"))
        return float(np.max(shares)) if len(mine) else float("nan")


def _off(steps: pd.DataFrame, time: str) -> float:
    of_rank = steps.groupby("rank")[["sum", time]].sum()
    return float((of_rank["sum"] / of_rank[time] - 1).abs().max())
