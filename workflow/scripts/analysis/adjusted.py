"""Table of epoch times adjusted by how quick the machine was at every run, where that predicts runs better: analysis of covariance.

Two covariates tell how quick it was, both logarithms of how much longer work took:

    reference = log of the time of a fixed piece of work right before and right after the run (runs.reference)
    withheld = -log(1 - w)      w: share of the processor time that a hypervisor and other programs had while ranks trained

The time withheld counts only where one run at least lost a NOTABLE share of it: below that it is what the kernel and our own supervision
do, which may go with the cell.

The analysis is one of logarithms, with one slope per covariate for all cells, and with how far that of a run lies from the campaign's mean:

    log adjusted time = log time - (sum of slope x distance - log of the mean of exp(sum of slope x distance) of all runs)
    distance = (covariate - mean of the block's runs of the same setting) + (mean of the block's runs - mean of the campaign)

that is, time over a power of the covariate: arithmetic means stay such, and are those at the campaign's mean. Runs
are of one setting where they have as many ranks on as many nodes and cores, in one environment: elsewhere the same work takes another time,
and that is no disturbance. So what a block has is told by all of its runs, each beside the mean of its setting, and what a run has beside that
by those of its setting. Of a cell that has its setting for itself only what blocks do is taken out.

Runs are in random order, so that a cell's distances are those of others on average, and its adjusted mean has no bias beside others, whatever
the slope is. Noise of a covariate makes its slope too small (Cochran, Biometrics 13 (1957)), which takes out less, no more. An interval does not
say what a campaign on a machine that is busier on the whole would measure: that is another mean.

Slopes are those of least squares beside cells and blocks (Fisher, Statistical Methods for Research Workers, 4th ed. (1932), section
49.1; Montgomery, Design and Analysis of Experiments, 8th ed. (2013), section 15.3). Their error is in intervals by a cell's
mean distance from the others (`Adjusted`).

A covariate is taken only where it gains LEAST_GAIN by cross-validation, each run left out in turn, with a slope above 0: first the one that gains
most, then the other, where it gains as much again beside the first (forward selection; Miller, Subset Selection in Regression, 2nd ed. (2002)). Slopes
need FEWEST_DF degrees of freedom, and the cells of a setting the same mean covariate (p above SAME): what a cell's own training or
libraries do must not be taken for the machine's doing. That test sees only what stands out from the noise, and the time withheld is measured
while the cell trains: where a cell causes some of it itself, its adjusted mean is too small by as much. What is chosen for having little error has less by luck, too. So the choice
costs CHOICE degrees of freedom beside one of each slope. The constants are chosen by simulation of the whole procedure with 2 to 12 cells, 3 to 8
blocks of 0 to 20 %, correlations of 0 to 0.97, equal and unequal spreads (make statistics-test; docs/explanation/statistics.md).

Better predictions within blocks need not make means more certain: where blocks move a covariate and not epoch times, or by more than the
slope says, taking out their distances adds to the spread between blocks. So means are adjusted only where their intervals get LEAST_GAIN
narrower (median), and ratios within blocks only where theirs do. That choice, too, is in the simulations (benchmarks/adjusted_coverage.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
from scipy import special

from analysis import conditions, intervals, tables
from analysis.covariance import FEWEST_DF, LEAST_GAIN, Slopes, fitted, selected
from analysis.intervals import ROUNDING, Estimate
from analysis.measured import block_of, cells, last_kept, level_text, successful, title, varying
from analysis.pooling import FEWEST_BLOCKS, Pooling, Values, after_blocks, pooled
from common.notes import Note
from common.text import number_of

TITLE = "Epoch times adjusted by how quick the machine was at every run, with 95 % intervals, beside the plain means"
REFERENCE, WITHHELD = "reference", "withheld"
WORDS = {REFERENCE: "the reference", WITHHELD: "the time withheld"}
NOTABLE = conditions.NOTABLE_STEAL_SHARE
MOST_WITHHELD = 0.99  # of the processor time: a share of 1 has no logarithm
CHOICE = 1  # degrees of freedom that the choice takes, beside one for each slope
SAME = 0.01  # the least p of the test that the cells of a setting have the same covariate
SETTING = ("reference_kind", "nodes", "ranks", "cores_per_rank", "device", "environment_digest")
ALIKE = "of one environment with as many nodes, ranks and cores"
APART = Note("no-two-runs-of-a-setting", f"no block has two runs {ALIKE}")
SINGLE = Note("single-runs", "no cell has two successful runs")
NO_SLOPE = Note("no-slope", "slopes cannot be told from so few runs")
CONSTANT = Note("constant-reference", "the reference was the same beside all runs of a block")
METHOD = Note(
    "analysis-of-covariance",
    "Analysis of covariance of log epoch time, one slope for all cells (Fisher 1932; Montgomery 2013, chapter 15): what a run met "
    f"counts by its distance from the campaign's mean, among runs {ALIKE}. Slopes are told within blocks, and their error is in the "
    "intervals.",
)
TOO_LITTLE = Note("too-little-gain", f"neither intervals of means nor of ratios get {100 * LEAST_GAIN:g} % narrower")
NO_BETTER = Note("no-better", f"errors of runs that are left out would not get {100 * LEAST_GAIN:g} % smaller")
BACKWARDS = Note("backwards", "epochs took less time where the machine seems slower")
NOT_TOLD = Note("not-told", f"not all runs tell {WORDS[WITHHELD]}")
NO_RUN = Note("no-successful-run", "no successful run")
NO_VALID_REFERENCE = Note("no-valid-reference", "no successful run has a reference")
NO_REFERENCE = Note("no-reference", "no run has a reference (key reference of the site)")
PLAIN_FIRST = Note("plain-means-stay", "Plain means stay the result.")
MARGIN = f"{100 * LEAST_GAIN:g} % at least"


@dataclass(frozen=True)
class Adjusted(Pooling):
    """As `Pooling`, of adjusted times. `distances`: for each slope, of the runs, what a change of it changes the logarithm of their times by,
    negative.

    The error of a mean has that of the slopes in it, times the mean distances of the cell (Montgomery, section 15.3); that of a ratio
    times the difference of both.
    """

    slopes: Slopes
    distances: tuple[Values, ...]

    def error_of_slopes(self, distance: np.ndarray) -> np.ndarray:
        """The standard error [n] of the slopes times `distance` [n, slopes], from so many degrees of freedom as the choice leaves."""
        covariance = self.slopes.covariance * self.slopes.df / (self.slopes.df - CHOICE)
        return np.sqrt(np.einsum("ni,ij,nj->n", distance, covariance, distance))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """As those of `Pooling`, with the error of the slopes in low and high."""
        rows = super().cells
        of_cells = [[values.groups[cell].mean() for values in self.distances] for cell in rows.index]
        distance = np.array(of_cells, dtype=float).reshape(len(rows), len(self.distances))
        error = np.hypot(rows["s"] / np.sqrt(rows["n"]), self.error_of_slopes(distance))
        low, high = intervals.t_interval(0.0, error, rows["df"])
        return rows.assign(low=rows["mean"] * np.exp(low), high=rows["mean"] * np.exp(high))

    def _compared(self, to: Sequence[str], base: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
        seconds, logs = super()._compared(to, base)
        compared = [values.compared(to, base, FEWEST_BLOCKS) for values in self.distances]
        error = self.error_of_slopes(
            np.column_stack([(rows["to"] - rows["base"]).to_numpy(float) for rows in compared])
        )
        scale = (seconds["to"] + seconds["base"]) / 2
        return (
            seconds.assign(error=np.hypot(seconds["error"], error * scale)),
            logs.assign(error=np.hypot(logs["error"], error)),
        )


@dataclass(frozen=True)
class Adjustment:
    """What is known of the machine does this for a study: the `plain` means, the `adjusted` ones, or `why` there are none.

    `alone`: by covariate its slope without the other one, where it can be told, of the runs that have a reference; `covariates`: how far
    those lie from the mean of their block and setting, a column each, by the index of `runs`; `unused`: why a covariate is not
    among them. `times`: the runs' adjusted times.
    """

    plain: Pooling
    why: str = ""
    adjusted: Adjusted | None = None
    alone: Mapping[str, Slopes] = field(default_factory=dict)
    covariates: pd.DataFrame = field(default_factory=pd.DataFrame)
    times: "pd.Series[float] | None" = None
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def leading(self) -> str | None:
        """The covariate that is taken first, or else predicts runs best alone; none where no slope can be told."""
        if self.adjusted:
            return self.adjusted.slopes.covariates[0]
        return max(self.alone, key=lambda name: self.alone[name].gain, default=None)

    @property
    def means(self) -> Adjusted | None:
        """The adjusted means, where their intervals are LEAST_GAIN narrower."""
        return self.adjusted if self.narrower >= LEAST_GAIN else None

    @property
    def of_ratios(self) -> bool:
        """Whether ratios within blocks are adjusted: where their intervals are LEAST_GAIN narrower."""
        return self.narrower_ratios >= LEAST_GAIN

    def ratios(self, to: Sequence[str], base: Sequence[str]) -> pd.DataFrame:
        """value, low and high of the adjusted ratio of each pair of cells (`Pooling.ratios`); missing where it is not adjusted. Cells that are
        compared as independent groups are so by their means."""
        if self.adjusted is None:
            return pd.DataFrame(math.nan, index=range(len(to)), columns=["value", "low", "high"])
        rows = self.adjusted.ratios(to, base)
        shown = np.where(rows["within_blocks"] > 0, self.of_ratios, self.means is not None)
        return rows[["value", "low", "high"]].where(pd.Series(shown, index=rows.index), axis="index")

    @cached_property
    def narrower(self) -> float:
        """The share by which the intervals of means are narrower, median of the cells; NaN where nothing is adjusted."""
        if self.adjusted is None:
            return math.nan
        return float(1 - (self.adjusted.half_widths / self.plain.half_widths).median())

    @cached_property
    def narrower_ratios(self) -> float:
        """The same of ratios within blocks, each cell compared with the next one; NaN where none is compared so."""
        if self.adjusted is None:
            return math.nan
        names = list(self.plain.samples)
        one, other = (of.ratios(names[1:], names[:-1]) for of in (self.adjusted, self.plain))
        width = np.log(one["high"] / one["low"]) / np.log(other["high"] / other["low"])
        return float(1 - width[other["within_blocks"] > 0].median())


@last_kept(
    "cell", "session", "block", "status", "epoch_time_s", "reference_s", "steal_share", "foreign_cpu_share", *SETTING
)
def adjustment(runs: pd.DataFrame) -> Adjustment:
    """The adjustment of a study's runs."""
    plain, ok = pooled(runs), successful(runs)
    told = ok[ok["reference_s"].notna()]
    if told.empty:
        return Adjustment(plain, untold(runs))
    lacking = _lacking(len(ok) - len(told), len(ok))
    every, y = covariates_of(told), np.log(told["epoch_time_s"].to_numpy(float))
    cell, block, setting = pd.factorize(told["cell"])[0], block_of(told), setting_of(told)
    place = pd.factorize(pd.MultiIndex.from_arrays([block, setting]))[0]
    within = every.apply(_centred, group=place, raw=True)
    unused: dict[str, str] = {name: NOT_TOLD for name in within if within[name].isna().any()}
    for name in within.columns.difference(list(unused)):
        if not _same(within[name].to_numpy(), cell, place):
            unused[name] = _unlike(name)
    within = within.drop(columns=list(unused))
    alone = {name: slopes for name in within if (slopes := fitted(y, within[[name]], cell, block))}
    if not alone:
        why = lacking or unused.get(REFERENCE) or _no_slope(within, cell, place)
        return Adjustment(plain, why, covariates=within, unused=unused)
    slopes = selected(y, within[list(alone)], cell, block)
    if lacking or slopes is None:
        return Adjustment(plain, lacking or _useless(alone), None, alone, within, unused=unused)
    names = list(slopes.covariates)
    distance = _from_the_mean(every[names], within[names], block, setting)
    factor = np.exp(distance @ slopes.values)
    times = told["epoch_time_s"].astype(float) * factor.mean() / factor
    seconds = Values.of(told.assign(epoch_time_s=times), "epoch_time_s")
    distance = distance - (factor[:, None] * distance).mean(axis=0) / factor.mean()
    distances = tuple(Values.of(told.assign(distance=column), "distance") for column in distance.T)
    lost = CHOICE + len(slopes.values)
    made = Adjusted(seconds.log.groups, lost, seconds, slopes, distances)
    found = Adjustment(plain, "", made, alone, within, times, unused)
    return found if found.means or found.of_ratios else replace(found, why=TOO_LITTLE, adjusted=None, times=None)


def _lacking(lacking: int, runs: int) -> str:
    """Why nothing is adjusted where some runs have no reference."""
    text = f"{lacking} of {runs} runs have no reference"
    return Note("some-without-reference", text, lacking=lacking, runs=runs) if lacking else ""


def _unlike(covariate: str) -> Note:
    """Why a covariate is not used that cells of one setting differ in."""
    text = f"cells {ALIKE} differ in {WORDS[covariate]}, which may be their own doing"
    return Note("cells-differ", text, covariate=covariate)


def _from_the_mean(every: pd.DataFrame, within: pd.DataFrame, block: np.ndarray, setting: np.ndarray) -> np.ndarray:
    """How far covariates lie from the campaign's mean, [runs, covariates]: `within` their block and setting, and what the block has. A run
    that is alone in its block tells nothing of it."""
    of_blocks = [_mean(_centred(column, setting), block) for column in every.to_numpy().T]
    shared = (np.bincount(block)[block] > 1)[:, None]
    return within.to_numpy() + np.where(shared, np.column_stack(of_blocks), 0.0)


def covariates_of(told: pd.DataFrame) -> pd.DataFrame:
    """The covariates of runs that have a reference, a column each; the time withheld only where a NOTABLE share was, NaN where a run does not
    tell it."""
    found = {REFERENCE: np.log(told["reference_s"].astype(float))}
    withheld = told["steal_share"].astype(float) + told["foreign_cpu_share"].astype(float)
    if withheld.max() > NOTABLE:
        found[WITHHELD] = -np.log1p(-withheld.clip(0.0, MOST_WITHHELD))
    return pd.DataFrame(found, index=told.index)


def untold(runs: pd.DataFrame) -> Note:
    """Why no run has a reference that counts."""
    if successful(runs).empty:
        return NO_RUN
    return NO_VALID_REFERENCE if runs["reference_s"].notna().any() else NO_REFERENCE


def adjusted_times(runs: pd.DataFrame) -> "pd.Series[float]":
    """The epoch times of the successful runs in s, adjusted where means are, plain where they are not."""
    ok = successful(runs)
    plain = ok["epoch_time_s"].astype(float)
    if "reference_s" not in ok or ok["reference_s"].isna().all():
        return plain
    found = adjustment(runs)
    return plain if found.means is None or found.times is None else found.times


def setting_of(runs: pd.DataFrame) -> np.ndarray:
    """The number of each run's setting: in one of them the reference should always take as long."""
    return runs.groupby(list(SETTING), dropna=False).ngroup().to_numpy()


def _no_slope(covariates: pd.DataFrame, cell: np.ndarray, place: np.ndarray) -> str:
    """Why there is no slope."""
    if np.bincount(cell).max() < 2:
        return SINGLE
    if np.bincount(place).max() < 2:
        return APART
    return NO_SLOPE if covariates.to_numpy().any() else CONSTANT


def _useless(alone: Mapping[str, Slopes]) -> str:
    """Why no covariate is taken."""
    if (df := max(slopes.df for slopes in alone.values())) < FEWEST_DF:
        text = f"with so few runs its slope has {number_of(df, 'degree')} of freedom, {FEWEST_DF} are needed"
        return Note("too-few-degrees", text, df=df)
    return BACKWARDS if any(slopes.gain >= LEAST_GAIN for slopes in alone.values()) else NO_BETTER


def _mean(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The mean of x in the group of each run, [runs]."""
    return (np.bincount(group, x) / np.bincount(group))[group]


def _centred(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    """x [runs] less the mean of its group; 0 where that is rounding."""
    left = x - _mean(x, group)
    return np.where(np.abs(left) < ROUNDING, 0.0, left)


def _same(covariate: np.ndarray, cell: np.ndarray, place: np.ndarray) -> bool:
    """Whether nothing shows that cells differ in `covariate` [runs], whose mean is 0 in every place (F test beside places)."""
    left, lost = after_blocks(covariate, cell, place)
    df, of_cells = len(covariate) - len(np.unique(cell)) - lost, len(np.unique(cell)) + lost - len(np.unique(place))
    error = float(left @ left)
    if df < 1 or of_cells < 1 or not error:
        return True
    f = (float(covariate @ covariate) - error) / of_cells / (error / df)
    return bool(special.fdtrc(of_cells, df, f) >= SAME)


def summarize(runs: pd.DataFrame, found: Adjustment) -> pd.DataFrame:
    """A row per cell: its factors, n, plain and adjusted mean epoch time with bounds (s), change (of the mean, a share), width (of the
    interval, as a share of the plain one). No rows where means are not adjusted."""
    if found.means is None:
        return pd.DataFrame(columns=["cell"])
    plain, adjusted = found.plain.cells, found.means.cells
    rows = cells(runs).set_index("cell", drop=False)
    rows = rows[rows.index.isin(plain.index)]
    rows["n"] = plain["n"].reindex(rows.index)
    for name, of in (("epoch_time_s", plain), ("adjusted_s", adjusted)):
        for part, end in (("mean", ""), ("low", "_low"), ("high", "_high")):
            rows[f"{name}{end}"] = of[part].reindex(rows.index)
    rows["change"] = rows["adjusted_s"] / rows["epoch_time_s"] - 1
    rows["width"] = (found.means.half_widths / found.plain.half_widths).reindex(rows.index)
    return rows.reset_index(drop=True)


def table(runs: pd.DataFrame) -> tables.Table:
    """The table of a study; without rows where that does not help, or runs have no reference."""
    found = adjustment(runs)
    data = summarize(runs, found)
    if found.means is None:
        why = (
            said(found) if found.adjusted else Note("not-adjusted", f"Nothing is adjusted: {found.why}.", why=found.why)
        )
        notes = [why, told(found), METHOD if found.adjusted else "", conditions.setting(runs)]
        shown = pd.DataFrame(columns=["cell"], dtype=str)
        return tables.Table(TITLE, data, shown, [note for note in notes if note])
    texts = {title(name): data[name].map(level_text) for name in ["framework", *varying(runs, but=["framework"])]}
    texts["n"] = data["n"].map(str)
    for name, heading in (("epoch_time_s", "epoch time (s)"), ("adjusted_s", "adjusted (s)")):
        bounds = data[[name, f"{name}_low", f"{name}_high"]].astype(float)
        texts[heading] = [tables.interval(Estimate(*row)) for row in bounds.itertuples(index=False)]
    texts["change (%)"] = data["change"].map(tables.change)
    texts["width"] = data["width"].map(lambda share: tables.number(share, 2))
    notes = [
        conditions.paragraph(
            "adjusted-beside-plain",
            [
                PLAIN_FIRST,
                conditions.counts(runs),
                "Adjusted: at what its runs met on average. Width: of the adjusted interval, as a share of the plain one.",
            ],
        ),
        said(found),
        told(found),
        conditions.paragraph(
            "what-adjusted-means-hold-for",
            [METHOD, "Adjusted means and their intervals hold for what this campaign met, and for no other."],
        ),
        conditions.setting(runs),
    ]
    words = [title(name) for name in ("framework", "model", "dataset")]
    return tables.Table(TITLE, data, pd.DataFrame(texts), [note for note in notes if note], words)


def said(found: Adjustment) -> str:
    """What adjusting brings, in a sentence; empty where nothing is adjusted."""
    if found.adjusted is None:
        return ""
    means, ratios = _narrower(found.narrower), _narrower(found.narrower_ratios)
    if found.means is None:
        text = (
            f"Means are not adjusted: their intervals would be {means} (median; {MARGIN} is asked). Ratios within blocks are (table effects): "
            f"their intervals are {ratios}."
        )
    elif not found.of_ratios:
        text = (
            f"Intervals of adjusted means are {means} (median). Ratios within blocks are not adjusted: their intervals would be {ratios} "
            f"({MARGIN} is asked)."
            if math.isfinite(found.narrower_ratios)
            else f"Intervals of adjusted means are {means} (median)."
        )
    else:
        text = f"Intervals of adjusted means are {means} (median), those of adjusted ratios within blocks (table effects) {ratios}."
    return Note(
        "intervals-narrower",
        text,
        means=found.narrower,
        ratios=found.narrower_ratios,
        means_adjusted=found.means is not None,
        ratios_adjusted=found.of_ratios,
    )


def holds(found: Adjustment) -> Note:
    """Which tables have adjusted numbers, and by what, or why none has, in a sentence."""
    if found.adjusted is None:
        return Note("epoch-times-not-adjusted", f"Epoch times are not adjusted: {found.why}.", why=found.why)
    names = found.adjusted.slopes.covariates
    by = " and ".join(WORDS[name] for name in names)
    tables_ = "The tables adjusted and effects have means and ratios"
    if not (found.means and found.of_ratios):
        tables_ = "The table " + ("adjusted has means" if found.means else "effects has ratios")
    return Note(
        "adjusted-numbers",
        f"{tables_} adjusted by {by}.",
        means=found.means is not None,
        ratios=found.of_ratios,
        covariates=names,
    )


def _narrower(share: float) -> str:
    percent = round(100 * share)
    return f"{abs(percent)} % {'narrower' if share > 0 else 'wider'}" if percent else "as wide"


def told(found: Adjustment) -> str:
    """How log epoch time goes with each covariate, less what cells and blocks have; empty where that cannot be told."""
    if found.leading is None:
        return ""
    longer = {
        REFERENCE: "a reference that takes 1 % longer",
        WITHHELD: "1 % of the processor time withheld by others or a hypervisor",
    }
    alone = [
        f"{longer[name]} goes with an epoch that takes {tables.difference(slopes.estimates[0])} % longer "
        f"(correlation {tables.number(slopes.correlation, 2)})"
        for name, slopes in found.alone.items()
    ]
    if found.adjusted:
        chosen = found.adjusted.slopes
        word = "both" if len(chosen.covariates) > 1 else WORDS[chosen.covariates[0]]
    else:
        chosen, word = found.alone[found.leading], WORDS[found.leading]
    percent = round(100 * chosen.gain)
    better = f"{abs(percent)} % {'smaller' if percent > 0 else 'larger'}" if percent else "as large"
    dropped = " ".join(f"Not used: {why}." for why in found.unused.values())
    text = (
        f"Among runs of one block, each compared with the mean of its cell, {', and '.join(alone)}. With {word}, errors of runs that are "
        f"left out in turn are {better} (adjusted where {MARGIN} are gained). {dropped}"
    ).rstrip()
    return Note(
        "slopes",
        text,
        slopes={name: slopes.estimates[0] for name, slopes in found.alone.items()},
        gain=chosen.gain,
        unused=list(found.unused.values()),
    )
