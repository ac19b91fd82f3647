"""Compute the opening of a report: the answer in sentences, usable runs, and a small table.

Nothing is averaged over other factors: of many comparisons the extremes are named, each with its interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis import answers, conditions, tables
from analysis.measured import level_text, title
from common.notes import Note
from declared.responses import EPOCH_TIME, RESPONSES
from report.findings import Evidence, variation
from report.material import Material
from report.setting import Grid

MAX_ROWS = 30


@dataclass(frozen=True)
class Answer:
    """The opening of a report.

    Attributes:
        sentences: Its first sentences, the last one on usable runs.
        note: How to read them.
        details: More sentences, after the main figure.
        grids: Small tables, after the details.
    """

    sentences: list[Note]
    note: str = ""
    details: list[Note] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)


def find_answer(material: Material) -> Answer:
    """Return the answer, as far as the study gives one."""
    runs, ok, study = material.runs_with_response, material.ok, material.study
    effects, anova = material.data("effects"), material.data("anova")
    response = RESPONSES[study.response]
    answer = answers.answer_sentences(runs, effects, anova, study.answer, study.margin, response)
    opening = [*answer.opening, conditions.usable_runs_note(material.every_run)]
    if ok.empty:
        return Answer(opening)
    data = {name: own.table.data for name, own in material.tables.items()}
    evidence = Evidence(material.runs, data, material.response)
    details = [*answer.further, *filter(None, [variation(evidence)])]
    response = material.response
    contrasts = answers.contrasts_by_factor(runs, effects, anova, response)
    grids = [
        ranked_levels(material, name, answers.rank_levels(runs, name, contrasts[name], response))
        for name in study.answer[:1]
        if name in contrasts
    ]
    return Answer(
        opening,
        answer.reading,
        details,
        [grid for grid in grids if grid and grid.rows],
    )


def ranked_levels(material: Material, factor: str, rankings: Sequence[answers.Ranking]) -> Grid | None:
    """Return the best level of a factor in each configuration of the others; None for a single one."""
    if len(rankings) < 2:
        return None
    response, multiplier = material.response, material.response.unit_multiplier
    best = "fastest" if response == EPOCH_TIME else "best"
    header = [
        "configuration",
        f"{best} {title(factor)}",
        response.label,
        "compared with",
        "ratio",
        "p (Holm)",
    ]
    rows = [
        [
            ranking.context,
            level_text(ranking.levels[0]),
            tables.interval(material.response_pooling.cell_mean(ranking.cells[0]).scaled(multiplier)),
            level_text(ranking.lead.before) if ranking.lead else tables.DASH,
            tables.ratio(ranking.lead.ratio) if ranking.lead else tables.DASH,
            tables.p_value(ranking.lead.p) if ranking.lead else tables.DASH,
        ]
        for ranking in rankings[:MAX_ROWS]
    ]
    n_omitted = len(rankings) - MAX_ROWS
    caption = (
        f"{best.capitalize()} {title(factor)} in each configuration of the other factors, compared with the "
        f"next {best} one to which the table effects compares it."
        + (f" {n_omitted} more configurations are not listed." if n_omitted > 0 else "")
    )
    return Grid(caption, header, rows, (header[0], header[1], header[3]))
