"""Table of the analysis of variance of the log response: effects of factors, interactions and blocks.

Terms are the varying factors (categorical), their two-way interactions, and block. All other differences
between cells form one row, interactions of more factors. The error is the difference between runs of a cell,
less their blocks' differences. Sums of squares are of type II: a term's sum is the decrease of the residual
sum of squares when the term is added to all terms that do not contain it (Fox 2016, Applied Regression
Analysis, section 8.2). anova_lm of statsmodels gives the same if no cell is missing (a test compares them),
but fails for interactions with missing cells.
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
from analysis.cell_means import after_blocks, estimate_response_means, measured_response
from analysis.intervals import ALL_THE_SAME, CONFIDENCE, Estimate, is_constant, p_text
from analysis.level_words import title
from analysis.records import levels_in_order, successful, varying
from common.notes import Note
from common.text import number_of
from declared.responses import EPOCH_TIME, Response

BLOCK, HIGHER, ERROR, TOTAL = "block", "interactions of more factors", "error", "total"
TIMES = " × "
NO_ERROR_DF = Note("no-error-df", "no degree of freedom is left for the error")
RUNS_THE_SAME = Note("runs-do-not-differ", "runs of a cell do not differ")
RANK_TOLERANCE = 1e-9
ROUNDING_SHARE = 1e-12  # Sums of squares below this share of the total are rounding errors.
MAX_COLUMNS = 400  # Interactions that need more columns of the model are left out and named.
COLUMNS = [
    "term",
    "df",
    "sum_sq",
    "mean_sq",
    "F",
    "p",
    "share",
    "eta_sq_partial",
    "omega_sq_partial",
    "q",
    "q_low",
    "q_high",
]


@dataclass(frozen=True)
class Term:
    """A term of the model.

    Attributes:
        factors: Names of the factors, or of the block.
        columns: Columns in deviation coding [rows, k].
        nominal: Degrees of freedom if no cell is missing.
        independent: Which columns are linearly independent of earlier terms.
    """

    factors: tuple[str, ...]
    columns: np.ndarray
    nominal: int
    independent: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=bool))

    @property
    def name(self) -> str:
        """Name of the term, such as `nodes × batch size`."""
        return TIMES.join(self.factors)


@dataclass(frozen=True)
class Analysis:
    """An analysis of variance.

    Attributes:
        rows: Rows of the table, with COLUMNS.
        aliased: Term -> the single term that it cannot be separated from; "" if there are several.
        confounded: Terms in `rows` that include effects of terms aliased with several.
        partly: Term -> its estimable and its nominal degrees of freedom, if these differ.
        too_many: Interactions left out because they have too many columns.
        problem: Why there are no tests, else "".
    """

    rows: pd.DataFrame
    aliased: dict[str, str]
    confounded: list[str]
    partly: dict[str, tuple[int, int]]
    too_many: list[str]
    problem: str = ""


def analyse(y: np.ndarray, factors: pd.DataFrame, block: np.ndarray | None = None) -> Analysis:
    """Return the analysis of variance of a response.

    q is Jain's effect of a factor with two levels, half of the change from the first to the second (1991, ch.
    17, 18), with its 95 % interval. eta^2 and omega^2 are partial (Olejnik & Algina, Psychological Methods 8,
    2003).

    Args:
        y: Response [rows].
        factors: Codes 0, 1, ... [rows], one column per factor, in the order of terms.
        block: Block of each row [rows], if there are blocks.
    """
    n = len(y)
    cell = (
        factors.groupby(list(factors)).ngroup().to_numpy() if len(factors.columns) else np.zeros(n, dtype=int)
    )
    terms, too_many = _terms(factors, block)
    basis, estimable, aliased, partly = _estimable_terms(n, terms)
    z = basis.T @ y
    total = float(((y - y.mean()) ** 2).sum()) if n else 0.0
    error, error_df, cells_rank = _error_sum_of_squares(y, cell, block)
    outside = float(((y - basis @ z) ** 2).sum())
    intercept = basis.T @ np.ones((n, 1))
    within = {
        term.factors: (basis.T @ term.columns, term.independent) for term in estimable
    }  # Coordinates of the model's columns in its basis.

    def residual_without_terms(exclude: Sequence[Term]) -> tuple[float, int]:
        """Return the residual sum of squares and the rank of the model without the terms `exclude`."""
        names = {term.factors for term in exclude}
        if not names:
            return outside, basis.shape[1]
        remaining = [columns for key, columns in within.items() if key not in names]
        q, _ = np.linalg.qr(
            np.column_stack([intercept, *(columns[:, independent] for columns, independent in remaining)])
        )
        dependent = [columns[:, ~independent] for columns, independent in remaining if not independent.all()]
        if dependent:  # Columns that depended on removed terms can be independent now.
            q = np.column_stack([q, _extend_basis(q, np.column_stack(dependent))[0]])
        return outside + float(((z - q @ (q.T @ z)) ** 2).sum()), q.shape[1]

    rows = []
    for term in estimable:
        containing = [candidate for candidate in estimable if set(term.factors) < set(candidate.factors)]
        (residual_without, rank), (residual_with, full) = (
            residual_without_terms([term, *containing]),
            residual_without_terms(containing),
        )
        rows.append(
            {"term": term.name, "df": full - rank, "sum_sq": max(residual_without - residual_with, 0.0)}
        )
    higher_df = cells_rank - basis.shape[1]
    if higher_df > 0:
        rows.append({"term": HIGHER, "df": higher_df, "sum_sq": max(outside - error, 0.0)})
    rows.append({"term": ERROR, "df": error_df, "sum_sq": error})
    rows.append({"term": TOTAL, "df": max(n - 1, 0), "sum_sq": total})
    data = pd.DataFrame(rows).reindex(columns=COLUMNS)
    data.loc[data["sum_sq"] < ROUNDING_SHARE * total, "sum_sq"] = 0.0
    problem = "" if error_df else NO_ERROR_DF
    if error_df and error <= ROUNDING_SHARE * total:
        problem = ALL_THE_SAME if total == 0 else RUNS_THE_SAME
    _add_tests(data, n)
    if not partly:  # With missing cells a coefficient is not the effect.
        design = np.column_stack([intercept, *(columns for columns, _ in within.values())])
        _add_effects(data, estimable, factors, (design, z))
    together = [basis.T @ term.columns for term in terms if aliased.get(term.name) == ""]
    confounded = _confounded(together, intercept, {term.name: within[term.factors][0] for term in estimable})
    data.loc[data["term"].isin(confounded), ["q", "q_low", "q_high"]] = math.nan
    return Analysis(data, aliased, confounded, partly, too_many, problem)


def _confounded(
    refused: list[np.ndarray], intercept: np.ndarray, estimable: dict[str, np.ndarray]
) -> list[str]:
    """Return the names of estimable terms that include the effect of `refused` terms."""
    if not refused:
        return []
    shares = np.linalg.lstsq(
        np.column_stack([intercept, *estimable.values()]), np.column_stack(refused), rcond=None
    )[0]
    of_term = np.repeat(["", *estimable], [1, *(columns.shape[1] for columns in estimable.values())])
    names = set(of_term[np.abs(shares).max(axis=1) > RANK_TOLERANCE * np.abs(shares).max()])
    return [name for name in estimable if name in names]


def _terms(factors: pd.DataFrame, block: np.ndarray | None) -> tuple[list[Term], list[str]]:
    """Return main effects, block and two-way interactions, and names of interactions that are left out."""
    coded = {name: _deviation(factors[name].to_numpy()) for name in factors}
    terms = [Term((name,), columns, columns.shape[1]) for name, columns in coded.items()]
    if block is not None and len(set(block)) > 1:
        columns = _deviation(pd.factorize(block, sort=True)[0])
        terms.append(Term((BLOCK,), columns, columns.shape[1]))
    width, too_many = sum(term.nominal for term in terms), []
    for factor_a, factor_b in itertools.combinations(coded, 2):
        nominal = coded[factor_a].shape[1] * coded[factor_b].shape[1]
        if width + nominal > MAX_COLUMNS:
            too_many.append(f"{factor_a}{TIMES}{factor_b}")
            continue
        width += nominal
        products = (coded[factor_a][:, :, None] * coded[factor_b][:, None, :]).reshape(len(factors), nominal)
        terms.append(Term((factor_a, factor_b), products, nominal))
    return terms, too_many


def _deviation(codes: np.ndarray) -> np.ndarray:
    """Return the deviation coding [rows, levels - 1] of codes; two levels are -1 and +1 (Jain 1991)."""
    levels = int(codes.max(initial=0)) + 1
    if levels == 2:
        return (2.0 * codes - 1)[:, None]
    columns = (codes[:, None] == np.arange(levels - 1)).astype(float)
    columns[codes == levels - 1] = -1
    return columns


def _extend_basis(basis: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an orthonormal basis of what `columns` add to `basis`, and which columns are independent.

    Gram-Schmidt is applied twice, because one pass leaves rounding errors.
    """
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


def _estimable_terms(
    n: int, terms: Sequence[Term]
) -> tuple[np.ndarray, list[Term], dict[str, str], dict[str, tuple[int, int]]]:
    """Return a basis [n, rank] of the model and its estimable, aliased and partly estimable terms."""
    basis = np.full((n, 1), 1 / math.sqrt(n)) if n else np.empty((0, 1))
    estimable: list[Term] = []
    aliased: dict[str, str] = {}
    partly: dict[str, tuple[int, int]] = {}
    for term in terms:
        new, independent = _extend_basis(basis, term.columns)
        rank = new.shape[1]
        if rank == 0:
            aliased[term.name] = _alias(term, estimable)
            continue
        if rank < term.nominal:
            partly[term.name] = (rank, term.nominal)
        basis = np.column_stack([basis, new])
        estimable.append(replace(term, independent=independent))
    return basis, estimable, aliased, partly


def _alias(term: Term, estimable: Sequence[Term]) -> str:
    """Return the single earlier term that `term` cannot be separated from, or "" if it depends on several."""
    mean = np.full((len(term.columns), 1), 1 / math.sqrt(len(term.columns)))
    for candidate in estimable:
        basis = np.column_stack([mean, _extend_basis(mean, candidate.columns)[0]])
        if _extend_basis(basis, term.columns)[0].shape[1] == 0:
            return candidate.name
    return ""


def _error_sum_of_squares(
    y: np.ndarray, cell: np.ndarray, block: np.ndarray | None
) -> tuple[float, int, int]:
    """Return sum of squares and df within cells after blocks, and the rank of cells and blocks together."""
    cells = len(set(cell))
    residual, rank = after_blocks(y, cell, np.zeros(len(y)) if block is None else block)
    return float((residual**2).sum()), len(y) - cells - rank, cells + rank


def _add_tests(data: pd.DataFrame, n: int) -> None:
    """Fill in mean squares, F, p, shares and effect sizes."""
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


def _add_effects(
    data: pd.DataFrame, estimable: Sequence[Term], factors: pd.DataFrame, model: tuple[np.ndarray, np.ndarray]
) -> None:
    """Fill in q of terms of two-level factors: the coefficient in the `model` of all estimable terms."""
    design, z = model
    fit = OLS(z, design).fit()
    error = data.set_index("term").loc[ERROR]
    with np.errstate(all="ignore"):
        spread = np.sqrt(error["mean_sq"] * np.diag(fit.normalized_cov_params))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, error["df"]) * spread
    position = 1
    for term in estimable:
        if all(name in factors and factors[name].nunique() == 2 for name in term.factors):
            q, width = fit.params[position], half[position]
            data.loc[data["term"] == term.name, ["q", "q_low", "q_high"]] = [q, q - width, q + width]
        position += term.columns.shape[1]


def analyse_runs(runs: pd.DataFrame, response: Response = EPOCH_TIME) -> Analysis:
    """Return the analysis of variance of the logarithm of a response of the successful runs."""
    ok = successful(runs).dropna(subset=response.column)
    codes = {}
    for name in varying(ok):
        rank = {level: position for position, level in enumerate(levels_in_order(ok, name))}
        codes[title(name)] = ok[name].map(rank).fillna(len(rank)).astype(int).to_numpy()
    factors = pd.DataFrame(codes, index=range(len(ok)))
    values = ok[response.column].to_numpy(float)
    # Equal values get equal logarithms, because ratios of rounding errors are arbitrary.
    y = np.zeros(len(values)) if is_constant(values) else np.log(values)
    block = None if ok["block"].isna().any() else ok["block"].to_numpy(int)
    return analyse(y, factors, block)


def table(runs: pd.DataFrame, response: Response = EPOCH_TIME) -> tables.Table:
    """Return the table of the analysis of variance of a study, of epoch time if no run has the response."""
    response = measured_response(runs, response)
    heading = f"Analysis of variance of the logarithm of {response.title}"
    if successful(runs).empty:
        empty = pd.DataFrame(columns=COLUMNS)
        return tables.Table(
            heading, empty, pd.DataFrame(columns=["term"]), [conditions.run_counts_note(runs)], ["term"]
        )
    analysis = analyse_runs(runs, response)
    data = analysis.rows
    display: dict[str, list[str]] = {
        "term": data["term"].tolist(),
        "df": data["df"].map(str).tolist(),
        "sum of squares": data["sum_sq"].map(tables.number).tolist(),
        "share (%)": data["share"].map(tables.percent).tolist(),
        "F": data["F"].map(tables.number).tolist(),
        "p": data["p"].map(tables.p_value).tolist(),
        "partial η²": data["eta_sq_partial"].map(_share_text).tolist(),
        "partial ω²": data["omega_sq_partial"].map(_share_text).tolist(),
    }
    if data["q"].notna().any():
        estimates = data[["q", "q_low", "q_high"]].itertuples(index=False)
        display["effect q"] = [tables.interval(Estimate(*row)) for row in estimates]
    return tables.Table(
        heading,
        data,
        pd.DataFrame(display),
        _notes(runs, analysis, response),
        left_aligned=["term"],
        rules_above=[int((data["term"] == ERROR).argmax())],
    )


def _share_text(value: float) -> str:
    return tables.DASH if pd.isna(value) else f"{value:.3f}"


def _notes(runs: pd.DataFrame, analysis: Analysis, response: Response) -> list[str]:
    ok, data = successful(runs).dropna(subset=response.column), analysis.rows
    counts = ok.groupby("cell").size()
    *terms, total = data["sum_sq"]
    overlap = 100 * sum(terms) / total if total else 100.0
    n = f"{counts.min()}{f' to {counts.max()}' * (counts.nunique() > 1)}"
    notes: list[str] = [
        Note(
            "runs-analysed",
            f"{number_of(len(ok), 'run')} in {number_of(len(counts), 'cell')}, n = {n} per cell. "
            + ("All factors are treated as categories." if varying(ok) else "No factor varies."),
            runs=len(ok),
            cells=len(counts),
            factors=varying(ok),
        ),
        Note("no-tests", f"The analysis has no tests: {analysis.problem}.", problem=analysis.problem)
        if analysis.problem
        else "",
        Note(
            "shares-overlap",
            f"Shares add up to {overlap:.4g} %, not 100 %, because numbers of runs per combination differ.",
            total=overlap,
        )
        if f"{overlap:.1f}" != "100.0"
        else "",
        _unequal_spread_note(runs, data, response),
        "Sums of squares are of type II: each term is added to all terms that do not contain it. Share: part "
        "of the total sum of squares (Jain's allocation of variation). The error is the difference between "
        "runs of the same cell, without the effect of blocks; F, p and effect sizes are relative to it. p is "
        "not corrected for the number of terms.",
        (
            "Partial η² is the sum of squares of a term, divided by the sum of squares of term and error "
            "together; partial ω² is corrected for chance, and at least 0."
        ),
    ]
    if (data["term"] == HIGHER).any():
        notes.append(
            "Interactions of more factors: the differences between cells that main effects, blocks and "
            "two-way interactions do not explain. If this part is large, an effect depends on more than one "
            "other factor, and main effects alone mislead."
        )
    if data["q"].notna().any():
        notes.append(
            "Effect q, for terms whose factors have two levels: half the change of the logarithm from the "
            "first level (−1) to the second (+1), with its 95 % interval; exp(2q) is the ratio of means."
        )
    if analysis.partly:
        names = [
            f"{name} ({available} of {nominal} degrees of freedom)"
            for name, (available, nominal) in analysis.partly.items()
        ]
        text = f"Estimated in part, because some combinations have no runs: {conditions.join_names(names)}."
        notes.append(Note("estimated-in-part", text, degrees=analysis.partly))
    if aliases := {
        term: [name for name, to in analysis.aliased.items() if to == term]
        for term in analysis.aliased.values()
    }:
        chains = [" = ".join([term, *names]) for term, names in aliases.items() if term]
        if chains:
            text = (
                "Aliases: this design cannot separate these terms. The first of each chain is in the table "
                f"and stands for all of them: {'; '.join(chains)}."
            )
            notes.append(
                Note("aliases", text, terms={term: names for term, names in aliases.items() if term})
            )
        if "" in aliases:
            text = (
                "Left out, because too few combinations of their levels have runs: "
                f"{', '.join(aliases[''])}. "
                f"{'Its effect' if len(aliases['']) == 1 else 'Their effects'} cannot be separated from "
                f"{conditions.join_names(analysis.confounded)}. Sums, F and p of these hold only without an "
                f"effect of what is left out{', and they have no q' * bool(data['q'].notna().any())}."
            )
            notes.append(Note("terms-left-out", text, terms=aliases[""], confounded=analysis.confounded))
    if analysis.too_many:
        text = f"Left out, because they have too many levels: {conditions.join_names(analysis.too_many)}."
        notes.append(Note("too-many-levels", text, terms=analysis.too_many))
    return [*filter(None, notes), conditions.measurement_note(runs)]


def _unequal_spread_note(runs: pd.DataFrame, data: pd.DataFrame, response: Response) -> str:
    """Return a note if cells differ in spread, which F and p assume to be equal; else ""."""
    spread = estimate_response_means(runs, response)
    if data["F"].isna().all() or not spread.differ:
        return ""
    assumed_too = " and intervals of q" if data["q"].notna().any() else ""
    text = (
        f"F and p{assumed_too} assume one spread in all cells, which is doubtful here: the largest s.d. is "
        f"{spread.largest_spread_ratio:.2g} times the smallest (Bartlett's test, {p_text(spread.p)})."
    )
    return Note("unequal-spread", text, times=spread.largest_spread_ratio, p=spread.p)
