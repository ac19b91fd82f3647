"""Table of the four models of `analysis.regression`, with notes on terms that are left out."""

import math

import pandas as pd

from analysis import conditions, tables
from analysis.intervals import SIGNIFICANCE_LEVEL
from analysis.level_words import level_text, title
from analysis.records import size_factor_name, successful, varying
from analysis.regression import LACK_OF_FIT, TERM_COLUMNS, Fit, Fits, printed_model
from analysis.terms import base_level, is_treated_as_number
from common.notes import Note

STARS = {0.001: "***", 0.01: "**", SIGNIFICANCE_LEVEL: "*"}
SHOWN_STATISTICS = [
    "n (runs)",
    "cells",
    "R²",
    "adjusted R²",
    "AICc",
    "residual s.d.",
    "largest VIF",
    "lack of fit: F",
    "lack of fit: p",
    *(
        f"without {left_out}: {part}"
        for left_out in ("cell", "level")
        for part in ("cells predicted", "RMSE", "MAPE (%)", "worst (%)")
    ),
]
MAX_DECIMALS, MIN_PLAIN = 6, 0.001  # Smaller coefficients that need more decimals have an exponent.
MIN_SPARE_CELLS = 4  # Models get stars only with this many more cells than coefficients.


def long_table(fits: Fits) -> pd.DataFrame:
    """Return one row per response, model and term or statistic, with all digits."""
    parts = []
    for (response, model), fit in fits.items():
        model_columns = {"response": response.title, "unit": response.unit, "model": model}
        terms = fit.terms.rename(columns={"term": "name"})
        refused = pd.DataFrame({"name": list(fit.refused)})
        statistics = pd.DataFrame({"name": list(fit.statistics), "estimate": list(fit.statistics.values())})
        for kind, part in (("term", terms), ("refused", refused), ("statistic", statistics)):
            parts.append(part.assign(**model_columns, kind=kind))
    columns = ["response", "unit", "model", "kind", "name", *TERM_COLUMNS[1:]]
    return pd.concat([part for part in parts if len(part)] or parts[:1]).reindex(columns=columns)


def by_cell(fits: Fits) -> pd.DataFrame:
    """Return one row per response, model and cell: measured, fitted, and predicted without the cell."""
    parts = [
        fit.cells.assign(response=response.title, unit=response.unit, model=model)
        for (response, model), fit in fits.items()
    ]
    data = pd.concat([part for part in parts if len(part)] or parts[:1])
    return data[
        [
            "response",
            "unit",
            "model",
            *(name for name in parts[0] if name not in ("response", "unit", "model")),
        ]
    ]


def table(runs: pd.DataFrame, fits: Fits) -> tables.Table:
    """Return all four models as one table; its notes name the terms that could not be estimated."""
    names = list(dict.fromkeys(name for fit in fits.values() for name in fit.terms["term"]))
    levels = _level_title(runs)
    predicts_levels = any(fit.statistics.get("without level: cells predicted") for fit in fits.values())
    titles = {
        name: _statistic_title(name, levels)
        for name in SHOWN_STATISTICS
        if (levels and predicts_levels) or not name.startswith("without level")
    }
    display = {"": [*names, *titles.values()]}
    for (response, model), fit in fits.items():
        rows = fit.terms.set_index("term").reindex(names)
        fits_well = (
            _n_spare_cells(fit) >= MIN_SPARE_CELLS
            and not fit.statistics.get("lack of fit: p", math.nan) < SIGNIFICANCE_LEVEL
        )
        rows["larger_p"] = rows[["p", "p_by_cell"]].max(axis="columns", skipna=False)
        columns = ["estimate", "standard_error", "standard_error_by_cell", "larger_p"]
        has_errors_by_cell = bool(fit.terms["standard_error_by_cell"].notna().any())
        display[f"{response.label}: {printed_model(model, fit)}"] = [
            *(
                coefficient_text(a, b, c, d, fits_well, has_errors_by_cell)
                for a, b, c, d in rows[columns].itertuples(index=False, name=None)
            ),
            *(_statistic(name, fit.statistics) for name in titles),
        ]
    return tables.Table(
        title=f"{_models_title(fits)} of epoch time and of throughput",
        data=long_table(fits),
        display=pd.DataFrame(display),
        notes=_notes(runs, fits),
        left_aligned=[""],
        rules_above=[len(names)],
    )


def _model_phrase(model: str, fit: Fit) -> str:
    name = printed_model(model, fit)
    return f"{name} model" if name == model else f"model {name}"


def _models_title(fits: Fits) -> str:
    """Return the models that were fitted, as the title names them."""
    has_square = all(printed_model(model, fit) == model for (_, model), fit in fits.items())
    return "Linear and quadratic regression" if has_square else "Regression without and with interactions"


def _n_spare_cells(fit: Fit) -> int:
    """Return how many more cells than coefficients there are; with few, errors by cell are meaningless."""
    return len(fit.cells) - int(fit.terms["estimate"].notna().sum())


def _level_title(runs: pd.DataFrame) -> str:
    """Return the title of the levels that cross-validation leaves out; "" if they do not vary."""
    factor = size_factor_name(successful(runs))
    if factor not in varying(successful(runs)):
        return ""
    return "node count" if factor == "nodes" else "device count"


def _statistic_title(statistic: str, levels: str) -> str:
    for left_out, words in (("cell", "cell"), ("level", levels)):
        statistic = statistic.replace(f"without {left_out}", f"leave one {words} out")
    return statistic


def coefficient_text(
    estimate: float,
    error: float,
    by_cell: float,
    p: float,
    stars: bool = True,
    has_errors_by_cell: bool = False,
) -> str:
    """Return `estimate (standard error; by cell)stars`, with two significant digits of the error.

    Without an error by cell there is a dash in its place if other terms of the model have one. `p` is the
    larger of those of the two errors.
    """
    if math.isnan(estimate):
        return tables.DASH
    if not error > 0:
        return tables.number(estimate)
    decimals = max(0, 1 - math.floor(math.log10(float(f"{error:.1e}"))))
    if decimals > MAX_DECIMALS and abs(estimate) < MIN_PLAIN:
        numbers = [tables.number(value, 2) for value in (estimate, error, by_cell)]
    else:
        numbers = [
            f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")
            for value in (estimate, error, by_cell)
        ]
    errors = f"{numbers[1]}; {numbers[2]}"
    if math.isnan(by_cell):
        errors = f"{numbers[1]}; {tables.DASH}" if has_errors_by_cell else numbers[1]
    return f"{numbers[0]} ({errors})" + next(
        (star for limit, star in STARS.items() if stars and p < limit), ""
    )


def _statistic(name: str, statistics: dict[str, float]) -> str:
    value = statistics.get(name, math.nan)
    if math.isnan(value):
        return tables.DASH
    if name.endswith(("(runs)", "cells", "predicted")):
        return f"{value:.0f}"
    if name == "lack of fit: F":
        return (
            f"{tables.number(value)} ({_df(statistics['lack of fit: d.f.'])}, "
            f"{_df(statistics['pure error: d.f.'])})"
        )
    if name == "lack of fit: p":
        return tables.p_value(value)
    if name.endswith("(%)"):
        text = tables.change(value / 100)
        return f"+{text}" if "worst" in name and value > 0 else text
    return f"{value:.3f}" if name.endswith("R²") else tables.number(value)


def _df(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() or value >= 100 else f"{value:.1f}"


def _notes(runs: pd.DataFrame, fits: Fits) -> list[str]:
    ok = successful(runs)
    factors = varying(ok)
    numeric = [name for name in factors if is_treated_as_number(ok, name)]
    base_levels = {name: base_level(ok, name) for name in factors if name not in numeric}
    base = [f"{title(name)} {level_text(level)}" for name, level in base_levels.items()]
    means = [f"{title(name)} {tables.number(ok[name].mean())}" for name in numeric]
    fitted = {key: fit for key, fit in fits.items() if not fit.problem}
    notes: list[str] = [
        "Ordinary least squares over the successful runs. Each run gives one value: its mean epoch time, or "
        "the samples of an epoch divided by it. Entries are estimates (standard error; standard error by "
        "cell). The first error is HC3 (MacKinnon & White 1985): how far other runs of the same cells would "
        "move the estimate. The second is clustered by cell (Cameron & Miller 2015): how far other cells "
        "would move it, because the model misses their means. * p < 0.05, ** p < 0.01, *** p < 0.001: "
        "two-sided t tests, not corrected for the number of terms; p is the larger of those of the two "
        f"errors. Models with significant lack of fit, or with fewer than {MIN_SPARE_CELLS} cells more than "
        "coefficients, have no stars. Blocks are not in the models."
        if fitted
        else "",
        Note(
            "factors",
            f"Factors: {', '.join(map(title, factors))}." if factors else "No factor varies.",
            factors=factors,
        ),
        Note(
            "base-levels",
            f"Categorical factors are compared with their base level: {', '.join(base)}.",
            levels=base_levels,
        )
        if base
        else "",
        f"Numeric factors are centred at their mean over the runs: {', '.join(means)}. So the intercept is "
        "the value at these means and the base levels. With interactions, a main effect is the slope there."
        if means
        else "",
    ]
    for (_, model), fit in fits.items():
        if fit.problem:
            text = f"The {model} model was not fitted: {fit.problem}."
            notes.append(Note("model-not-fitted", text, model=model, problem=fit.problem))
        if fit.refused:
            text = (
                f"Left out of the {_model_phrase(model, fit)}, because this design cannot separate them from "
                f"earlier terms ({len(fit.refused)}): {', '.join(fit.refused)}."
            )
            notes.append(Note("terms-left-out", text, model=model, terms=fit.refused))
        if fit.unsure:
            text = f"Without a standard error in the {_model_phrase(model, fit)}, because they depend on a "
            text += f"single run: {', '.join(fit.unsure)}."
            notes.append(Note("no-standard-error", text, model=model, terms=fit.unsure))
        if exact := fit.exact:
            text = (
                f"{tables.DASH} instead of the second error in the {_model_phrase(model, fit)}: it fits the "
                f"cells of these terms exactly, so they do not show how others would move the estimate "
                f"({', '.join(exact)})."
            )
            notes.append(Note("no-error-by-cell", text, model=model, terms=exact))
    if not fitted:
        return [*dict.fromkeys(notes), conditions.measurement_note(runs)]
    misfits = [
        f"{response.title}, {printed_model(model, fit)}"
        for (response, model), fit in fitted.items()
        if fit.statistics["lack of fit: p"] < SIGNIFICANCE_LEVEL
    ]
    misfit_text = (
        f"Models whose misfit the spread of replicates does not explain (p < {SIGNIFICANCE_LEVEL}): "
        f"{'; '.join(misfits)}. Read their coefficients as averages over this design, not as a law."
    )
    levels = _level_title(runs)
    notes += [
        "AICc compares models of the same response (Gaussian likelihood; the variance counts as a "
        "parameter). VIF: factor by which correlation with other terms inflates the variance of a term. F "
        "of lack of fit is given with its degrees of freedom.",
        _lack_of_fit_note(fitted),
        Note("models-misfit", misfit_text, models=misfits) if misfits else "",
        Note(
            "leave-one-out",
            "Leave one cell out: the mean of a cell is predicted from the other cells"
            + _left_out_level_text(levels, fitted)
            + ". RMSE is in the response's unit, and MAPE is the mean of |predicted − measured| / measured. "
            "The worst error has its sign. Cells that the others do not determine are not counted.",
            levels=levels,
        ),
        conditions.measurement_note(runs),
    ]
    return list(dict.fromkeys(notes))


def _left_out_level_text(levels: str, fits: Fits) -> str:
    """Return how levels are left out, or that no other cells determine their means; "" without levels."""
    if not levels:
        return ""
    if any(fit.statistics.get("without level: cells predicted") for fit in fits.values()):
        return f"; leave one {levels} out: from the cells with another {levels}"
    return f"; the cells of other {levels}s alone determine no mean"


def _lack_of_fit_note(fits: Fits) -> Note:
    """Describe the test of lack of fit, and name the responses for which spreads differ."""
    responses = list(
        dict.fromkeys(key[0].title for key, fit in fits.items() if fit.statistics["lack of fit: own spreads"])
    )
    case = f" This is the case here for {' and '.join(responses)}." if responses else ""
    return Note("lack-of-fit-test", LACK_OF_FIT.format("the model") + case, own_spreads=responses)
