"""Table of variance components: how much of the variance of epoch time each source adds.

Components are variances of natural logarithms, so a standard deviation is a share of the time. They are
estimated from mean squares and their expectations (Searle, Casella, McCulloch, Variance Components (1992),
chapters 3, 5):

    epoch    variance between the timed epochs of a run, over all runs
    run      residual of the runs' mean logarithms after cells and blocks (two-way additive model), less the
             part of their epochs; includes blocks if there is only one cell
    block    variance of block means within a session, less the part of runs
    session  variance of session means, less the part of blocks, if sessions have several blocks
    cell     variance of cell means, less the part of runs: the effect of the factors

A mixed model with random blocks (restricted maximum likelihood, statsmodels) checks the components and the
table of effects: with fixed cells, it estimates the same ratios in another way.
"""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from statsmodels.regression.mixed_linear_model import MixedLM
from statsmodels.tools.sm_exceptions import ConvergenceWarning

from analysis import conditions, tables
from analysis.cell_means import after_blocks, estimate_means
from analysis.effects import cell_pairs
from analysis.records import block_of, successful
from common.notes import Note

TITLE = "Variance of epoch time by source"
SINGLE_RUNS = Note("single-runs", "Nothing can be estimated: no cell has two successful runs.")
PARTS = ("cell", "session", "block", "run", "epoch")
MEANINGS = {
    "cell": "effect of the factors",
    "session": "another start of the campaign",
    "block": "another block of runs",
    "run": "another process, all else equal",
    "epoch": "another epoch of the same run",
}
MAX_MIXED_MODEL_CELLS = 200  # With more, the fit takes minutes.


@dataclass(frozen=True)
class Components:
    """Variance components of log epoch time by PARTS.

    Attributes:
        variance: Variance of each part; NaN if it cannot be estimated.
        df: Degrees of freedom of each part.
        epochs: Timed epochs of a run (harmonic mean).
    """

    variance: dict[str, float]
    df: dict[str, int]
    epochs: float

    @property
    def mean_variance(self) -> float:
        """Variance of a run's mean logarithm within its cell and block."""
        epoch = self.variance["epoch"]
        return self.variance["run"] + (epoch / self.epochs if epoch > 0 else 0.0)


def log_times_by_run(runs: pd.DataFrame, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per successful run: cell, session, block; mean, var and count of its log epoch times."""
    timed = epochs[~epochs["warm_up"].astype(bool)]
    logs = np.log(timed["epoch_time_s"].astype(float)).groupby(timed["run_id"]).agg(["mean", "var", "count"])
    ok = successful(runs).set_index("run_id")
    rows = ok[["cell", "session", "block"]].join(logs, how="inner")
    return rows.assign(session=rows["session"].fillna("").astype(str)).reset_index()


def estimate_components(rows: pd.DataFrame) -> Components:
    """Estimate the components from the rows of `log_times_by_run`."""
    nan = math.nan
    variance, df = dict.fromkeys(PARTS, nan), dict.fromkeys(PARTS, 0)
    cell = pd.factorize(rows["cell"])[0]
    if len(rows) == len(set(cell)):
        return Components(variance, df, nan)
    count, y = rows["count"].to_numpy(float), rows["mean"].to_numpy(float)
    m = float(1 / np.mean(1 / count))
    df["epoch"] = int((count - 1).sum())
    if df["epoch"]:
        variance["epoch"] = float((rows["var"].fillna(0.0) * (count - 1)).sum() / df["epoch"])
    session = rows["session"].to_numpy()
    block = block_of(rows)
    if len(set(block)) == len(set(session)):
        session = np.full(len(rows), "")  # Each session is a block.
    residual, lost = after_blocks(y, cell, block)
    if lost >= len(y) - len(set(cell)):  # Blocks cannot be separated from runs.
        block = np.zeros(len(y), int)
        session, (residual, lost) = block, after_blocks(y, cell, block)
    df["run"] = len(y) - len(set(cell)) - lost
    run_mean_variance = float((residual**2).sum() / df["run"])
    variance["run"] = max(0.0, run_mean_variance - (variance["epoch"] / m if df["epoch"] else 0.0))
    deviation = y - pd.Series(y).groupby(cell).transform("mean").to_numpy()
    blocks = pd.DataFrame({"session": session, "block": block, "deviation": deviation})
    means = blocks.groupby(["session", "block"])["deviation"].agg(["mean", "count"])
    per_block = float(1 / (1 / means["count"]).mean())
    inside = means["mean"].groupby("session")
    df["block"] = len(means) - inside.ngroups
    if df["block"]:
        between = float(((means["mean"] - inside.transform("mean")) ** 2).sum() / df["block"])
        variance["block"] = max(0.0, between - run_mean_variance / per_block)
    df["session"] = inside.ngroups - 1
    if df["session"] > 0:
        blocks_per_session = float(1 / (1 / inside.size()).mean())
        block_variance = (variance["block"] if df["block"] else 0.0) + run_mean_variance / per_block
        variance["session"] = max(0.0, float(inside.mean().var(ddof=1)) - block_variance / blocks_per_session)
    by_cell = pd.Series(y).groupby(cell).agg(["mean", "count"])
    df["cell"] = len(by_cell) - 1
    if df["cell"]:
        per_cell = float(1 / (1 / by_cell["count"]).mean())
        variance["cell"] = max(0.0, float(by_cell["mean"].var(ddof=1)) - run_mean_variance / per_cell)
    return Components(variance, df, m)


@dataclass(frozen=True)
class MixedModel:
    """Results of the mixed model.

    Attributes:
        block: Variance of blocks.
        run: Variance of the mean logarithms of runs.
        largest_disagreement: Largest factor, less 1, between its ratio of two cells and the ratio in the
            table of effects.
        pairs: Number of compared pairs of cells.
    """

    block: float
    run: float
    largest_disagreement: float
    pairs: int


def fit_mixed_model(runs: pd.DataFrame, rows: pd.DataFrame) -> MixedModel | None:
    """Fit the mixed model with fixed cells and random blocks.

    Returns:
        The results; None with too few blocks or too many cells, or if the fit does not converge.
    """
    names = rows["cell"].unique()
    blocks = block_of(rows)
    n_blocks = len(np.unique(blocks))
    if n_blocks < 2 or not 1 < len(names) <= MAX_MIXED_MODEL_CELLS or len(rows) <= len(names) + n_blocks:
        return None
    fixed = pd.get_dummies(rows["cell"], dtype=float)[names]
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("ignore", (RuntimeWarning, UserWarning))
        try:
            fit = MixedLM(rows["mean"].to_numpy(float), fixed.to_numpy(), groups=blocks).fit(reml=True)
        except (ConvergenceWarning, np.linalg.LinAlgError, ValueError):
            return None
    means = dict(zip(names, fit.fe_params, strict=True))
    compared = cell_pairs(runs)
    compared = compared[compared["to_cell"].isin(means) & compared["from_cell"].isin(means)]
    to, base = compared["to_cell"].tolist(), compared["from_cell"].tolist()
    logs = estimate_means(runs).log_differences(to, base)
    model_logs = np.array(
        [means[to_cell] - means[base_cell] for to_cell, base_cell in zip(to, base, strict=True)]
    )
    disagreement = float(np.nanmax(np.abs(model_logs - logs), initial=0.0)) if len(model_logs) else 0.0
    return MixedModel(
        float(fit.cov_re.squeeze()), float(fit.scale), math.expm1(disagreement), len(model_logs)
    )


def build_rows(moments: Components, model: MixedModel | None) -> pd.DataFrame:
    """Return a row per estimated part: part, variance, share of the sum, sd, df, and mixed_sd.

    sd and mixed_sd are standard deviations of the logarithm, by moments and by the mixed model.
    """
    rows = pd.DataFrame({"part": list(PARTS)})
    rows["variance"] = [moments.variance[part] for part in PARTS]
    rows["share"] = rows["variance"] / rows["variance"].sum()
    rows["sd"] = np.sqrt(rows["variance"])
    rows["df"] = [moments.df[part] for part in PARTS]
    mixed_sd = {}
    if model:
        of_epochs = moments.variance["epoch"] / moments.epochs if moments.df["epoch"] else 0.0
        mixed_sd = {"block": math.sqrt(model.block), "run": math.sqrt(max(0.0, model.run - of_epochs))}
    rows["mixed_sd"] = [mixed_sd.get(part, math.nan) for part in PARTS]
    return rows[rows["variance"].notna()].reset_index(drop=True)


def table(runs: pd.DataFrame, epochs: pd.DataFrame) -> tables.Table:
    """Return the table of variance components of a study."""
    log_times = log_times_by_run(runs, epochs)
    moments, model = estimate_components(log_times), fit_mixed_model(runs, log_times)
    rows = build_rows(moments, model)
    if rows.empty:
        return tables.Table(
            TITLE, rows, pd.DataFrame(columns=["part"]), [SINGLE_RUNS, conditions.measurement_note(runs)]
        )
    display = pd.DataFrame(
        {
            "part": rows["part"],
            "meaning": rows["part"].map(MEANINGS),
            "share (%)": rows["share"].map(tables.percent),
            "standard deviation (%)": rows["sd"].map(lambda sd: tables.number(100 * sd)),
            "df": rows["df"].map(str),
        }
    )
    if rows["mixed_sd"].notna().any():
        display["mixed model: sd (%)"] = rows["mixed_sd"].map(lambda sd: tables.number(100 * sd))
    notes = [
        "Variances of the logarithm of epoch time; a standard deviation of 5 % means that times typically "
        "differ by 5 %. Share: of the sum of all parts. df: degrees of freedom; a part with few of them is "
        "uncertain.",
        longer_runs_note(moments),
        _mixed_model_note(model),
        conditions.measurement_note(runs),
    ]
    return tables.Table(TITLE, rows, display, notes, ["part", "meaning"])


def longer_runs_note(moments: Components) -> str:
    """Say whether longer runs or more runs narrow intervals; "" if it cannot be estimated."""
    if not (moments.df["run"] > 0 and moments.df["epoch"] > 0 and moments.mean_variance > 0):
        return ""
    longer = moments.variance["run"] + moments.variance["epoch"] / (2 * moments.epochs)
    gain = 1 - math.sqrt(longer / moments.mean_variance)
    text = (
        f"More runs, or longer runs? Twice as many timed epochs in each run ({2 * moments.epochs:.3g} "
        f"instead of {moments.epochs:.3g}) would make intervals of ratios within blocks about "
        f"{100 * gain:.0f} % narrower, those of means by less; twice as many runs, both 29 % or more."
    )
    return Note("longer-runs", text, epochs=moments.epochs, narrower=gain)


def _mixed_model_note(model: MixedModel | None) -> str:
    if model is None:
        return ""
    text = (
        "Mixed model: fixed cells and random blocks, by restricted maximum likelihood. Its ratios of "
        f"{model.pairs} pairs of cells differ from those in the table `effects` by at most "
        f"{100 * model.largest_disagreement:.2g} %."
    )
    return Note("mixed-model", text, pairs=model.pairs, largest_disagreement=model.largest_disagreement)
