"""The regressions of `analysis.regression` as a table: all four models side by side, with what could not be estimated in its notes."""

import math

import pandas as pd

from analysis import conditions, tables
from analysis.intervals import LEVEL
from analysis.measured import level_text, scale_factor, successful, title, varying
from analysis.regression import LACK_OF_FIT, TERM, Fit, Fits, Response, errors_without
from analysis.terms import base_level, takes_numbers
from common.notes import Note
from common.text import number_of

STARS = {0.001: "***", 0.01: "**", LEVEL: "*"}
SHOWN = [
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
        f"without {what}: {part}"
        for what in ("cell", "level")
        for part in ("cells predicted", "RMSE", "MAPE (%)", "worst (%)")
    ),
]
LARGE_VIF = 10
FEWEST_SPARE = 4  # cells beyond coefficients, for stars


def tidy(fits: Fits) -> pd.DataFrame:
    """One row per response, model and term or statistic, with all digits."""
    parts = []
    for (response, model), each in fits.items():
        of = {"response": response.name, "unit": response.unit, "model": model}
        named = each.terms.rename(columns={"term": "name"})
        refused = pd.DataFrame({"name": list(each.refused)})
        found = pd.DataFrame({"name": list(each.statistics), "estimate": list(each.statistics.values())})
        for kind, part in (("term", named), ("refused", refused), ("statistic", found)):
            parts.append(part.assign(**of, kind=kind))
    columns = ["response", "unit", "model", "kind", "name", *TERM[1:]]
    return pd.concat([part for part in parts if len(part)] or parts[:1]).reindex(columns=columns)


def by_cell(fits: Fits) -> pd.DataFrame:
    """One row per response, model and cell: what was measured, fitted, and predicted by the fit without it."""
    parts = [
        each.cells.assign(response=response.name, unit=response.unit, model=model)
        for (response, model), each in fits.items()
    ]
    data = pd.concat([part for part in parts if len(part)] or parts[:1])
    return data[
        ["response", "unit", "model", *(name for name in parts[0] if name not in ("response", "unit", "model"))]
    ]


def table(runs: pd.DataFrame, fits: Fits) -> tables.Table:
    """All four models in one table for a paper, with what could not be estimated in the notes."""
    names = list(dict.fromkeys(name for each in fits.values() for name in each.terms["term"]))
    levels = _levels(runs)
    said = {name: _in_words(name, levels) for name in SHOWN if levels or not name.startswith("without level")}
    shown = {"": [*names, *said.values()]}
    for (response, model), each in fits.items():
        rows = each.terms.set_index("term").reindex(names)
        fits_well = _spare(each) >= FEWEST_SPARE and not each.statistics.get("lack of fit: p", math.nan) < LEVEL
        columns = ["estimate", "standard_error", "standard_error_by_cell", "p_by_cell"]
        shown[f"{response.heading}: {model}"] = [
            *(entry(a, b, c, d, fits_well) for a, b, c, d in rows[columns].itertuples(index=False, name=None)),
            *(_statistic(name, each.statistics) for name in said),
        ]
    return tables.Table(
        title="Linear and quadratic regression of epoch time and of throughput",
        data=tidy(fits),
        shown=pd.DataFrame(shown),
        notes=[note for note in _notes(runs, fits) if note],
        words=[""],
        parts=[len(names)],
    )


def _spare(fit: Fit) -> int:
    """Cells beyond coefficients: with few, errors by cell say nothing."""
    return len(fit.cells) - int(fit.terms["estimate"].notna().sum())


def _levels(runs: pd.DataFrame) -> str:
    """What is left out as a whole, in one word; empty where it does not vary."""
    factor = scale_factor(successful(runs))
    if factor not in varying(successful(runs)):
        return ""
    return "node count" if factor == "nodes" else "device count"


def _in_words(statistic: str, levels: str) -> str:
    for what, words in (("cell", "cell"), ("level", levels)):
        statistic = statistic.replace(f"without {what}", f"leave one {words} out")
    return statistic


def entry(estimate: float, error: float, by_cell: float, p: float, stars: bool = True) -> str:
    """`estimate (standard error; by cell)stars`, with the decimals of two significant digits of the error. p: of the error by cell."""
    if math.isnan(estimate):
        return tables.DASH
    if not error > 0:
        return tables.number(estimate)
    decimals = max(0, 1 - math.floor(math.log10(float(f"{error:.1e}"))))
    if decimals > 6:
        numbers = [tables.number(value, 2) for value in (estimate, error, by_cell)]
    else:
        numbers = [
            f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−") for value in (estimate, error, by_cell)
        ]
    errors = numbers[1] if math.isnan(by_cell) else f"{numbers[1]}; {numbers[2]}"
    return f"{numbers[0]} ({errors})" + next((star for limit, star in STARS.items() if stars and p < limit), "")


def _statistic(name: str, statistics: dict[str, float]) -> str:
    value = statistics.get(name, math.nan)
    if math.isnan(value):
        return tables.DASH
    if name.endswith(("(runs)", "cells", "predicted")):
        return f"{value:.0f}"
    if name == "lack of fit: F":
        return f"{tables.number(value)} ({_df(statistics['lack of fit: d.f.'])}, {_df(statistics['pure error: d.f.'])})"
    if name == "lack of fit: p":
        return tables.p_value(value)
    if name.endswith("(%)"):
        return f"{value:+.1f}".replace("-", "−") if "worst" in name else f"{value:.1f}"
    return f"{value:.3f}" if name.endswith("R²") else tables.number(value)


def _df(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() or value >= 100 else f"{value:.1f}"


def _notes(runs: pd.DataFrame, fits: Fits) -> list[str]:
    ok = successful(runs)
    factors = varying(ok)
    numeric = [name for name in factors if takes_numbers(ok, name)]
    base_levels = {name: base_level(ok, name) for name in factors if name not in numeric}
    base = [f"{title(name)} {level_text(level)}" for name, level in base_levels.items()]
    means = [f"{title(name)} {tables.number(ok[name].mean())}" for name in numeric]
    fitted = {key: each for key, each in fits.items() if not each.problem}
    notes: list[str] = [
        "Ordinary least squares over the successful runs. Each run gives one value: its mean epoch time, or the samples of an "
        "epoch divided by it. Entries are estimates (standard error; standard error by cell). The first is HC3 (MacKinnon & White 1985): how far "
        "other runs of the same cells would move the estimate. The second is clustered by cell (Cameron & Miller 2015): how far other cells "
        "would, whose means the model misses. * p < 0.05, ** p < 0.01, *** p < 0.001: two-sided t tests with the second, not corrected for the number "
        "of terms; models with significant lack of fit have none. Blocks are not in the models."
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
        f"Numeric factors are centred at their mean over the runs: {', '.join(means)}. So the intercept is the value at these "
        "and the base levels, and with interactions, a main effect is the slope there."
        if means
        else "",
    ]
    for (_, model), each in fits.items():
        if each.problem:
            text = f"The {model} model was not fitted: {each.problem}."
            notes.append(Note("model-not-fitted", text, model=model, problem=each.problem))
        if each.refused:
            text = (
                f"Left out of the {model} model, because this design cannot separate them from earlier terms "
                f"({len(each.refused)}): {', '.join(each.refused)}."
            )
            notes.append(Note("terms-left-out", text, model=model, terms=each.refused))
        if each.unsure:
            text = f"Without a standard error in the {model} model, because they depend on a single run: {', '.join(each.unsure)}."
            notes.append(Note("no-standard-error", text, model=model, terms=each.unsure))
    if not fitted:
        return [*dict.fromkeys(notes), conditions.setting(runs)]
    few = list(dict.fromkeys(model for (_, model), each in fits.items() if _spare(each) < FEWEST_SPARE))
    no_stars = f"No stars in the {' and '.join(few)} model: fewer than {FEWEST_SPARE} cells more than coefficients."
    notes += [
        Note("no-stars", no_stars, models=few) if few else "",
        "AICc compares models of the same response (Gaussian likelihood; the variance counts as a parameter). "
        "VIF: factor by which correlation with other terms inflates the variance of a term. F of lack of fit is given with its degrees of freedom.",
        _lack_of_fit(fitted),
        _misfit(fitted),
        _inflated(fitted),
        *_left_out(fitted, _levels(runs)),
        conditions.setting(runs),
    ]
    return list(dict.fromkeys(notes))


def _lack_of_fit(fits: Fits) -> Note:
    """What the test of lack of fit is, and of which responses cells do not share one spread."""
    own = list(dict.fromkeys(key[0].name for key, each in fits.items() if each.statistics["lack of fit: own spreads"]))
    case = f" This is the case here for {' and '.join(own)}." if own else ""
    return Note("lack-of-fit-test", LACK_OF_FIT.format("the model") + case, own_spreads=own)


def _misfit(fits: Fits) -> str:
    missed = [_name(key) for key, each in fits.items() if each.statistics["lack of fit: p"] < LEVEL]
    if missed:
        text = (
            f"Models that miss more than the spread of replicates explains (p < {LEVEL}): {'; '.join(missed)}. "
            "Read their coefficients as averages over this design, not as a law."
        )
        return Note("models-misfit", text, models=missed)
    if any(not math.isnan(each.statistics["lack of fit: p"]) for each in fits.values()):
        return ""
    text = "Lack of fit cannot be tested: it needs replicates, and more cells than coefficients."
    return Note("lack-of-fit-untested", text)


def _inflated(fits: Fits) -> str:
    large = {
        f"{name} ({model})": value
        for (_, model), each in fits.items()
        for name, value in each.terms[["term", "vif"]].itertuples(index=False)
        if value > LARGE_VIF
    }
    if not large:
        return ""
    text = f"VIF above {LARGE_VIF}: {', '.join(large)}. These estimates depend strongly on each other."
    return Note("large-vif", text, terms=large)


def _left_out(fits: Fits, levels: str) -> list[str]:
    """What leaving out means, which cells are worst, and which cannot be predicted."""
    text = (
        "Leave one cell out: the mean of a cell is predicted from the other cells"
        + (f"; leave one {levels} out: from the cells with another {levels}" if levels else "")
        + ". RMSE is in the response's unit, MAPE the mean of |predicted − measured| / measured, the worst has its sign."
        + ("" if levels else " Only one node count was measured, so none can be left out.")
    )
    said: list[str] = [Note("leave-one-out", text, levels=levels)]
    for what, words in (("cell", "cell"), ("level", levels)):
        if not words:
            continue
        worst = {_name(key): errors_without(each.cells, what) for key, each in fits.items()}
        cells = {name: errors.worst_cell for name, errors in worst.items() if errors.predicted}
        if cells:
            named = "; ".join(f"{cell} ({name})" for name, cell in cells.items())
            said.append(Note(f"worst-{what}-left-out", f"Worst, leaving one {words} out: {named}.", cells=cells))
        if any(errors.worst < -1 for errors in worst.values()):
            said.append("An error below −100 % is a prediction below zero, which a model with straight lines can make.")
        for (_, model), each in fits.items():
            unknown = each.cells[each.cells[f"without_{what}"].isna()]
            if len(unknown):
                text = (
                    f"Leaving one {words} out, the {model} model cannot predict {len(unknown)} of {number_of(len(each.cells), 'cell')} "
                    f"from the others; these are not counted: {_unpredicted(each.cells, unknown, what, words)}."
                )
                facts = {"model": model, "cells": unknown["cell"].tolist(), "of": len(each.cells)}
                said.append(Note(f"{what}-not-predicted", text, **facts))
    return said


def _unpredicted(cells: pd.DataFrame, unknown: pd.DataFrame, what: str, words: str) -> str:
    """Whole levels by their level, other cells by their name."""
    if what == "cell":
        return conditions.named(unknown["cell"].tolist())
    counts = unknown.groupby("level").size()
    whole = [level for level, count in counts.items() if count == (cells["level"] == level).sum()]
    said = [f"all with {words} {', '.join(map(level_text, whole))}"] if whole else []
    rest = unknown.loc[~unknown["level"].isin(whole), "cell"].tolist()
    return " and ".join([*said, *([conditions.named(rest)] if rest else [])])


def _name(key: tuple[Response, str]) -> str:
    return f"{key[0].name}, {key[1]}"
