"""The answer: in sentences (analysis.answers); in numbers fastest and slowest cells, what each factor does, speed-up at the most replicas.

Nothing is averaged over other factors: of many comparisons the least and the greatest are shown, each with its interval.
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

MOST_ROWS = 30
LEAST_SHARE = 0.01  # of the variation, below which a term is not named
MOST_TERMS = 6
CHOSEN = (
    "The fastest and the slowest cells were selected by their measured means. Intervals do not correct for this selection: among "
    "many similar cells, the lowest mean is somewhat too low, and the highest too high."
)


@dataclass(frozen=True)
class Answer:
    """What the report says first: sentences and how to read them; then, after the main figure, more of them and small tables."""

    sentences: list[Sentence]
    note: str = ""
    details: list[Sentence] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)


def answer(material: Material) -> Answer:
    """The answer as far as the study gives one."""
    runs, ok = material.runs, material.ok
    said, more = answers.split_opening(answers.answer_sentences(runs, material.data("effects"), material.data("anova")))
    if ok.empty:
        return Answer(said)
    details = [*more, *(Sentence("", note) for note in (variation(material), speedups(material)) if note)]
    grids = [ends(material), main_effects(material), effects(material)]
    note = answers.NOTE if varying(runs) else ""
    return Answer(said, note, details, [grid for grid in grids if grid and grid.rows])


def ends(material: Material) -> Grid | None:
    """The fastest and the slowest cell for each model and data set; None where there is one cell."""
    pooling = material.pooling
    if len(pooling.samples) < 2:
        return None
    work = [name for name in WORK if name in varying(material.runs)]
    words = cell_words(material.runs, but=work)
    of_cell = material.ok.drop_duplicates("cell").set_index("cell")
    header = [*(title(name) for name in work), "which", "cell", "n", "epoch time (s)", "ratio to the fastest"]
    rows = []
    for levels, cells in of_cell.groupby(work) if work else [((), of_cell)]:
        means = pooling.cells.loc[list(cells.index), "mean"].sort_values(kind="stable")
        fastest, slowest = str(means.index[0]), str(means.index[-1])
        for what, cell in (("fastest", fastest), ("slowest", slowest)):
            mean = pooling.cell_mean(cell)
            to_fastest = Estimate(*pooling.ratios([cell], [fastest])[ESTIMATE_COLUMNS].iloc[0])
            ratio = "1" if cell == fastest else tables.difference(to_fastest)
            rows.append([*map(level_text, levels), what, words[cell], str(mean.n), tables.interval(mean), ratio])
            if len(means) == 1:
                break
    caption = f"Fastest and slowest cells by mean epoch time. {CHOSEN}"
    return Grid(caption, header, rows, tuple(header[: len(work) + 2]))


def main_effects(material: Material) -> Grid | None:
    """What a factor of two levels does over all cells, by the analysis of variance: exp(2q), the ratio of times."""
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
        "Main effects of the factors with two levels: the ratio of epoch times over all cells, on the log scale, with its 95 % "
        "interval, by the analysis of variance. If interactions are large, the ratio in a single cell can be different."
    )
    return Grid(caption, header, rows, ("factor", "change"))


def effects(material: Material) -> Grid | None:
    """For each change of one factor: the least and the greatest ratio of epoch times over all other levels."""
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
    for (factor, start, end), own in data.groupby(["factor", "from", "to"], sort=False):
        least, greatest = own.loc[own["ratio"].idxmin()], own.loc[own["ratio"].idxmax()]
        significant = int((column(own, "p_holm") < SIGNIFICANCE_LEVEL).sum())
        rows.append(
            [
                title(str(factor)),
                f"{_level(start)} → {_level(end)}",
                str(len(own)),
                _ratio(least),
                _elsewhere(material, str(least["to_cell"]), str(factor)),
                _ratio(greatest),
                _elsewhere(material, str(greatest["to_cell"]), str(factor)),
                f"{significant} of {len(own)}" if column(own, "p_holm").notna().any() else tables.DASH,
            ]
        )
    more = len(rows) - MOST_ROWS
    caption = (
        "Effect of one factor on epoch time, all else equal: the mean epoch time at the level after the arrow divided by that at "
        "the level before it. Of all pairs of cells that differ only in this factor, the table has the least and the greatest ratio, "
        "and the other levels at which they were found."
        + (f" {more} more changes are in the table of effects." if more > 0 else "")
    )
    return Grid(caption, header, rows[:MOST_ROWS], ("factor", "change", "least at", "greatest at"))


def variation(material: Material) -> Note | None:
    """Return how much of the variation each term explains, by the analysis of variance; None without one."""
    data = material.data("anova")
    share = column(data, "share")
    terms = data.assign(share=share)[(share >= LEAST_SHARE) & (data.get("term", "") != "total")] if len(data) else data
    if terms.empty:
        return None
    named = terms.sort_values("share", ascending=False, kind="stable").head(MOST_TERMS)
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
    """Return the least and the greatest speed-up at the most replicas; None without one."""
    data = material.data("speedup")
    scaled = data[(column(data, "replicas") > 1) & column(data, "speedup").notna()] if len(data) else data
    if scaled.empty:
        return None
    most = int(scaled["replicas"].max())
    own = scaled[scaled["replicas"] == most]
    least, greatest = own.loc[own["speedup"].idxmin()], own.loc[own["speedup"].idxmax()]
    words = cell_words(material.runs)
    ends = [f"{_speedup(row)} ({words.get(str(row['cell']), row['cell'])})" for row in (least, greatest)]
    between = ends[0] if len(own) == 1 else f"from {ends[0]} to {ends[1]}"
    return Note(
        "speedups",
        f"Speed-up on {most} replicas (bases are in the table of speed-up): {between}.",
        replicas=most,
        least=float(least["speedup"]),
        greatest=float(greatest["speedup"]),
        cells=[str(least["cell"]), str(greatest["cell"])],
    )


def _speedup(row: pd.Series) -> str:
    return tables.interval(_estimate(row, "speedup"))


def _ratio(row: pd.Series) -> str:
    return tables.difference(_estimate(row, "ratio"))


def _estimate(row: pd.Series, name: str) -> Estimate:
    nothing = float("nan")
    return Estimate(float(row[name]), float(row.get(f"{name}_low", nothing)), float(row.get(f"{name}_high", nothing)))


def _level(level: object) -> str:
    """A level as it stands in a CSV file, where whole numbers in a column with gaps became decimal ones."""
    return level_text(int(level)) if isinstance(level, float) and level.is_integer() else level_text(level)


def _elsewhere(material: Material, cell: str, factor: str) -> str:
    """The levels of a cell's other factors that vary."""
    return cell_words(material.runs, but=[factor])[cell]
