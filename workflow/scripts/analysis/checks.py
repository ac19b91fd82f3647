"""Table of checks: what the intervals and tests of a study assume, whether the runs bear it, and what n can tell apart.

All on the residuals of log epoch times, each run less its cell's mean: a cell is a factor level, a run an observation.
Nothing is left out because of a check: outliers are listed. The residuals themselves go to residuals.csv.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from scipy import special, stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.diagnostic import acorr_ljungbox, normal_ad

from analysis import conditions, intervals, tables
from analysis.intervals import LEVEL, ROUNDING
from analysis.measured import successful
from analysis.pooling import Pooling, pooled
from common.notes import Note
from common.text import number_of

MOST_SHAPIRO = (
    5000  # values; beyond, the p of Shapiro and Wilk's test is not known well (Royston, Applied Statistics 44, 1995)
)
FEWEST_NORMAL = 8
POWER = 0.8
DRIFT_RUNS = 100  # that a drift is stated over, where a study has as many
MOST_TURNS = 200  # of looking for one more outlier
MOST_DUMMIES = 400  # sessions or blocks
SHOWN_OUTLIERS = 20
HEADING = "Assumptions behind intervals and tests, and what the study can tell apart"
# What is checked, as the rows of the table are called; the last two with the number of runs.
ALL, NORMAL, EQUAL_SPREAD, NO_DRIFT = (
    "all assumptions",
    "normal residuals",
    "equal spread in all cells",
    "no drift over run order",
)
INDEPENDENT = "no run depends on the one before it"
NO_OUTLIERS, OUTLIER = "no outliers", "outlier"
HALF_INTERVAL, LEAST_DIFFERENCE = "half the interval of a mean", "least difference of two means"
NOTHING_AGAINST = Note("nothing-against", "nothing speaks against it")
LABELS = "residuals of the logarithm of epoch time within cells"


@dataclass(frozen=True)
class Check:
    """One row: what was looked at, with which test; `size` in %, `run_id` and shares of outliers alone."""

    assumption: str
    test: str
    verdict: Note
    statistic: float = math.nan
    p: float = math.nan
    size_percent: float = math.nan
    run_id: str | None = None
    foreign_cpu_share: float = math.nan
    steal_share: float = math.nan


def residuals(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per successful run, in the order of the runs: run_id, cell, session, block, order (1, 2, ...), by_clock, fitted_log
    (the cell's mean of ln seconds), residual, studentized (externally), normal_quantile, p_outlier and outlier (see `_outlying`).

    Runs alone in their cell have residual 0, and nothing after it. `by_clock`: the order is that of started_at; else the planned.
    """
    ok = successful(runs)
    by_clock = bool(len(ok)) and bool(ok["started_at"].notna().all())
    ok = ok.sort_values("started_at" if by_clock else "order_key", kind="stable").reset_index(drop=True)
    log = np.log(ok["epoch_time_s"].astype(float))
    groups = log.groupby(ok["cell"])
    n = groups.transform("size").to_numpy(float)
    data = ok[["run_id", "cell", "session", "block", "foreign_cpu_share", "steal_share"]].copy()
    data["order"], data["by_clock"] = np.arange(1, len(ok) + 1), by_clock
    data["fitted_log"] = groups.transform("mean").astype(float)
    differ = groups.transform("max") > groups.transform("min")  # rounding is no residual
    data["residual"] = np.where(differ, log - data["fitted_log"], 0.0)
    data["n"] = n.astype(int)
    data["studentized"], _ = _studentized(data["residual"].to_numpy(), n)
    data["p_outlier"], data["outlier"] = _outlying(log.to_numpy(float), pd.factorize(ok["cell"])[0])
    known = data["studentized"].notna().to_numpy()
    place = (data["studentized"][known].rank() - 0.375) / (known.sum() + 0.25)  # Blom (1958)
    data.loc[known, "normal_quantile"] = stats.norm.ppf(place)
    return data


def _studentized(residual: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, float]:
    """Externally studentized residuals of runs in cells of `n`, and their degrees of freedom; NaN where there are none.

    Cook & Weisberg (1982), section 2.2.1, as statsmodels' OLSInfluence has them, without its column for every cell: a cell
    of n runs gives each of them the leverage 1 / n.
    """
    df = float(len(n) - (1 / n).sum().round()) - 1 if len(n) else 0.0
    with np.errstate(all="ignore"):
        internal = residual / np.sqrt((residual**2).sum() / (df + 1) * (1 - 1 / n))
        external = internal * np.sqrt(df / (df + 1 - internal**2))
    usable = (n > 1) & (df > 0) & np.isfinite(external)
    return np.where(usable, external, math.nan), df


def _outlying(log: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p of each run as an outlier, corrected by Bonferroni, and which are: below LEVEL, one after the other.

    The worst is set aside before the rest are judged, since in a small cell one run pulls the mean away from the others. Of
    a cell's two runs both are equally bad. Each p is that of its turn. `cell`: codes 0, 1, ...
    """
    p, outlier = np.full(len(log), math.nan), np.zeros(len(log), dtype=bool)
    for _ in range(MOST_TURNS):
        rest = np.flatnonzero(~outlier)
        n = np.bincount(cell[rest])[cell[rest]] if len(rest) else rest
        residual = log[rest] - (np.bincount(cell[rest], log[rest])[cell[rest]] / n if len(rest) else 0)
        residual[np.abs(residual) < ROUNDING] = 0.0
        t, df = _studentized(residual, n.astype(float))
        known = rest[~np.isnan(t)]
        if not len(known):
            break
        t = np.abs(t[~np.isnan(t)])
        p[known] = np.minimum(len(t) * 2 * stats.t.sf(t, df), 1)
        worst = known[t >= t.max() * (1 - 1e-9)]
        if not p[worst[0]] < LEVEL:
            break
        outlier[worst] = True
    return p, outlier


def checks(runs: pd.DataFrame, data: pd.DataFrame, pooling: Pooling) -> list[Check]:
    """All rows of the table; `data`: `residuals` of the runs."""
    if not pooling.df or not pooling.sd:
        code, why = "runs-do-not-differ", "no two runs of a cell differ"
        if data.empty:
            code, why = "no-successful-run", "no run succeeded"
        return [Check(ALL, "none", Note(code, f"nothing can be checked: {why}"))]
    return [
        _normality(data, pooling),
        _equal_variances(pooling),
        _drift(data),
        _grouped(data, "block"),
        _sessions(data),
        _serial(data),
        *_outliers(data),
        *_resolution(pooling),
    ]


def judged(data: pd.DataFrame) -> list[tuple[str, bool | None, str]]:
    """Of the table's data: each assumption, whether it holds (None: that is not known), and the verdict in words."""
    last = data.index[data["assumption"] == NO_OUTLIERS].tolist() or [len(data)]
    no_outlier = not (data["assumption"] == OUTLIER).any()
    rows = data[: last[0]][["assumption", "p", "verdict"]].itertuples(index=False, name=None)
    found = [(str(name), None if pd.isna(p) else bool(p >= LEVEL), str(said)) for name, p, said in rows]
    return found + [(NO_OUTLIERS, no_outlier, said) for said in data["verdict"][last[0] : last[0] + 1]]


def _normality(data: pd.DataFrame, pooling: Pooling) -> Check:
    """Of internally comparable residuals: the studentized ones, whose variances do not depend on their cell's n.

    They do on its spread. A mixture of unequal ones has heavy tails, and residuals over their own cell's s.d. are not normal
    with few runs, so that the verdict says it.
    """
    x = data["studentized"].dropna().to_numpy(float)
    name = NORMAL
    if len(x) < FEWEST_NORMAL:
        return Check(name, "none", _too_few_residuals(len(x)))
    if len(x) > MOST_SHAPIRO:
        test = f"Anderson-Darling, n = {len(x)}"
        statistic, p = normal_ad(x)
    else:
        test = f"Shapiro-Wilk, n = {len(x)}"
        statistic, p = stats.shapiro(x)
    verdict = NOTHING_AGAINST
    if p < LEVEL:
        kurtosis, skewness = float(stats.kurtosis(x)), float(stats.skew(x))
        text = f"not normal: excess kurtosis {tables.number(kurtosis, 2)}, skewness {tables.number(skewness, 2)}"
        text += "; may be unequal spread alone" if pooling.differ else ""
        verdict = Note("not-normal", text, kurtosis=kurtosis, skewness=skewness, unequal_spread=pooling.differ)
    return Check(name, test, verdict, float(statistic), float(p))


def _too_few_residuals(n: int) -> Note:
    return Note("too-few-residuals", f"cannot be judged from {number_of(n, 'residual')}", n=n)


def _equal_variances(pooling: Pooling) -> Check:
    name, test = EQUAL_SPREAD, "Bartlett"
    if math.isnan(pooling.p):
        text = "cannot be judged: that needs two cells with two runs that differ"
        return Check(name, "none", Note("too-few-cells", text))
    least, most = _ends(pooling.spreads)
    unequal = bool(pooling.p < LEVEL)
    verdict = Note(
        "unequal-spread" if unequal else NOTHING_AGAINST.code,
        f"{'unequal' if unequal else NOTHING_AGAINST}: "
        f"s.d. from {tables.number(100 * least, 2)} to {tables.number(100 * most, 2)} %",
        least=least,
        most=most,
    )
    return Check(name, test, verdict, pooling.statistic, pooling.p)


@dataclass(frozen=True)
class _Added:
    """What columns add to the cells' means: F, its degrees of freedom, p, coefficients."""

    f: float
    df: int
    df_error: int
    p: float
    coefficients: np.ndarray


def _added(data: pd.DataFrame, columns: np.ndarray) -> _Added | None:
    """F test of `columns` [runs, k] beside the cells' means; None where they add nothing, or leave nothing.

    Cells' means are taken out of both sides (Frisch & Waugh 1933), which gives the fit with a column for every cell.
    """
    within = columns - pd.DataFrame(columns).groupby(data["cell"].to_numpy()).transform("mean").to_numpy()
    within[np.abs(within) < 1e-9] = 0.0
    rank = int(np.linalg.matrix_rank(within)) if within.size else 0
    df_error = len(data) - data["cell"].nunique() - rank
    if not rank or df_error < 1:
        return None
    model = OLS(data["residual"].to_numpy(float), within, hasconst=False)
    model.df_model, model.df_resid = rank, df_error
    fit = model.fit()
    if not fit.ssr > 0:
        return None
    return _Added(float(fit.fvalue), rank, df_error, float(fit.f_pvalue), np.asarray(fit.params))


def _drift(data: pd.DataFrame) -> Check:
    name = NO_DRIFT
    test = "slope beside cells" if data["by_clock"].all() else "slope beside cells, in planned order"
    found = _added(data, data[["order"]].to_numpy(float))
    if found is None:
        return Check(name, test, Note("too-few-runs", "cannot be judged: too few runs"))
    over = min(len(data), DRIFT_RUNS)
    slope = 100 * math.expm1(over * float(found.coefficients[0]))
    span = f"in {over} runs" if over < len(data) else f"over all {over} runs"
    said = f"{'slower' if slope > 0 else 'faster'} by {tables.number(abs(slope), 2)} % {span}"
    drifts = found.p < LEVEL
    text = f"drift: {said}" if drifts else f"no drift is seen ({said}, within chance)"
    verdict = Note("drift" if drifts else "no-drift", text, slope_percent=slope, runs=over, all_runs=over == len(data))
    statistic = math.copysign(math.sqrt(found.f), slope)
    return Check(name, f"{test}, t({found.df_error})", verdict, statistic, found.p, slope)


def _grouped(data: pd.DataFrame, column: str) -> Check:
    """F test that blocks, or sessions, differ beside the cells; in % the largest difference of two of them."""
    name = f"{column}s alike"
    known = data[data[column].notna()]
    codes, levels = pd.factorize(known[column], sort=True)
    if len(levels) < 2:
        text = f"one {column}: nothing to compare" if len(levels) else f"no {column} is recorded"
        return Check(name, "none", Note("nothing-to-compare", text, levels=len(levels)))
    if len(levels) > MOST_DUMMIES:
        text = f"{len(levels)} {column}s: too many to be told apart"
        return Check(name, "none", Note("too-many-levels", text, levels=len(levels)))
    found = _added(known, (codes[:, None] == np.arange(1, len(levels))).astype(float))
    if found is None:
        return Check(name, "F", Note("too-few-shared-cells", f"cannot be judged: {column}s share too few cells"))
    said, size = f"{len(levels)} {column}s", math.nan
    if found.df == len(levels) - 1:  # else some share no cell with others, and their distance is not known
        size = 100 * math.expm1(float(np.ptp([0.0, *found.coefficients])))
        said = f"{said}, up to {tables.number(size, 2)} % apart"
    differ = found.p < LEVEL
    text = f"{said}: they differ" if differ else f"no difference is seen ({said}, within chance)"
    verdict = Note("levels-differ" if differ else "no-difference", text, levels=len(levels), apart_percent=size)
    return Check(name, f"F({found.df}, {found.df_error}) beside cells", verdict, found.f, found.p, size)


def _sessions(data: pd.DataFrame) -> Check:
    known = data[data["session"].notna()]
    same = (
        known.groupby("session")["block"].nunique().eq(1).all()
        and known.groupby("block")["session"].nunique().eq(1).all()
    )
    found = _grouped(data, "session")
    if same and len(known) and found.test != "none":
        text = "a session is a block here: see blocks"
        return Check(found.assumption, "none", Note("sessions-are-blocks", text))
    return found


def _serial(data: pd.DataFrame) -> Check:
    name = INDEPENDENT
    x = data.loc[data["n"] > 1, "residual"].to_numpy(float)
    if len(x) < FEWEST_NORMAL:
        return Check(name, "none", _too_few_residuals(len(x)))
    p = float(acorr_ljungbox(x, lags=[1])["lb_pvalue"].iloc[0])
    correlation = float((x[1:] * x[:-1]).sum() / (x**2).sum())
    verdict = NOTHING_AGAINST
    if p < LEVEL:
        alike = Note("neighbours-alike", "runs close in time are alike")
        verdict = alike if correlation > 0 else Note("neighbours-alternate", "slow and fast runs alternate")
    return Check(name, "Ljung-Box, lag 1 (r₁)", verdict, correlation, p)


def _outliers(data: pd.DataFrame) -> Iterator[Check]:
    """A row for each outlier, largest first, and one that counts them."""
    found = data[data["outlier"]].sort_values("p_outlier", kind="stable")
    name, test = NO_OUTLIERS, "studentized residual, Bonferroni"
    known = int(data["studentized"].notna().sum())
    count = Note("outliers", f"{len(found) or 'none'} of {known} runs", outliers=len(found), runs=known)
    yield Check(name, test, count)
    for row in found.itertuples():
        # against the mean of the cell's other runs
        size = 100 * math.expm1(row.residual * row.n / (row.n - 1))
        how = "slower" if size > 0 else "faster"
        text = f"{tables.number(abs(size), 2)} % {how} than its cell's others; kept"
        yield Check(
            OUTLIER,
            test,
            Note("outlier", text, size_percent=size),
            float(row.studentized),
            float(row.p_outlier),
            size,
            row.run_id,
            _float(row.foreign_cpu_share),
            _float(row.steal_share),
        )


def _float(value: object) -> float:
    return math.nan if pd.isna(value) else float(value)  # type: ignore[arg-type]


def half_width(n: int, df: float | None = None) -> float:
    """Half the 95 % t interval of the mean of n runs, in standard deviations of a run: t(df) / sqrt(n); df is n - 1 or given."""
    return float(intervals.t_interval(0.0, 1 / math.sqrt(n), n - 1 if df is None else df)[1])


def least_difference(n: int, df: float | None = None) -> float:
    """The least difference of two means of n runs each that has p < 5 %, in standard deviations of a run: t(df) sqrt(2 / n).

    With 2n - 2 degrees of freedom or `df`.
    """
    return float(intervals.t_interval(0.0, math.sqrt(2 / n), 2 * n - 2 if df is None else df)[1])


def found_difference(n: int, df: float | None = None) -> float:
    """The difference of two means of n runs each, in standard deviations, that has p < 5 % with a probability of POWER.

    By the noncentral t distribution, with 2n - 2 degrees of freedom or `df` (Cohen, Statistical Power Analysis, 2nd ed.
    (1988), section 2.2). A difference as large as `least_difference` is found in about half of all studies.
    """
    df = 2 * n - 2 if df is None else df
    apart = special.nctdtrinc(df, 1 - POWER, stats.t.ppf(1 - LEVEL / 2, df))  # in standard errors of the difference
    return float(apart) * math.sqrt(2 / n)


def _resolution(pooling: Pooling) -> Iterator[Check]:
    """What a mean and a difference of means of the most common n > 1 are known to, in s.d. and in % of an epoch's time.

    The size is that of the s.d. of all cells together; the verdict has the range over cells. Differences are those within blocks
    where cells are compared so, in s.d. of what blocks leave.
    """
    counts = pooling.cells["n"]
    n = int(counts[counts > 1].mode().max())
    spread, df = pooling.resolution(n)
    for name, width, of in (
        (HALF_INTERVAL, half_width(n, pooling.of_mean(n)), pooling),
        (LEAST_DIFFERENCE, least_difference(n, df), spread),
        (f"difference found with {100 * POWER:.0f} % power", found_difference(n, df), spread),
    ):
        after = "" if of is pooling else " after blocks"
        size = 100 * math.expm1(width * of.sd)
        about, ends = f"about {tables.number(size, 2)} %", []
        if len(of.spreads) > 1:
            ends = [100 * math.expm1(width * s) for s in _ends(of.spreads)]
            lowest, highest = (tables.number(end, 2) for end in ends)
            about = f"{lowest} to {highest} % by cell, with the s.d. of all together {about.removeprefix('about ')}"
        test = f"Student's t, moderated s{', within blocks' if after else ''}"
        text = f"{width:.2f} s.d.{after}, {about} of epoch time"
        verdict = Note("resolution", text, sd=width, after_blocks=bool(after), percent=size, percent_by_cell=ends)
        yield Check(f"{name}, n = {n}", test, verdict, width, math.nan, size)


def _ends(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def table(runs: pd.DataFrame, data: pd.DataFrame | None = None) -> tables.Table:
    """The table of checks of a study; `data`: its `residuals`."""
    data = residuals(runs) if data is None else data
    pooling = pooled(runs)
    rows = checks(runs, data, pooling)
    frame = pd.DataFrame([asdict(row) for row in rows])
    outliers = [row for row in rows if row.run_id]
    listed = {row.run_id for row in outliers[:SHOWN_OUTLIERS]}
    seen = [row for row in rows if not row.run_id or row.run_id in listed]
    shown: dict[str, list[str]] = {
        "assumption": [row.run_id or row.assumption for row in seen],
        "test": [row.test for row in seen],
        "statistic": [tables.number(row.statistic) for row in seen],
        "p": [tables.p_value(row.p) for row in seen],
        "verdict": [row.verdict for row in seen],
    }
    if outliers:
        shown["foreign CPU (%)"] = [tables.percent(row.foreign_cpu_share) for row in seen]
        shown["stolen (%)"] = [tables.percent(row.steal_share) for row in seen]
    more = len(outliers) - SHOWN_OUTLIERS
    notes = [
        conditions.counts(runs),
        f"Tests use {LABELS}; cells with one run have none. Each verdict is at the 5 % level, not corrected for the number of tests. "
        "Intervals of means stay good when runs are not normal, the more runs the better. Drift, blocks, sessions and "
        "autocorrelation between consecutive runs add noise to cells, because runs are in random order, and widen their intervals. They "
        "also make runs depend on each other: runs of one block share its effect, so intervals of means count blocks, not runs, as "
        "independent. Comparisons of two cells within blocks remove this effect.",
        "Outliers: runs whose externally studentized residual has p < 5 % after Bonferroni's correction for the number of "
        "runs. They are searched one after the other, the largest first, with the s.d. of all cells together, so runs of a cell with a large "
        "spread are found first. No outlier is removed. Foreign CPU and stolen: processor time that other processes and a hypervisor took."
        + (f" {more} more are in the CSV file." if more > 0 else ""),
        _per_n(pooling),
        conditions.setting(runs),
    ]
    return tables.Table(
        HEADING,
        frame,
        pd.DataFrame(shown),
        [note for note in notes if note],
        words=["assumption", "test", "verdict"],
    )


def _per_n(pooling: Pooling) -> str:
    """What other numbers of replicates would give, in standard deviations of a run."""
    if not pooling.sd > 0:
        return ""
    by_n = {n: (half_width(n), least_difference(n), found_difference(n)) for n in (3, 5, 10, 20)}
    told = ", ".join(f"n = {n}: {half:.2f}, {least:.2f} and {found:.2f}" for n, (half, least, found) in by_n.items())
    text = (
        "Least difference: the smallest difference of two means that has p < 5 % in a single comparison. If the true difference is this "
        f"large, half of all studies of this size would find it. With {100 * POWER:.0f} % power: the true difference that four of five such "
        "studies would find. Other numbers of replicates, for independent groups with each cell's own s, in s.d. of a run: half "
        f"the interval of a mean, the least difference, and the difference found with {100 * POWER:.0f} % power are for {told}. The s.d. of this "
        f"study's runs, all cells together, is {tables.number(100 * pooling.sd)} % of epoch time."
    )
    return Note("other-replicates", text, sd_by_n=by_n, sd=pooling.sd)


def listed(data: pd.DataFrame) -> pd.DataFrame:
    """What residuals.csv has of `residuals`."""
    order = ["run_id", "cell", "session", "block", "order", "fitted_log", "residual", "studentized", "normal_quantile"]
    return data[[*order, "p_outlier", "outlier"]]
