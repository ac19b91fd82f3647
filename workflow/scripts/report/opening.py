"""Write the opening of a report: the answer in sentences, the number of usable runs, and a ranking table.

Nothing is averaged over other factors. Of many comparisons the opening names the extremes, each with its
interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis import answers, conditions, tables
from analysis.measured import level_text, title
from common.notes import Note
from declared.responses import EPOCH_TIME, RESPONSES
from report.findings import Evidence, variation
from report.material import Material
from report.setting import PageTable

MAX_ROWS = 30


@dataclass(frozen=True)
class ReportOpening:
    """The opening of a report.

    Attributes:
        sentences: The first sentences; the last one counts the usable runs.
        reading: How to read them.
        details: Further sentences, printed after the main figure.
        tables: Small tables, printed after the details.
    """

    sentences: list[Note]
    reading: str = ""
    details: list[Note] = field(default_factory=list)
    tables: list[PageTable] = field(default_factory=list)


def build_opening(material: Material) -> ReportOpening:
    """Return the answer to the study's question; without a successful run, why there is none."""
    runs, study = material.runs_with_response, material.study
    effects, anova = material.data("effects"), material.data("anova")
    response_in_question = RESPONSES[study.response]
    answer = answers.answer_sentences(runs, effects, anova, study.question_factors, study.margin, response_in_question)
    sentences = [*answer.opening, conditions.usable_runs_note(material.every_run)]
    if material.ok.empty:
        return ReportOpening(sentences)
    data = {name: stage_table.table.data for name, stage_table in material.tables.items()}
    response = material.response
    evidence = Evidence(material.runs, data, response)
    contrasts = answers.contrasts_by_factor(runs, effects, anova, response)
    ranked = [
        ranked_levels(material, name, answers.rank_levels(runs, name, contrasts[name], response))
        for name in study.question_factors[:1]
        if name in contrasts
    ]
    return ReportOpening(
        sentences,
        answer.reading,
        [*answer.further, *filter(None, [variation(evidence)])],
        [table for table in ranked if table and table.rows],
    )


def ranked_levels(material: Material, factor: str, rankings: Sequence[answers.Ranking]) -> PageTable | None:
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
            tables.interval(material.response_means.cell_mean(ranking.cells[0]).times(multiplier)),
            level_text(ranking.lead.before) if ranking.lead else tables.DASH,
            tables.ratio(ranking.lead.ratio) if ranking.lead else tables.DASH,
            tables.p_value(ranking.lead.p) if ranking.lead else tables.DASH,
        ]
        for ranking in rankings[:MAX_ROWS]
    ]
    n_omitted = len(rankings) - MAX_ROWS
    caption = (
        f"{best.capitalize()} {title(factor)} in each configuration of the other factors, compared with the "
        f"next {best} one to which the table `effects` compares it."
        + (f" {n_omitted} more configurations are not listed." if n_omitted > 0 else "")
    )
    return PageTable(caption, header, rows, (header[0], header[1], header[3]))
