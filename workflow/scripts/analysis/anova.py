"""Table of the analysis of variance of log epoch time: which factors, interactions and blocks make times differ, and how much.

Terms are the varying factors (categorical), their two-way interactions, and block. What these leave between cells stands
in one row, interactions of more factors; the error is what runs of a cell differ by, less their blocks' differences. Sums
of squares are of type II: each term after all others that do not contain it, as the fall of the residual sum of squares
(Fox 2016, Applied Regression Analysis, section 8.2). statsmodels' anova_lm gives the same where no cell is missing (there
is a test); it has no answer for an interaction of which cells are missing, where the fall and its rank still have.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from scipy import linalg, stats
from statsmodels.regression.linear_model import OLS

from analysis import conditions, tables
from analysis.intervals import ALL_THE_SAME, CONFIDENCE, Estimate, one_value, p_text
from analysis.measured import level_text, levels_in_order, successful, title, varying
from analysis.pooling import after_blocks, pooled
from common.notes import Note
from common.text import number_of

BLOCK, HIGHER, ERROR, TOTAL = "block", "interactions of more factors", "error", "total"
TIMES = " × "
NO_ERROR_DF = Note("no-error-df", "no degree of freedom is left for the error")
RUNS_THE_SAME = Note("runs-do-not-differ", "runs of a cell do not differ")
UNBALANCED = " Combinations have different numbers of runs, so terms share some variation, and the sums do not add up to the total."
RANK_TOLERANCE = 1e-9
ZERO_SHARE = 1e-12  # of the total sum of squares: what is less is rounding
MOST_COLUMNS = 400  # of the design; two-way interactions that would make more are left out, and named
COLUMNS = ["term", "df", "sum_sq", "mean_sq", "F", "p", "share", "eta_sq_partial", "omega_sq_partial", "q", "q_low", "q_high"]  # fmt: skip


@dataclass(frozen=True)
class Term:
    """A term of the model: its factors, and its columns [rows, k] in deviation coding."""

    factors: tuple[str, ...]
    columns: np.ndarray
    nominal: int
    independent: np.ndarray = field(
        default_factory=lambda: np.empty(0, dtype=bool)
    )  # which columns add to the terms before them

    @property
    def name(self) -> str:
        """Its factors by name."""
        return TIMES.join(self.factors)


@dataclass(frozen=True)
class Analysis:
    """An analysis of variance: `rows` with COLUMNS; what the design cannot estimate, or only in part; why there are no tests."""

    rows: pd.DataFrame
    aliased: dict[str, str]  # term -> the term that it cannot be told from; empty where these are several together
    confounded: list[str]  # the terms in `rows` that hold what these latter ones do, too
    partly: dict[str, tuple[int, int]]  # term -> degrees of freedom that there are, and that it would have
    too_many: list[str]
    problem: str = ""


def analyse(y: np.ndarray, factors: pd.DataFrame, block: np.ndarray | None = None) -> Analysis:
    """The analysis of variance of `y` [rows]; `factors`: a column per factor of codes 0, 1, ... [rows], in order of terms.

    q is Jain's effect of factors with two levels, half of the change from the first to the second (1991, ch. 17, 18), with
    its 95 % interval. eta^2 and omega^2 are partial (Olejnik & Algina, Psychological Methods 8, 2003).
    """
    n = len(y)
    cell = factors.groupby(list(factors)).ngroup().to_numpy() if len(factors.columns) else np.zeros(n, dtype=int)
    terms, too_many = _terms(factors, block)
    basis, kept, aliased, partly = _estimable(n, terms)
    z = basis.T @ y
    total = float(((y - y.mean()) ** 2).sum()) if n else 0.0
    error, error_df, cells_rank = _error(y, cell, block)
    outside = float(((y - basis @ z) ** 2).sum())
    ones = basis.T @ np.ones((n, 1))
    within = {term.factors: (basis.T @ term.columns, term.independent) for term in kept}  # the model in its own space

    def left(but: Sequence[Term]) -> tuple[float, int]:
        """Residual sum of squares, and rank, of the model without the terms `but`."""
        names = {term.factors for term in but}
        if not names:
            return outside, basis.shape[1]
        there = [found for key, found in within.items() if key not in names]
        q, _ = np.linalg.qr(np.column_stack([ones, *(columns[:, independent] for columns, independent in there)]))
        others = [columns[:, ~independent] for columns, independent in there if not independent.all()]
        if others:  # what depended on the terms that are out may count now
            q = np.column_stack([q, _added(q, np.column_stack(others))[0]])
        return outside + float(((z - q @ (q.T @ z)) ** 2).sum()), q.shape[1]

    rows = []
    for term in kept:
        containing = [other for other in kept if set(term.factors) < set(other.factors)]
        (without, rank), (with_it, full) = left([term, *containing]), left(containing)
        rows.append({"term": term.name, "df": full - rank, "sum_sq": max(without - with_it, 0.0)})
    higher_df = cells_rank - basis.shape[1]
    if higher_df > 0:
        rows.append({"term": HIGHER, "df": higher_df, "sum_sq": max(outside - error, 0.0)})
    rows.append({"term": ERROR, "df": error_df, "sum_sq": error})
    rows.append({"term": TOTAL, "df": max(n - 1, 0), "sum_sq": total})
    data = pd.DataFrame(rows).reindex(columns=COLUMNS)
    data.loc[data["sum_sq"] < ZERO_SHARE * total, "sum_sq"] = 0.0
    problem = "" if error_df else NO_ERROR_DF
    if error_df and error <= ZERO_SHARE * total:
        problem = ALL_THE_SAME if total == 0 else RUNS_THE_SAME
    _measures(data, n)
    if not partly:  # with missing cells a coefficient means another thing than the effect
        design = np.column_stack([ones, *(columns for columns, _ in within.values())])
        _effects(data, kept, factors, (design, z))
    together = [basis.T @ term.columns for term in terms if aliased.get(term.name) == ""]
    confounded = _confounded(together, ones, {term.name: within[term.factors][0] for term in kept})
    data.loc[data["term"].isin(confounded), ["q", "q_low", "q_high"]] = math.nan
    return Analysis(data, aliased, confounded, partly, too_many, problem)


def _confounded(refused: list[np.ndarray], ones: np.ndarray, kept: dict[str, np.ndarray]) -> list[str]:
    """The terms `kept` that the columns of `refused` ones are made of."""
    if not refused:
        return []
    shares = np.linalg.lstsq(np.column_stack([ones, *kept.values()]), np.column_stack(refused), rcond=None)[0]
    of_term = np.repeat(["", *kept], [1, *(columns.shape[1] for columns in kept.values())])
    found = set(of_term[np.abs(shares).max(axis=1) > RANK_TOLERANCE * np.abs(shares).max()])
    return [name for name in kept if name in found]


def _terms(factors: pd.DataFrame, block: np.ndarray | None) -> tuple[list[Term], list[str]]:
    """Main effects, block and two-way interactions; the names of interactions that would make too many columns."""
    coded = {name: _deviation(factors[name].to_numpy()) for name in factors}
    terms = [Term((name,), columns, columns.shape[1]) for name, columns in coded.items()]
    if block is not None and len(set(block)) > 1:
        columns = _deviation(pd.factorize(block, sort=True)[0])
        terms.append(Term((BLOCK,), columns, columns.shape[1]))
    width, too_many = sum(term.nominal for term in terms), []
    for one, other in itertools.combinations(coded, 2):
        nominal = coded[one].shape[1] * coded[other].shape[1]
        if width + nominal > MOST_COLUMNS:
            too_many.append(f"{one}{TIMES}{other}")
            continue
        width += nominal
        products = (coded[one][:, :, None] * coded[other][:, None, :]).reshape(len(factors), nominal)
        terms.append(Term((one, other), products, nominal))
    return terms, too_many


def _deviation(codes: np.ndarray) -> np.ndarray:
    """Deviation coding [rows, levels - 1] of codes 0, 1, ...; with two levels -1 and +1, as Jain has it."""
    levels = int(codes.max(initial=0)) + 1
    if levels == 2:
        return (2.0 * codes - 1)[:, None]
    columns = (codes[:, None] == np.arange(levels - 1)).astype(float)
    columns[codes == levels - 1] = -1
    return columns


def _added(basis: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An orthonormal basis of what `columns` add to the space of `basis`, and which of them do, each beside those before."""
    rest = columns - basis @ (basis.T @ columns)
    rest -= basis @ (basis.T @ rest)
    if (
        columns.size == 0
        or np.linalg.norm(rest, axis=0).max() <= RANK_TOLERANCE * np.linalg.norm(columns, axis=0).max()
    ):
        return rest[:, :0], np.zeros(columns.shape[1], dtype=bool)
    q, r, pivots = linalg.qr(rest, mode="economic", pivoting=True)
    size = np.abs(np.diag(r))
    rank = int((size > RANK_TOLERANCE * size[0]).sum())
    independent = np.zeros(columns.shape[1], dtype=bool)
    independent[pivots[:rank]] = True
    return q[:, :rank], independent


def _estimable(
    n: int, terms: Sequence[Term]
) -> tuple[np.ndarray, list[Term], dict[str, str], dict[str, tuple[int, int]]]:
    """A basis [n, rank] of the model, the terms that add to it in their order, those that do not, and those that do in part."""
    basis = np.full((n, 1), 1 / math.sqrt(n)) if n else np.empty((0, 1))
    kept: list[Term] = []
    aliased: dict[str, str] = {}
    partly: dict[str, tuple[int, int]] = {}
    for term in terms:
        new, independent = _added(basis, term.columns)
        rank = new.shape[1]
        if rank == 0:
            aliased[term.name] = _alias(term, kept)
            continue
        if rank < term.nominal:
            partly[term.name] = (rank, term.nominal)
        basis = np.column_stack([basis, new])
        kept.append(replace(term, independent=independent))
    return basis, kept, aliased, partly


def _alias(term: Term, kept: Sequence[Term]) -> str:
    """The one term that it cannot be told from; empty where these are several together."""
    mean = np.full((len(term.columns), 1), 1 / math.sqrt(len(term.columns)))
    for other in kept:
        both = np.column_stack([mean, _added(mean, other.columns)[0]])
        if _added(both, term.columns)[0].shape[1] == 0:
            return other.name
    return ""


def _error(y: np.ndarray, cell: np.ndarray, block: np.ndarray | None) -> tuple[float, int, int]:
    """Sum of squares and degrees of freedom within cells, less blocks; the rank of cells and blocks."""
    cells = len(set(cell))
    residual, rank = after_blocks(y, cell, np.zeros(len(y)) if block is None else block)
    return float((residual**2).sum()), len(y) - cells - rank, cells + rank


def _measures(data: pd.DataFrame, n: int) -> None:
    """Fill mean squares, F, p, shares and effect sizes."""
    error = data[data["term"] == ERROR].iloc[0]
    total = float(data.loc[data["term"] == TOTAL, "sum_sq"].iloc[0])
    df, ss = data["df"].to_numpy(float), data["sum_sq"].to_numpy(float)
    with np.errstate(all="ignore"):
        data["mean_sq"] = np.where(df > 0, ss / df, np.nan)
        mse = float(error["sum_sq"] / error["df"]) if error["df"] else math.nan
        tested = ~data["term"].isin([ERROR, TOTAL])
        f = np.where(tested & (df > 0) & (mse > 0), ss / df / mse, np.nan)
        data["F"], data["p"] = f, stats.f.sf(f, df, float(error["df"]))
        data["share"] = ss / total if total else np.nan
        data["eta_sq_partial"] = np.where(tested & (mse >= 0), ss / (ss + error["sum_sq"]), np.nan)
        omega = (ss - df * mse) / (ss + (n - df) * mse)
        data["omega_sq_partial"] = np.where(tested, np.maximum(omega, 0.0), np.nan)
    data.loc[data["term"] == TOTAL, "mean_sq"] = np.nan


def _effects(
    data: pd.DataFrame, kept: Sequence[Term], factors: pd.DataFrame, model: tuple[np.ndarray, np.ndarray]
) -> None:
    """Fill q of the terms whose factors have two levels: their coefficients in the `model` of all terms kept."""
    design, z = model
    fit = OLS(z, design).fit()
    error = data.set_index("term").loc[ERROR]
    with np.errstate(all="ignore"):
        spread = np.sqrt(error["mean_sq"] * np.diag(fit.normalized_cov_params))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, error["df"]) * spread
    place = 1
    for term in kept:
        if all(name in factors and factors[name].nunique() == 2 for name in term.factors):
            q, width = fit.params[place], half[place]
            data.loc[data["term"] == term.name, ["q", "q_low", "q_high"]] = [q, q - width, q + width]
        place += term.columns.shape[1]


def of_runs(runs: pd.DataFrame) -> Analysis:
    """The analysis of variance of the successful runs' log epoch times."""
    ok = successful(runs)
    codes = {}
    for name in varying(ok):
        rank = {level: place for place, level in enumerate(levels_in_order(ok, name))}
        codes[title(name)] = ok[name].map(rank).fillna(len(rank)).astype(int).to_numpy()
    factors = pd.DataFrame(codes, index=range(len(ok)))
    seconds = ok["epoch_time_s"].to_numpy(float)
    y = np.zeros(len(seconds)) if one_value(seconds) else np.log(seconds)  # shares of rounding would be any number
    return analyse(y, factors, ok["block"].to_numpy(int))


def table(runs: pd.DataFrame) -> tables.Table:
    """The table of the analysis of variance of a study."""
    heading = "Analysis of variance of the logarithm of epoch time"
    ok = successful(runs)
    if ok.empty:
        empty = pd.DataFrame(columns=COLUMNS)
        return tables.Table(heading, empty, pd.DataFrame(columns=["term"]), [conditions.counts(runs)], ["term"])
    made = of_runs(runs)
    data = made.rows
    shown: dict[str, list[str]] = {
        "term": data["term"].tolist(),
        "df": data["df"].map(str).tolist(),
        "sum of squares": data["sum_sq"].map(tables.number).tolist(),
        "share (%)": data["share"].map(tables.percent).tolist(),
        "F": data["F"].map(tables.number).tolist(),
        "p": data["p"].map(tables.p_value).tolist(),
        "partial η²": data["eta_sq_partial"].map(_share).tolist(),
        "partial ω²": data["omega_sq_partial"].map(_share).tolist(),
    }
    if data["q"].notna().any():
        estimates = data[["q", "q_low", "q_high"]].itertuples(index=False)
        shown["effect q"] = [tables.difference(Estimate(*row)) for row in estimates]
    return tables.Table(
        heading,
        data,
        pd.DataFrame(shown),
        [note for note in _notes(runs, made) if note],
        words=["term"],
        parts=[int((data["term"] == ERROR).argmax())],
    )


def _share(value: float) -> str:
    return tables.DASH if pd.isna(value) else f"{value:.3f}"


def _notes(runs: pd.DataFrame, made: Analysis) -> list[str]:
    ok, data = successful(runs), made.rows
    counts = ok.groupby("cell").size()
    *terms, total = data["sum_sq"]
    listed = "; ".join(
        f"{title(name)} ({', '.join(level_text(level) for level in levels_in_order(ok, name))})" for name in varying(ok)
    )
    adds_up = math.isclose(sum(terms), total, rel_tol=1e-6)
    n = f"{counts.min()}{f' to {counts.max()}' * (counts.nunique() > 1)}"
    notes: list[str] = [
        Note(
            "runs-analysed",
            f"{number_of(len(ok), 'run')} in {number_of(len(counts), 'cell')}, n = {n} per cell. "
            + (f"Factors, all treated as categories: {listed}." if listed else "No factor varies."),
            runs=len(ok),
            cells=len(counts),
            factors=varying(ok),
        ),
        Note("no-tests", f"The analysis has no tests: {made.problem}.", problem=made.problem) if made.problem else "",
        Note(
            "sums-of-squares",
            f"Sums of squares are of type II, each term after all others that do not contain it.{'' if adds_up else UNBALANCED} "
            "Share: part of the total sum of squares (Jain's allocation of variation). The error is the difference between runs of the same cell, "
            "without the effect of blocks; F, p and effect sizes are relative to it. p is not corrected for the number of terms.",
            adds_up=adds_up,
        ),
        "Partial η² is a term's sum of squares divided by the sum of its own and the error's; partial ω² is the same, corrected for chance, and at least 0.",
    ]
    if (data["term"] == HIGHER).any():
        notes.append(
            "Interactions of more factors: the differences between cells that main effects, blocks and two-way interactions do not "
            "explain. If this part is large, an effect depends on more than one other factor, and main effects alone mislead."
        )
    if data["q"].notna().any():
        two = [
            f"{title(name)} ({' → '.join(level_text(level) for level in levels_in_order(ok, name))})"
            for name in varying(ok)
            if ok[name].nunique() == 2
        ]
        notes.append(
            "Effect q, for terms whose factors have two levels: half the change of the logarithm from the first level "
            f"(−1) to the second (+1), with its 95 % interval; exp(2q) is the ratio of times: {', '.join(two)}."
        )
    elif made.partly and any(ok[name].nunique() == 2 for name in varying(ok)):
        notes.append(
            "There are no effects q: with missing cells, coefficients of factors with two levels have another meaning."
        )
    if made.partly:
        names = [f"{name} ({there} of {all_} degrees of freedom)" for name, (there, all_) in made.partly.items()]
        text = f"Estimated in part, because cells are missing or excluded: {conditions.named(names)}."
        notes.append(Note("estimated-in-part", text, degrees=made.partly))
    if same := {other: [name for name, to in made.aliased.items() if to == other] for other in made.aliased.values()}:
        chains = [" = ".join([other, *names]) for other, names in same.items() if other]
        if chains:
            text = (
                "Aliases: this design cannot separate these terms. The first of each chain is in the table and stands for all "
                f"of them: {'; '.join(chains)}."
            )
            notes.append(Note("aliases", text, terms={other: names for other, names in same.items() if other}))
        if "" in same:
            text = (
                f"Left out, because too few combinations of their levels have runs: {', '.join(same[''])}. Their effects cannot be "
                f"separated from {conditions.named(made.confounded)}, whose sums, F and p hold only if the terms left out have no effect, and "
                "which have no effect q."
            )
            notes.append(Note("terms-left-out", text, terms=same[""], confounded=made.confounded))
    if data["F"].notna().any() and (spread := pooled(runs)).differ:
        text = (
            "F, p and intervals of q assume one spread in all cells, which is doubtful here: the largest s.d. is "
            f"{spread.apart:.2g} times the smallest (Bartlett's test, {p_text(spread.p)})."
        )
        notes.append(Note("unequal-spread", text, times=spread.apart, p=spread.p))
    if made.too_many:
        text = f"Left out, because they have too many levels: {conditions.named(made.too_many)}."
        notes.append(Note("too-many-levels", text, terms=made.too_many))
    return [*notes, conditions.setting(runs)]
