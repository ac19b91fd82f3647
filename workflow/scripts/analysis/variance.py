"""Table of variance components: how much of the variance of an epoch's time lies between cells, sessions, blocks, runs and epochs.

Of natural logarithms, so that a standard deviation is a share of the time. Components are estimated by moments (mean squares and what
they expect; Searle, Casella, McCulloch, Variance Components (1992), chapters 3 and 5):

    epoch    variance between the timed epochs of a run, over all runs
    run      what cells and blocks leave of the runs' mean logarithms (two-way additive model), less what their epochs explain; blocks
             included where there is one cell only
    block    variance of the blocks' means within a session, less what their runs explain
    session  the same for the means of sessions that have several blocks
    cell     variance of the cells' means, less what their runs explain: what the factors do

A mixed model with random blocks (restricted maximum likelihood, statsmodels) checks both the components and the table of effects: with
the same fixed cells, it estimates the same ratios in another way.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.regression.mixed_linear_model import MixedLM
from statsmodels.tools.sm_exceptions import ConvergenceWarning

from analysis import conditions, tables
from analysis.effects import pairs
from analysis.measured import block_of, successful
from analysis.pooling import after_blocks, pooled
from common.notes import Note

TITLE = "Variance of an epoch's time by where it comes from"
NOTHING = Note("single-runs", "Nothing can be told: no cell has two successful runs.")
PARTS = ("cell", "session", "block", "run", "epoch")
MEANINGS = {
    "cell": "what the factors do",
    "session": "another start of the campaign",
    "block": "another quarter of an hour",
    "run": "another process, all else equal",
    "epoch": "another epoch of the same run",
}
MOST_CELLS = 200  # of the mixed model, which takes minutes with more


@dataclass(frozen=True)
class Components:
    """Variances of the logarithm of an epoch's time by PARTS, NaN where one cannot be told; degrees of freedom; timed epochs a run."""

    variance: dict[str, float]
    df: dict[str, int]
    epochs: float

    @property
    def of_mean(self) -> float:
        """The variance of a run's mean logarithm about its cell, within a block."""
        epoch = self.variance["epoch"]
        return self.variance["run"] + (epoch / self.epochs if epoch > 0 else 0.0)


def logarithms(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """A row per successful run: cell, session, block, and of the logarithms of its timed epochs the mean, variance and number."""
    timed = epochs[~epochs["warm_up"].astype(bool)]
    logs = np.log(timed["epoch_time_s"].astype(float)).groupby(timed["run_id"]).agg(["mean", "var", "count"])
    ok = successful(runs).set_index("run_id")
    known = ok[["cell", "session", "block"]].join(logs, how="inner")
    return known.assign(session=known["session"].fillna("").astype(str)).reset_index()


def components(known: pd.DataFrame) -> Components:
    """The components of `logarithms`."""
    nan = math.nan
    variance, df = dict.fromkeys(PARTS, nan), dict.fromkeys(PARTS, 0)
    cell = pd.factorize(known["cell"])[0]
    if len(known) == len(set(cell)):
        return Components(variance, df, nan)
    count, y = known["count"].to_numpy(float), known["mean"].to_numpy(float)
    m = float(1 / np.mean(1 / count))
    df["epoch"] = int((count - 1).sum())
    if df["epoch"]:
        variance["epoch"] = float((known["var"].fillna(0.0) * (count - 1)).sum() / df["epoch"])
    session = known["session"].to_numpy()
    block = block_of(known)
    if len(set(block)) == len(set(session)):
        session = np.full(len(known), "")  # each session is a block
    residual, lost = after_blocks(y, cell, block)
    if lost >= len(y) - len(set(cell)):  # blocks are not told from runs
        block = np.zeros(len(y), int)
        session, (residual, lost) = block, after_blocks(y, cell, block)
    df["run"] = len(y) - len(set(cell)) - lost
    of_mean = float((residual**2).sum() / df["run"])
    variance["run"] = max(0.0, of_mean - (variance["epoch"] / m if df["epoch"] else 0.0))
    own = y - pd.Series(y).groupby(cell).transform("mean").to_numpy()
    blocks = pd.DataFrame({"session": session, "block": block, "own": own})
    means = blocks.groupby(["session", "block"])["own"].agg(["mean", "count"])
    per_block = float(1 / (1 / means["count"]).mean())
    inside = means["mean"].groupby("session")
    df["block"] = len(means) - inside.ngroups
    if df["block"]:
        between = float(((means["mean"] - inside.transform("mean")) ** 2).sum() / df["block"])
        variance["block"] = max(0.0, between - of_mean / per_block)
    df["session"] = inside.ngroups - 1
    if df["session"] > 0:
        each = float(1 / (1 / inside.size()).mean())
        of_block = (variance["block"] if df["block"] else 0.0) + of_mean / per_block
        variance["session"] = max(0.0, float(inside.mean().var(ddof=1)) - of_block / each)
    by_cell = pd.Series(y).groupby(cell).agg(["mean", "count"])
    df["cell"] = len(by_cell) - 1
    if df["cell"]:
        per_cell = float(1 / (1 / by_cell["count"]).mean())
        variance["cell"] = max(0.0, float(by_cell["mean"].var(ddof=1)) - of_mean / per_cell)
    return Components(variance, df, m)


@dataclass(frozen=True)
class Mixed:
    """What a mixed model says: variances of blocks and of the mean logarithms of runs; the largest factor between its ratio of two
    cells and that of the table of effects, less 1, and between how many pairs."""

    block: float
    run: float
    apart: float
    pairs: int


def mixed(runs: pd.DataFrame, known: pd.DataFrame) -> Mixed | None:
    """The mixed model with fixed cells and random blocks; None where there are too few blocks or too many cells, or it finds no maximum."""
    names = known["cell"].unique()
    blocks = block_of(known)
    count = len(np.unique(blocks))
    if count < 2 or not 1 < len(names) <= MOST_CELLS or len(known) <= len(names) + count:
        return None
    fixed = pd.get_dummies(known["cell"], dtype=float)[names]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("ignore", (RuntimeWarning, UserWarning))
        try:
            fit = MixedLM(known["mean"].to_numpy(float), fixed.to_numpy(), groups=blocks).fit(reml=True)
        except (ConvergenceWarning, np.linalg.LinAlgError, ValueError):
            return None
    means = dict(zip(names, fit.fe_params, strict=True))
    compared = pairs(runs)
    compared = compared[compared["to_cell"].isin(means) & compared["from_cell"].isin(means)]
    to, base = compared["to_cell"].tolist(), compared["from_cell"].tolist()
    logs = pooled(runs).log_differences(to, base)
    other = np.array([means[one] - means[of] for one, of in zip(to, base, strict=True)])
    apart = float(np.nanmax(np.abs(other - logs), initial=0.0)) if len(other) else 0.0
    return Mixed(float(fit.cov_re.squeeze()), float(fit.scale), math.expm1(apart), len(other))


def compare(found: Components, other: Mixed | None) -> pd.DataFrame:
    """A row per part that can be told: part, variance, share of their sum, sd (of the logarithm), df, and the mixed model's sd."""
    rows = pd.DataFrame({"part": list(PARTS)})
    rows["variance"] = [found.variance[part] for part in PARTS]
    rows["share"] = rows["variance"] / rows["variance"].sum()
    rows["sd"] = np.sqrt(rows["variance"])
    rows["df"] = [found.df[part] for part in PARTS]
    mixed_sd = {}
    if other:
        of_epochs = found.variance["epoch"] / found.epochs if found.df["epoch"] else 0.0
        mixed_sd = {"block": math.sqrt(other.block), "run": math.sqrt(max(0.0, other.run - of_epochs))}
    rows["mixed_sd"] = [mixed_sd.get(part, math.nan) for part in PARTS]
    return rows[rows["variance"].notna()].reset_index(drop=True)


def table(runs: pd.DataFrame, epochs: pd.DataFrame) -> tables.Table:
    """The table of a study."""
    known = logarithms(runs, epochs)
    found, other = components(known), mixed(runs, known)
    rows = compare(found, other)
    if rows.empty:
        return tables.Table(TITLE, rows, pd.DataFrame(columns=["part"]), [NOTHING, conditions.setting(runs)])
    shown = pd.DataFrame(
        {
            "part": rows["part"],
            "meaning": rows["part"].map(MEANINGS),
            "share (%)": rows["share"].map(tables.percent),
            "standard deviation (%)": rows["sd"].map(lambda sd: tables.number(100 * sd)),
            "df": rows["df"].map(str),
        }
    )
    if rows["mixed_sd"].notna().any():
        shown["mixed model: sd (%)"] = rows["mixed_sd"].map(lambda sd: tables.number(100 * sd))
    notes = [
        "Variances of the logarithm of an epoch's time; a standard deviation of 5 % means that times typically differ by 5 %. Share: of "
        "the sum of all parts. df: degrees of freedom; a part with few of them is only roughly known.",
        advice(found),
        _checked(other),
        conditions.setting(runs),
    ]
    return tables.Table(TITLE, rows, shown, [note for note in notes if note], ["part", "meaning"])


def advice(found: Components) -> str:
    """Whether longer runs or more of them make intervals narrower; nothing where it cannot be told."""
    if not (found.df["run"] > 0 and found.df["epoch"] > 0 and found.of_mean > 0):
        return ""
    longer = found.variance["run"] + found.variance["epoch"] / (2 * found.epochs)
    gain = 1 - math.sqrt(longer / found.of_mean)
    text = (
        f"More runs, or longer ones? Twice as many timed epochs in each run ({2 * found.epochs:.3g} instead of {found.epochs:.3g}) would make "
        f"intervals about {100 * gain:.0f} % narrower; twice as many runs, 29 % or more."
    )
    return Note("longer-runs", text, epochs=found.epochs, narrower=gain)


def _checked(other: Mixed | None) -> str:
    if other is None:
        return ""
    text = (
        "Mixed model: fixed cells and random blocks, by restricted maximum likelihood. "
        f"Its ratios of {other.pairs} pairs of cells differ from those in the table of effects by at most {100 * other.apart:.2g} %."
    )
    return Note("mixed-model", text, pairs=other.pairs, apart=other.apart)
