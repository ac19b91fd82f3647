"""Table of checks: assumptions of intervals and tests, and the differences that n runs can resolve.

All checks use residuals: the log epoch time of a run less the mean of its cell. A check removes nothing:
outliers are only listed.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from scipy import special, stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.diagnostic import acorr_ljungbox, normal_ad
from statsmodels.tools.sm_exceptions import SingularMatrixWarning

from analysis import conditions, intervals, tables
from analysis.cell_means import CellMeans, estimate_means
from analysis.intervals import ROUNDING, SIGNIFICANCE_LEVEL
from analysis.records import measured_elsewhere, successful, to_float
from common.lattice import find_lattices
from common.notes import Note
from common.text import number_of
from common.units import TIMES, in_one_unit

MAX_SHAPIRO_VALUES = 5000  # p is inaccurate for more values (Royston, Applied Statistics 44, 1995).
MIN_RESIDUALS = 8
POWER = 0.8
DRIFT_RUNS = 100  # A drift is stated over this number of runs, or over a block if that is shorter.
MAX_OUTLIER_ROUNDS = 200
MAX_GROUPS = 400  # Most sessions or blocks.
MAX_LISTED_OUTLIERS = 20
HEADING = "Assumptions of intervals and tests, and the differences that the study can resolve"
# Assumptions as the table names them; the last two are followed by the number of runs.
ALL, NORMAL, EQUAL_SPREAD, NO_DRIFT = (
    "all assumptions",
    "normal residuals",
    "equal spread in all cells",
    "no drift over run order",
)
BLOCKS_ALIKE, SESSIONS_ALIKE = "blocks alike", "sessions alike"
INDEPENDENT = "no run depends on the one before it"
NO_OUTLIERS, OUTLIER = "no outliers", "outlier"
HALF_INTERVAL, MIN_DIFFERENCE = "half the interval of a mean", "least difference of two means"
DOUBTFUL = "not rejected, but doubtful"
NO_EVIDENCE = Note("nothing-against", "no evidence against it")
LATTICES = Note(
    "lattices",
    "A cell is on a lattice if its runs lie on few values, multiples of a step apart, and closer to them "
    "than chance explains. Times to train do: each is an offset plus a number of evaluations times their "
    "interval. Times of machines with two speeds look the same. No such sample is normal, and a run is an "
    "outlier if it differs from other runs at its value. Intervals and tests hold: of random halves of such "
    "runs, 4 to 6 % differ with p < 5 %.",
)
RESIDUALS = "residuals of the logarithm of epoch time within cells"

ORDER_TESTED = (
    "Because runs are in random order, drift, blocks, sessions and autocorrelation between consecutive runs "
    "add noise to all cells and widen their intervals. They also make runs depend on each other: runs of a "
    "block share its effect, so intervals of means count blocks, not runs, as independent. Comparisons of "
    "two cells within blocks remove this effect."
)
AFTER_BLOCKS = "For normality, drift and autocorrelation, differences between blocks are removed, too. "
ORDER_UNKNOWN = (
    "Drift, blocks and autocorrelation are not tested: the runs were measured elsewhere, in an order that is "
    "not random, and can depend on each other."
)


@dataclass(frozen=True)
class Check:
    """A row of the table; `size_percent` is the size of the effect, and only outliers have the shares."""

    assumption: str
    test: str
    verdict: Note
    statistic: float = math.nan
    p: float = math.nan
    size_percent: float = math.nan
    run_id: str | None = None
    other_cpu_share: float = math.nan
    steal_share: float = math.nan


def residuals(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per successful run, in the order of the runs.

    Columns: run_id, cell, session, block, other_cpu_share, steal_share, order (1, 2, ...), by_clock, n (runs
    of the cell), fitted_log (the cell's mean of ln seconds), residual, studentized (externally),
    normal_quantile, p_outlier and outlier (`_find_outliers`), and step_s and place: the step of the cell's
    lattice, and the point of the lattice that the run lies on, NaN and 0 without a lattice. The order is that
    of started_at if `by_clock`, else the planned one. A run that is alone in its cell has residual 0, and is
    not studentized. In cells on a lattice, outliers are judged among the runs of one point, apart from the
    other cells.
    """
    ok = successful(runs)
    by_clock = bool(len(ok)) and bool(ok["started_at"].notna().all())
    ok = ok.sort_values("started_at" if by_clock else "order_key", kind="stable").reset_index(drop=True)
    log = np.log(ok["epoch_time_s"].astype(float))
    groups = log.groupby(ok["cell"])
    n = groups.transform("size").to_numpy(float)
    data = ok[["run_id", "cell", "session", "block", "other_cpu_share", "steal_share"]].copy()
    data["order"], data["by_clock"] = np.arange(1, len(ok) + 1), by_clock
    data["fitted_log"] = groups.transform("mean").astype(float)
    differ = groups.transform("max") > groups.transform("min")  # Else residuals are 0, not rounding.
    data["residual"] = np.where(differ, log - data["fitted_log"], 0.0)
    data["n"] = n.astype(int)
    data["studentized"], _ = _studentized(data["residual"].to_numpy(), n)
    data["step_s"], data["place"] = _lattice_columns(ok)
    data["p_outlier"], data["outlier"] = math.nan, False
    on_lattice = data["step_s"].notna()
    for part in (data.index[on_lattice], data.index[~on_lattice]):  # Their spreads differ.
        peers = pd.factorize(_peers(data).loc[part])[0]
        p, outlier = _find_outliers(log.loc[part].to_numpy(float), peers)
        data.loc[part, "p_outlier"], data.loc[part, "outlier"] = p, outlier
    return data.assign(normal_quantile=_normal_quantiles(data["studentized"]))


def _normal_quantiles(values: pd.Series) -> np.ndarray:
    """Return the normal quantile of the rank of each value (Blom, 1958); NaN for a missing value."""
    quantiles: np.ndarray = stats.norm.ppf((values.rank() - 0.375) / (values.notna().sum() + 0.25))
    return quantiles


def _lattice_columns(ok: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the step (s) of each run's lattice and the run's point on it; NaN and 0 without a lattice."""
    step, place = np.full(len(ok), math.nan), np.zeros(len(ok), dtype=int)
    seconds = ok["epoch_time_s"].to_numpy(float)
    rows_by_cell = ok.groupby("cell", sort=False).indices
    for cell, lattice in find_lattices({name: seconds[rows] for name, rows in rows_by_cell.items()}).items():
        step[rows_by_cell[cell]], place[rows_by_cell[cell]] = lattice.step, lattice.indices
    return step, place


def _peers(data: pd.DataFrame) -> "pd.Series[int]":
    """Return a code of each run's group of peers: the runs of its cell at the same point of the lattice."""
    return data.groupby(["cell", "place"], sort=False).ngroup()


def lattice_note(data: pd.DataFrame) -> Note | None:
    """Say in a clause how many cells lie on a lattice; None if there are none. `data` are `residuals`."""
    cells = data[data["step_s"].notna()].groupby("cell")
    if not len(cells):
        return None
    points, steps = cells["place"].nunique(), cells["step_s"].first()
    n_cells = data["cell"].nunique()
    apart = in_one_unit((steps.min(), steps.max()), TIMES, digits=3)
    values = " to ".join(dict.fromkeys(str(n) for n in (points.min(), points.max())))
    text = (
        f"in {len(points)} of {number_of(n_cells, 'cell')} the runs lie on {values} values, multiples of a "
        f"step apart ({apart}), as times do that count evaluations"
    )
    facts = {"cells": list(points.index), "of": n_cells, "steps_s": steps.to_dict()}
    return Note("lattice", text, **facts, points=points.to_dict())


def _studentized(residual: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, float]:
    """Return externally studentized residuals of runs in cells of `n`, and their degrees of freedom.

    Residuals are NaN if undefined. The result is that of OLSInfluence of statsmodels (Cook & Weisberg (1982),
    section 2.2.1) without a column per cell, because each run of a cell of n has leverage 1 / n.
    """
    df = float(len(n) - (1 / n).sum().round()) - 1 if len(n) else 0.0
    with np.errstate(all="ignore"):
        internal = residual / np.sqrt((residual**2).sum() / (df + 1) * (1 - 1 / n))
        external = internal * np.sqrt(df / (df + 1 - internal**2))
    usable = (n > 1) & (df > 0) & np.isfinite(external)
    return np.where(usable, external, math.nan), df


def _find_outliers(log: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Bonferroni's p of each run as an outlier, and which runs are outliers.

    The worst run is set aside before the other runs are judged again, because one run of a small cell moves
    the cell's mean away from its other runs. Both runs of a cell of two are equally bad, so both are set
    aside. The p of a run is that of the last round that judged it.

    Args:
        log: Log epoch times [runs].
        cell: Cell codes 0, 1, ... [runs].
    """
    p, outlier = np.full(len(log), math.nan), np.zeros(len(log), dtype=bool)
    for _ in range(MAX_OUTLIER_ROUNDS):
        rest = np.flatnonzero(~outlier)
        n = np.bincount(cell[rest])[cell[rest]] if len(rest) else rest
        residual = log[rest] - (np.bincount(cell[rest], log[rest])[cell[rest]] / n if len(rest) else 0)
        residual[np.abs(residual) < ROUNDING] = 0.0
        t, df = _studentized(residual, n.astype(float))
        judged = rest[~np.isnan(t)]
        if not len(judged):
            break
        t = np.abs(t[~np.isnan(t)])
        p[judged] = np.minimum(len(t) * 2 * stats.t.sf(t, df), 1)
        worst = judged[t >= t.max() * (1 - 1e-9)]
        if not p[worst[0]] < SIGNIFICANCE_LEVEL:
            break
        outlier[worst] = True
    return p, outlier


def _block_columns(data: pd.DataFrame) -> np.ndarray:
    """Return a column per further block [runs, k]; none if no run or not every run has a block."""
    codes, levels = pd.factorize(data["block"], sort=True)
    n = len(levels) if 1 < len(levels) <= MAX_GROUPS and (codes >= 0).all() else 1
    return (codes[:, None] == np.arange(1, n)).astype(float)


def _centre_on_cells(cells: "pd.Series[str]", columns: np.ndarray) -> np.ndarray:
    """Return columns without the means of cells."""
    centred = columns - pd.DataFrame(columns).groupby(cells.to_numpy()).transform("mean").to_numpy()
    centred[np.abs(centred) < 1e-9] = 0.0
    return centred


def _rank(columns: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(columns)) if columns.size else 0


def _remove(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return `values` without what the columns explain of them; rounding errors are 0."""
    if not columns.size:
        return values
    rest = values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0]
    return np.where(np.abs(rest) < 1e-9, 0.0, rest)


def remove_blocks(data: pd.DataFrame) -> pd.DataFrame:
    """Return `data` with residuals after cells and blocks; unchanged if blocks leave no error.

    Comparisons are within blocks, so a slow block alone should fail no check but that of the blocks.
    Leverages of the studentized residuals are those of cells alone: blocks add about the same to all.
    """
    columns = _centre_on_cells(data["cell"], _block_columns(data))
    if not (rank := _rank(columns)) or len(data) - data["cell"].nunique() - rank < 1:
        return data
    residual = _remove(columns, data["residual"].to_numpy(float))
    studentized, _ = _studentized(residual, data["n"].to_numpy(float))
    quantiles = _normal_quantiles(pd.Series(studentized))
    return data.assign(residual=residual, studentized=studentized, normal_quantile=quantiles)


def run_checks(data: pd.DataFrame, cell_means: CellMeans) -> list[Check]:
    """Return all rows of the table; `data` are the `residuals` of the runs.

    The order of runs that were measured elsewhere is not tested, because it was not random.
    """
    if not cell_means.df or not cell_means.sd:
        code, why = "runs-do-not-differ", "no two runs of a cell differ"
        if data.empty:
            code, why = "no-successful-run", "no run succeeded"
        return [Check(ALL, "none", Note(code, f"nothing can be checked: {why}"))]
    is_elsewhere = bool(data["block"].isna().all())
    order = (
        []
        if is_elsewhere
        else [
            _check_drift(data),
            _check_groups(data, "block"),
            _check_sessions(data),
            _check_autocorrelation(remove_blocks(data)),
        ]
    )
    return [
        _check_normality(remove_blocks(data), cell_means),
        _check_equal_variances(cell_means),
        *order,
        *_check_outliers(data),
        *_check_resolution(cell_means),
    ]


def judge_assumptions(data: pd.DataFrame) -> list[tuple[str, bool | None, str]]:
    """Return each assumption in the CSV of the table, whether it holds, and its verdict.

    Whether it holds is None if it was not judged, or if its verdict begins with DOUBTFUL.
    """
    outlier_row = data.index[data["assumption"] == NO_OUTLIERS].tolist() or [len(data)]
    no_outlier = not (data["assumption"] == OUTLIER).any()
    rows = data[: outlier_row[0]][["assumption", "p", "verdict"]].itertuples(index=False, name=None)
    judgements = [
        (
            str(name),
            None if pd.isna(p) or str(verdict).startswith(DOUBTFUL) else bool(p >= SIGNIFICANCE_LEVEL),
            str(verdict),
        )
        for name, p, verdict in rows
    ]
    return judgements + [
        (NO_OUTLIERS, no_outlier, verdict) for verdict in data["verdict"][outlier_row[0] : outlier_row[0] + 1]
    ]


def _check_normality(data: pd.DataFrame, cell_means: CellMeans) -> Check:
    """Test studentized residuals for normality: their variance does not depend on the runs of their cell.

    Cells of unequal spread give heavy tails. Dividing by each cell's s.d. would not help, because the
    quotient is not normal for few runs. So the verdict mentions unequal spread.
    """
    x = data["studentized"].dropna().to_numpy(float)
    name = NORMAL
    if len(x) < MIN_RESIDUALS:
        return Check(
            name, "none", Note("too-few-residuals", f"cannot be judged from {number_of(len(x), 'residual')}")
        )
    if len(x) > MAX_SHAPIRO_VALUES:
        test = f"Anderson-Darling, n = {len(x)}"
        statistic, p = normal_ad(x)
    else:
        test = f"Shapiro-Wilk, n = {len(x)}"
        statistic, p = stats.shapiro(x)
    verdict = NO_EVIDENCE
    if (lattice := lattice_note(data)) is not None:
        finding = "not normal" if p < SIGNIFICANCE_LEVEL else f"{NO_EVIDENCE}, but it does not hold"
        verdict = Note("lattice", f"{finding}: {lattice}", **lattice.facts)
    elif p < SIGNIFICANCE_LEVEL:
        kurtosis, skewness = float(stats.kurtosis(x)), float(stats.skew(x))
        text = (
            f"not normal: excess kurtosis {tables.number(kurtosis, 2)}, skewness {tables.number(skewness, 2)}"
        )
        text += "; may be unequal spread alone" if cell_means.differ else ""
        verdict = Note("not-normal", text)
    return Check(name, test, verdict, float(statistic), float(p))


def _check_equal_variances(cell_means: CellMeans) -> Check:
    name, test = EQUAL_SPREAD, "Bartlett"
    if math.isnan(cell_means.p):
        text = "cannot be judged: that needs two cells with two runs that differ"
        return Check(name, "none", Note("too-few-cells", text))
    smallest, largest = cell_means.spreads.min(), cell_means.spreads.max()
    unequal = bool(cell_means.p < SIGNIFICANCE_LEVEL)
    text = f"s.d. from {tables.number(100 * smallest, 2)} to {tables.number(100 * largest, 2)} %"
    if cell_means.differ and not unequal:
        times = tables.number(cell_means.largest_spread_ratio, 2)
        verdict = Note("doubtful-spread", f"{DOUBTFUL}: {text}, a ratio of {times}")
    else:
        code, word = ("unequal-spread", "unequal") if unequal else (NO_EVIDENCE.code, NO_EVIDENCE)
        verdict = Note(code, f"{word}: {text}")
    return Check(name, test, verdict, cell_means.statistic, cell_means.p)


@dataclass(frozen=True)
class _FTest:
    """The F test of columns in addition to the means of cells."""

    f: float
    df: int
    df_error: int
    p: float
    coefficients: np.ndarray


def _test_columns(
    data: pd.DataFrame, columns: np.ndarray, nuisance: np.ndarray | None = None
) -> _FTest | None:
    """Test `columns` [runs, k] in addition to the cells' means; None if they add nothing or leave no error.

    Cell means and the columns `nuisance` are removed from both sides (Frisch & Waugh 1933), which equals a
    fit with a column for each of them.
    """
    centred, residual = _centre_on_cells(data["cell"], columns), data["residual"].to_numpy(float)
    blocks = _centre_on_cells(data["cell"], columns[:, :0] if nuisance is None else nuisance)
    centred, residual = _remove(blocks, centred), _remove(blocks, residual)
    rank = _rank(centred)
    df_error = len(data) - data["cell"].nunique() - _rank(blocks) - rank
    if not rank or df_error < 1:
        return None
    model = OLS(residual, centred, hasconst=False)
    model.df_model, model.df_resid = rank, df_error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SingularMatrixWarning)  # `rank` counts what is independent
        fit = model.fit()
    if not fit.ssr > 0:
        return None
    return _FTest(float(fit.fvalue), rank, df_error, float(fit.f_pvalue), np.asarray(fit.params))


def _check_drift(data: pd.DataFrame) -> Check:
    name = NO_DRIFT
    order, blocks = data[["order"]].to_numpy(float), _block_columns(data)
    test, test_result = "slope within cells and blocks", _test_columns(data, order, blocks)
    over = int(data["block"].value_counts().max()) if blocks.size else len(data)
    if test_result is None or not blocks.size:
        test, test_result, over = "slope within cells", _test_columns(data, order), len(data)
    test += "" if data["by_clock"].all() else ", in planned order"
    if test_result is None:
        return Check(name, test, Note("too-few-runs", "cannot be judged: too few runs"))
    over = min(over, DRIFT_RUNS)
    slope = 100 * math.expm1(over * float(test_result.coefficients[0]))
    span = f"in {over} runs" if over < len(data) else f"over all {over} runs"
    change = f"{'slower' if slope > 0 else 'faster'} by {tables.number(abs(slope), 2)} % {span}"
    drifts = test_result.p < SIGNIFICANCE_LEVEL
    text = f"drift: {change}" if drifts else f"no drift is seen ({change}, within chance)"
    verdict = Note("drift" if drifts else "no-drift", text)
    statistic = math.copysign(math.sqrt(test_result.f), slope)
    return Check(name, f"{test}, t({test_result.df_error})", verdict, statistic, test_result.p, slope)


def _check_groups(data: pd.DataFrame, column: str) -> Check:
    """Test whether blocks or sessions differ within cells; the size is their largest difference in %."""
    name = f"{column}s alike"
    recorded = data[data[column].notna()]
    codes, levels = pd.factorize(recorded[column], sort=True)
    if len(levels) < 2:
        text = f"one {column}: nothing to compare" if len(levels) else f"no {column} is recorded"
        return Check(name, "none", Note("nothing-to-compare", text))
    if len(levels) > MAX_GROUPS:
        text = f"{len(levels)} {column}s: too many to be compared"
        return Check(name, "none", Note("too-many-levels", text))
    test_result = _test_columns(recorded, (codes[:, None] == np.arange(1, len(levels))).astype(float))
    if test_result is None:
        return Check(
            name, "F", Note("too-few-shared-cells", f"cannot be judged: {column}s share too few cells")
        )
    summary, size = f"{len(levels)} {column}s", math.nan
    if test_result.df == len(levels) - 1:  # The distance of groups that share no cell is unknown.
        size = 100 * math.expm1(float(np.ptp([0.0, *test_result.coefficients])))
        summary = f"{summary}, up to {tables.number(size, 2)} % apart"
    differ = test_result.p < SIGNIFICANCE_LEVEL
    text = (
        f"{summary}: they differ{_odd_level(column, levels, test_result)}"
        if differ
        else f"no difference is seen ({summary}, within chance)"
    )
    verdict = Note("levels-differ" if differ else "no-difference", text)
    return Check(
        name,
        f"F({test_result.df}, {test_result.df_error}) within cells",
        verdict,
        test_result.f,
        test_result.p,
        size,
    )


def _odd_level(column: str, levels: pd.Index, test_result: _FTest) -> str:
    """Name the block or session farthest from the others; "" for two, or for unknown distances."""
    if len(levels) < 3 or test_result.df != len(levels) - 1:
        return ""
    values = np.array([0.0, *test_result.coefficients])
    apart = (values - values.mean()) * len(values) / (len(values) - 1)
    odd = int(np.abs(apart).argmax())
    size = 100 * math.expm1(float(apart[odd]))
    direction = "slower" if size > 0 else "faster"
    return (
        f", most of all {column} {levels[odd]}, {tables.number(abs(size), 2)} % {direction} than the others"
    )


def _check_sessions(data: pd.DataFrame) -> Check:
    recorded = data[data["session"].notna()]
    sessions_are_blocks = (
        recorded.groupby("session")["block"].nunique().eq(1).all()
        and recorded.groupby("block")["session"].nunique().eq(1).all()
    )
    check = _check_groups(data, "session")
    if sessions_are_blocks and len(recorded) and check.test != "none":
        text = "a session is a block here: see blocks"
        return Check(check.assumption, "none", Note("sessions-are-blocks", text))
    return check


def _check_autocorrelation(data: pd.DataFrame) -> Check:
    name = INDEPENDENT
    x = data.loc[data["n"] > 1, "residual"].to_numpy(float)
    if len(x) < MIN_RESIDUALS:
        return Check(
            name, "none", Note("too-few-residuals", f"cannot be judged from {number_of(len(x), 'residual')}")
        )
    p = float(acorr_ljungbox(x, lags=[1])["lb_pvalue"].iloc[0])
    correlation = float((x[1:] * x[:-1]).sum() / (x**2).sum())
    verdict = NO_EVIDENCE
    if p < SIGNIFICANCE_LEVEL:
        similar = Note("neighbours-alike", "runs close in time are alike")
        verdict = similar if correlation > 0 else Note("neighbours-alternate", "slow and fast runs alternate")
    return Check(name, "Ljung-Box, lag 1 (r₁)", verdict, correlation, p)


def _check_outliers(data: pd.DataFrame) -> Iterator[Check]:
    """Yield a row that counts outliers, then a row for each, largest first."""
    outliers = data[data["outlier"]].sort_values("p_outlier", kind="stable")
    name, test = NO_OUTLIERS, "studentized residual, Bonferroni"
    n_judged = int(data["p_outlier"].notna().sum())
    is_lattice = bool(data["step_s"].notna().any())
    condition = ", each among those of its value: another value is none" if is_lattice else ""
    text = f"{len(outliers) or 'none'} of {n_judged} runs{condition}"
    yield Check(name, test, Note("outliers", text))
    on_lattice = data[data["step_s"].notna()]
    peers = on_lattice["residual"].groupby(_peers(on_lattice))
    residual = on_lattice["residual"] - peers.transform("mean")
    studentized, _ = _studentized(residual.to_numpy(), peers.transform("size").to_numpy(float))
    among_peers = on_lattice.assign(residual=residual, n=peers.transform("size"), studentized=studentized)
    for row in pd.concat([among_peers, data.drop(on_lattice.index)]).loc[outliers.index].itertuples():
        # Relative to the mean of the other runs.
        size = 100 * math.expm1(row.residual * row.n / (row.n - 1))
        direction = "slower" if size > 0 else "faster"
        text = f"{tables.number(abs(size), 2)} % {direction} than its cell's others"
        text += " of this value; kept" if pd.notna(row.step_s) else "; kept"
        yield Check(
            OUTLIER,
            test,
            Note("outlier", text),
            float(row.studentized),
            float(row.p_outlier),
            size,
            row.run_id,
            to_float(row.other_cpu_share),
            to_float(row.steal_share),
        )


def half_width(n: int, df: float) -> float:
    """Return half the 95 % t interval of the mean of n runs, t(df) / sqrt(n), in s.d. of a run."""
    return float(intervals.t_interval(0.0, 1 / math.sqrt(n), df)[1])


def significant_difference(n: int, df: float) -> float:
    """Return the smallest difference of two means of n runs each with p < 5 %: t(df) sqrt(2 / n).

    The unit is the standard deviation of a run.
    """
    return float(intervals.t_interval(0.0, math.sqrt(2 / n), df)[1])


def detectable_difference(n: int, df: float) -> float:
    """Return the difference of two means of n runs each that has p < 5 % with a probability of POWER.

    The unit is the standard deviation of a run. Uses the noncentral t distribution with `df` degrees of
    freedom (Cohen, Statistical Power Analysis, 2nd ed. (1988), section 2.2). A difference as large as
    `significant_difference` is detected in about half of all studies.
    """
    # The difference in standard errors.
    apart = special.nctdtrinc(df, 1 - POWER, stats.t.ppf(1 - SIGNIFICANCE_LEVEL / 2, df))
    return float(apart) * math.sqrt(2 / n)


def _check_resolution(cell_means: CellMeans) -> Iterator[Check]:
    """Yield the resolution of a mean and of a difference for the most common n > 1, in s.d. and in %.

    The size uses the s.d. pooled over all cells. The verdict has the range over cells with their moderated
    s.d., as intervals and tests use it. If cells are compared within blocks, differences are in s.d. of the
    residuals after blocks.
    """
    counts = cell_means.cell_statistics["n"]
    n = int(counts[counts > 1].mode().max())
    difference_spread, df = cell_means.resolution(n)
    for name, width, spread in (
        (HALF_INTERVAL, half_width(n, cell_means.mean_df(n)), cell_means),
        (MIN_DIFFERENCE, significant_difference(n, df), difference_spread),
        (f"difference found with {100 * POWER:.0f} % power", detectable_difference(n, df), difference_spread),
    ):
        after = "" if spread is cell_means else " after blocks"
        size = 100 * math.expm1(width * spread.sd)
        size_text = f"about {tables.number(size, 2)} %"
        facts: dict[str, list[float]] = {}
        if len(spread.spreads) > 1:
            facts["range_percent"] = [
                100 * math.expm1(width * s)
                for s in (spread.moderated_spreads.min(), spread.moderated_spreads.max())
            ]
            lowest, highest = (tables.number(percent, 2) for percent in facts["range_percent"])
            size_text = (
                f"{lowest} to {highest} % by cell, with the s.d. of all together {tables.number(size, 2)} %"
            )
        test = f"Student's t, moderated s{', within blocks' if after else ''}"
        text = f"{width:.2f} s.d.{after}, {size_text} of epoch time"
        yield Check(f"{name}, n = {n}", test, Note("resolution", text, **facts), width, math.nan, size)


def table(runs: pd.DataFrame, data: pd.DataFrame | None = None) -> tables.Table:
    """Return the table of checks of a study; `data` are its `residuals`."""
    data = residuals(runs) if data is None else data
    cell_means = estimate_means(runs)
    rows = run_checks(data, cell_means)
    frame = pd.DataFrame([asdict(row) for row in rows])
    outliers = [row for row in rows if row.run_id]
    listed_ids = {row.run_id for row in outliers[:MAX_LISTED_OUTLIERS]}
    listed_rows = [row for row in rows if not row.run_id or row.run_id in listed_ids]
    display: dict[str, list[str]] = {
        "assumption": [row.run_id or row.assumption for row in listed_rows],
        "test": [row.test for row in listed_rows],
        "statistic": [tables.number(row.statistic) for row in listed_rows],
        "p": [tables.p_value(row.p) for row in listed_rows],
        "verdict": [row.verdict for row in listed_rows],
    }
    is_elsewhere = measured_elsewhere(runs)
    n_unlisted = len(outliers) - MAX_LISTED_OUTLIERS
    after_blocks = "" if is_elsewhere else AFTER_BLOCKS
    notes = [
        conditions.run_counts_note(runs),
        f"Tests use {RESIDUALS}; cells with one run have none. {after_blocks}Each verdict is at the 5 % "
        "level, not corrected for the number of tests. Intervals of means tolerate runs that are not normal, "
        f"the more runs the better. {ORDER_UNKNOWN if is_elsewhere else ORDER_TESTED}",
        "Outliers: runs whose externally studentized residual has p < 5 % after Bonferroni's correction for "
        "the number of runs. They are searched one by one, the largest first, with the s.d. pooled over all "
        "cells, so runs of a cell with a large spread are found first. No outlier is removed."
        + (f" {n_unlisted} more are in the CSV file." if n_unlisted > 0 else ""),
        LATTICES if data["step_s"].notna().any() else "",
        conditions.measurement_note(runs),
    ]
    return tables.Table(
        HEADING,
        frame,
        pd.DataFrame(display),
        notes,
        left_aligned=["assumption", "test", "verdict"],
    )


def residual_columns(data: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of `residuals` that go into residuals.csv."""
    order = [
        "run_id",
        "cell",
        "session",
        "block",
        "order",
        "fitted_log",
        "residual",
        "studentized",
        "normal_quantile",
    ]
    return data[[*order, "p_outlier", "outlier"]]
