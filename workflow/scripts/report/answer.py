"""Compute the answer of a report: sentences, extreme cells, effects of factors, speed-up.

Nothing is averaged over other factors: of many comparisons the smallest and the largest are shown, each with
its interval.
"""

import math
from dataclasses import dataclass, field

import pandas as pd

from analysis import answers, tables
from analysis.answers import Sentence
from analysis.intervals import ESTIMATE_COLUMNS, SIGNIFICANCE_LEVEL, Estimate
from analysis.measured import cell_words, level_text, levels_in_order, title, varying
from common.notes import Note
from declared.factors import WORK
from report.material import Material, column
from report.setting import Grid

MAX_ROWS = 30
MIN_SHARE = 0.01  # of the variation, below which a term is not named
MAX_TERMS = 6
SELECTION_NOTE = (
    "The fastest and the slowest cells were selected by their measured means. Intervals do not correct for "
    "this selection: among many similar cells, the lowest mean is somewhat too low, and the highest too high."
)


@dataclass(frozen=True)
class Answer:
    """The opening of a report.

    Attributes:
        sentences: Its first sentences.
        note: How to read them.
        details: More sentences, after the main figure.
        grids: Small tables, after the details.
    """

    sentences: list[Sentence]
    note: str = ""
    details: list[Sentence] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)


def find_answer(material: Material) -> Answer:
    """Return the answer, as far as the study gives one."""
    runs, ok = material.runs, material.ok
    opening_sentences, further = answers.split_opening(
        answers.answer_sentences(runs, material.data("effects"), material.data("anova"))
    )
    if ok.empty:
        return Answer(opening_sentences)
    details = [*further, *(Sentence("", note) for note in (variation(material), speedups(material)) if note)]
    grids = [extremes(material), main_effects(material), effect_extremes(material)]
    note = answers.NOTE if varying(runs) else ""
    return Answer(opening_sentences, note, details, [grid for grid in grids if grid and grid.rows])


def extremes(material: Material) -> Grid | None:
    """Return the fastest and the slowest cell of each model and data set; None for a single cell."""
    pooling = material.pooling
    if len(pooling.samples) < 2:
        return None
    work = [name for name in WORK if name in varying(material.runs)]
    words = cell_words(material.runs, but=work)
    first_runs = material.ok.drop_duplicates("cell").set_index("cell")
    header = [*(title(name) for name in work), "which", "cell", "n", "epoch time (s)", "ratio to the fastest"]
    rows = []
    for levels, cells in first_runs.groupby(work) if work else [((), first_runs)]:
        means = pooling.cell_statistics.loc[list(cells.index), "mean"].sort_values(kind="stable")
        fastest, slowest = str(means.index[0]), str(means.index[-1])
        for rank, cell in (("fastest", fastest), ("slowest", slowest)):
            mean = pooling.cell_mean(cell)
            to_fastest = Estimate(*pooling.ratios([cell], [fastest])[ESTIMATE_COLUMNS].iloc[0])
            ratio = "1" if cell == fastest else tables.difference(to_fastest)
            rows.append(
                [*map(level_text, levels), rank, words[cell], str(mean.n), tables.interval(mean), ratio]
            )
            if len(means) == 1:
                break
    caption = f"Fastest and slowest cells by mean epoch time. {SELECTION_NOTE}"
    return Grid(caption, header, rows, tuple(header[: len(work) + 2]))


def main_effects(material: Material) -> Grid | None:
    """Return the main effect of each factor with two levels, exp(2q), by the analysis of variance."""
    data, ok = material.data("anova"), material.ok
    q = column(data, "q")
    titles = {title(name): name for name in varying(ok) if ok[name].nunique() == 2}
    rows = []
    for row in data[q.notna()].to_dict("records") if len(data) else []:
        if row["term"] not in titles:
            continue
        first, second = levels_in_order(ok, titles[row["term"]])
        value, low, high = (math.exp(2 * row[name]) for name in ("q", "q_low", "q_high"))
        ratio = Estimate(value, low, high)
        share = tables.percent(row["share"])
        rows.append(
            [
                row["term"],
                f"{level_text(first)} → {level_text(second)}",
                tables.difference(ratio),
                share,
                tables.p_value(row["p"]),
            ]
        )
    header = ["factor", "change", "ratio of times", "share of the variation (%)", "p"]
    caption = (
        "Main effects of the factors with two levels: the ratio of epoch times over all cells, on the log "
        "scale, with its 95 % interval, by the analysis of variance. If interactions are large, the ratio in "
        "a single cell can be different."
    )
    return Grid(caption, header, rows, ("factor", "change"))


def effect_extremes(material: Material) -> Grid | None:
    """Return the smallest and the largest ratio of epoch times for each change of one factor."""
    data = material.data("effects")
    if "ratio" not in data or data.empty:
        return None
    data = data[data["ratio"].notna()]
    header = [
        "factor",
        "change",
        "pairs",
        "least ratio",
        "least at",
        "greatest ratio",
        "greatest at",
        "p < 0.05 (Holm)",
    ]
    rows = []
    for (factor, start, end), pairs in data.groupby(["factor", "from", "to"], sort=False):
        smallest, largest = pairs.loc[pairs["ratio"].idxmin()], pairs.loc[pairs["ratio"].idxmax()]
        significant = int((column(pairs, "p_holm") < SIGNIFICANCE_LEVEL).sum())
        rows.append(
            [
                title(str(factor)),
                f"{_csv_level(start)} → {_csv_level(end)}",
                str(len(pairs)),
                _ratio_text(smallest),
                _other_levels(material, str(smallest["to_cell"]), str(factor)),
                _ratio_text(largest),
                _other_levels(material, str(largest["to_cell"]), str(factor)),
                f"{significant} of {len(pairs)}" if column(pairs, "p_holm").notna().any() else tables.DASH,
            ]
        )
    n_left_out = len(rows) - MAX_ROWS
    caption = (
        "Effect of one factor on epoch time, all else equal: the mean epoch time at the level after the "
        "arrow divided by that at the level before it. Of all pairs of cells that differ only in this "
        "factor, the table has the least and the greatest ratio, and the other levels at which they were "
        "found." + (f" {n_left_out} more changes are in the table `effects`." if n_left_out > 0 else "")
    )
    return Grid(caption, header, rows[:MAX_ROWS], ("factor", "change", "least at", "greatest at"))


def variation(material: Material) -> Note | None:
    """Return how much of the variation each term explains, by the analysis of variance; None without one."""
    data = material.data("anova")
    share = column(data, "share")
    terms = (
        data.assign(share=share)[(share >= MIN_SHARE) & (data.get("term", "") != "total")]
        if len(data)
        else data
    )
    if terms.empty:
        return None
    named = terms.sort_values("share", ascending=False, kind="stable").head(MAX_TERMS)
    shares = dict(named[["term", "share"]].itertuples(index=False, name=None))
    parts = [
        f"{term if term != 'error' else 'differences between runs of a cell'} {100 * part:.1f} %"
        for term, part in shares.items()
    ]
    return Note(
        "variation",
        f"Of the variation of the logarithm of epoch time: {', '.join(parts)} (analysis of variance).",
        shares=shares,
    )


def speedups(material: Material) -> Note | None:
    """Return the smallest and the largest speed-up at the most replicas; None without one."""
    data = material.data("speedup")
    scaled = data[(column(data, "replicas") > 1) & column(data, "speedup").notna()] if len(data) else data
    if scaled.empty:
        return None
    max_replicas = int(scaled["replicas"].max())
    largest_scale = scaled[scaled["replicas"] == max_replicas]
    smallest, largest = (
        largest_scale.loc[largest_scale["speedup"].idxmin()],
        largest_scale.loc[largest_scale["speedup"].idxmax()],
    )
    words = cell_words(material.runs)
    extremes = [
        f"{_speedup_text(row)} ({words.get(str(row['cell']), row['cell'])})" for row in (smallest, largest)
    ]
    range_text = extremes[0] if len(largest_scale) == 1 else f"from {extremes[0]} to {extremes[1]}"
    return Note(
        "speedups",
        f"Speed-up on {max_replicas} replicas (baselines are in the table `speedup`): {range_text}.",
        replicas=max_replicas,
        least=float(smallest["speedup"]),
        greatest=float(largest["speedup"]),
        cells=[str(smallest["cell"]), str(largest["cell"])],
    )


def _speedup_text(row: pd.Series) -> str:
    return tables.interval(_estimate(row, "speedup"))


def _ratio_text(row: pd.Series) -> str:
    return tables.difference(_estimate(row, "ratio"))


def _estimate(row: pd.Series, name: str) -> Estimate:
    missing = float("nan")
    return Estimate(
        float(row[name]), float(row.get(f"{name}_low", missing)), float(row.get(f"{name}_high", missing))
    )


def _csv_level(level: object) -> str:
    """Return the text of a level as read from CSV, where a column with gaps turns integers into floats."""
    return level_text(int(level)) if isinstance(level, float) and level.is_integer() else level_text(level)


def _other_levels(material: Material, cell: str, factor: str) -> str:
    """Return the levels of a cell's other varying factors."""
    return cell_words(material.runs, but=[factor])[cell]
