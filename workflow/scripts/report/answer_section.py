"""Write the answer section of a report: the answer in sentences, and tables of means.

Nothing is averaged over other factors. Of many comparisons the section names the extremes, each with its
interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from analysis import conditions, tables
from analysis.contrasts import Ranking, contrasts_by_factor, rank_levels
from analysis.level_words import context_text, level_text, title
from analysis.records import cell_levels, levels_in_order, varying
from common.notes import Note
from declared.responses import EPOCH_TIME
from report.answer import answer_question, gather_evidence
from report.findings import variation_note
from report.material import Material
from report.page_table import PageTable
from report.results import note_heading

OPENING_CODES = ("recovered", "best-level")  # codes of notes with a heading that the first paragraph has
OVERALL = "Uncertainty"
OVERALL_CODES = ("open-comparisons", "nothing-tested", "usable-runs")  # codes of the notes below OVERALL
MAX_ROWS = 30  # Most rows of the ranking.
MAX_MEANS_ROWS, MAX_MEANS_COLUMNS = 12, 8  # A larger table of means is too large to stand open.


@dataclass(frozen=True)
class AnswerSection:
    """The answer section of a report.

    Attributes:
        main: The main notes of the answer; a note that nodes are emulated, if they are; the number of usable
            runs, if it is not all.
        reading: How to read them.
        means: The mean of each level of the first factor in question at each setting; None for large designs.
        further: Further notes, folded after the main figure.
        tables: Small tables, after the further notes.
    """

    main: list[Note]
    reading: str = ""
    means: PageTable | None = None
    further: list[Note] = field(default_factory=list)
    tables: list[PageTable] = field(default_factory=list)

    @property
    def opening(self) -> str:
        """The first paragraph: the means, what accumulation recovers, the best levels, and other notes."""
        overall = [note for note in self.main if not _heading(note)]
        answers = [note for code in OPENING_CODES for note in self.main if note.code == code]
        return " ".join([*overall[:1], *answers, *overall[1:]])

    @property
    def paragraphs(self) -> list[tuple[str, str]]:
        """Heading and text of each other note; a heading stands once."""
        paragraphs, previous = list[tuple[str, str]](), ""
        for note in self.main:
            if note.code not in OPENING_CODES and (heading := _heading(note)):
                paragraphs.append((heading if heading != previous else "", note))
                previous = heading
        return paragraphs


def _heading(note: Note) -> str:
    return OVERALL if note.code in OVERALL_CODES else note_heading(note)


def build_answer_section(material: Material) -> AnswerSection:
    """Return the answer to the study's question; without a successful run, why there is none."""
    study, response = material.study, material.response
    data = {name: stage_table.table.data for name, stage_table in material.tables.items()}
    evidence = gather_evidence(study, material.runs_with_response, data, lambda: material.epochs)
    answer = answer_question(study, evidence)
    emulated = conditions.emulated_nodes_note(material.every_run)
    usable = conditions.usable_runs_note(material.every_run)
    main = [*answer.main, *filter(None, [emulated]), *([usable] if usable.facts["causes"] else [])]
    if material.ok.empty:
        return AnswerSection(main)
    by_factor = contrasts_by_factor(evidence.runs, material.data("effects"), material.data("anova"), response)
    factors = [name for name in study.answer_factors if name in by_factor][:1]
    ranked = [
        ranked_levels(material, name, rank_levels(evidence.runs, name, by_factor[name], response))
        for name in factors
    ]
    return AnswerSection(
        main,
        answer.reading,
        means_by_setting(material, factors[0]) if factors else None,
        [*answer.further, *filter(None, [variation_note(evidence)])],
        [table for table in ranked if table and table.rows],
    )


def means_by_setting(material: Material, factor: str) -> PageTable | None:
    """Return the mean of each level of a factor (columns) at each setting of the others (rows).

    None for a single setting, and if the table would be too large to stand open.
    """
    response, runs = material.response, material.runs
    means = material.response_means.cell_statistics["mean"].dropna().sort_values() * response.unit_multiplier
    rows = cell_levels(runs).set_index("cell").loc[means.index]
    other_factors = varying(runs, exclude=[factor])
    order = {name: levels_in_order(runs, name) for name in other_factors}
    settings = sorted(
        dict.fromkeys(rows[other_factors].itertuples(index=False, name=None)),
        key=lambda setting: [order[name].index(level) for name, level in zip(order, setting, strict=True)],
    )
    levels = [level for level in levels_in_order(runs, factor) if (rows[factor] == level).any()]
    if not (1 < len(settings) <= MAX_MEANS_ROWS and 1 < len(levels) <= MAX_MEANS_COLUMNS):
        return None
    keys = rows[[factor, *other_factors]].itertuples(index=False, name=None)
    texts = dict(zip(keys, tables.equal_decimals(means.tolist(), 3), strict=True))
    return PageTable(
        f"Mean {response.label} of each {title(factor)} at each setting; table `cells` has the intervals.",
        ["setting", *map(level_text, levels)],
        [
            [
                context_text(dict(zip(other_factors, setting, strict=True)), other_factors),
                *(texts.get((level, *setting), tables.DASH) for level in levels),
            ]
            for setting in settings
        ],
        ("setting",),
        is_matrix=True,
    )


def ranked_levels(material: Material, factor: str, rankings: Sequence[Ranking]) -> PageTable | None:
    """Return the best level of a factor at each setting of the others; None for a single one."""
    if len(rankings) < 2:
        return None
    response, multiplier = material.response, material.response.unit_multiplier
    best = "fastest" if response == EPOCH_TIME else "best"
    header = [
        "setting",
        f"{best} {title(factor)}",
        response.label,
        "compared with",
        "ratio",
        "p (Holm)",
    ]
    listed = rankings[:MAX_ROWS]
    means = [material.response_means.cell_mean(ranking.cells[0]).times(multiplier) for ranking in listed]
    rows = [
        [
            ranking.context,
            level_text(ranking.levels[0]),
            mean,
            *(
                (level_text(lead.before), tables.ratio(lead.ratio), tables.p_value(lead.p))
                if (lead := ranking.lead)
                else [tables.DASH] * 3
            ),
        ]
        for ranking, mean in zip(listed, tables.intervals(means), strict=True)
    ]
    n_omitted = len(rankings) - MAX_ROWS
    caption = (
        f"{best.capitalize()} {title(factor)} at each setting of the other factors, compared with the "
        f"next {best} one to which the table `effects` compares it."
        + (f" {n_omitted} more settings are not listed." if n_omitted > 0 else "")
    )
    return PageTable(caption, header, rows, (header[0], header[1], header[3]))
