"""Write the results of a paper: the answer under a heading per factor, and each figure with its finding.

The factor in question with the largest share of significant comparisons comes first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analysis import conditions
from analysis.answers import ACCURACY, Answer
from analysis.decomposition import ACCUMULATION
from analysis.level_words import title
from common.notes import Note
from common.text import end_sentence
from declared.factors import SIZE_FACTORS
from declared.figure_specs import FigureSpec
from declared.responses import RESPONSES
from report.facts import MEANS, Facts
from report.findings import FIGURE_REFERENCE, find_effect_note
from report.latex import see, to_latex

SCALING = "Scaling"
HEADINGS = {"framework": "Frameworks", ACCUMULATION: "Accumulation", **dict.fromkeys(SIZE_FACTORS, SCALING)}
# Factors of notes that do not name one, by the note's code.
FACTORS = {"recovered": ACCUMULATION, "saved-all-reduces": ACCUMULATION, ACCURACY: ACCUMULATION}
# Labels of the tables with the numbers of notes and findings, by their code.
TABLES_OF_NOTES: Mapping[str, Sequence[str]] = {
    "open-comparisons": ["tab:effects"],
    "saved-all-reduces": ["tab:decomposition"],
    "warm-up": ["tab:useful_time"],
    "speedup-range": ["tab:speedup"],
}
OTHER_FACTORS = "Other factors"
OTHER_RESULTS = "Further results"
OVERVIEWS = ("overview", "heat_map")  # kinds of figures that show all cells
KIND_HEADINGS = {
    "scaling": SCALING,
    "shares": SCALING,
    "network": "Network",
    "prediction": "Prediction",
    "memory": "Memory",
    **dict.fromkeys(("accuracy", "time_to_accuracy"), "Accuracy"),
}


@dataclass
class Section:
    """A part of the results: notes of the answer, and names of figures."""

    notes: list[Note] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)


def write_results(
    facts: Facts, figures: Mapping[str, FigureSpec], findings: Mapping[str, Note], answer: Answer
) -> str:
    """Return the answer in sentences under a heading per factor, then each figure with its finding."""
    preamble, sections = arrange_sections(figures, answer)
    first = str(preamble.notes[0]) if preamble.notes else ""
    if any(finding.code == "epoch-time-range" for finding in findings.values()):
        first = end_sentence(first.partition("; ")[0])  # The finding names the best cell.
    usable = to_latex(conditions.usable_runs_note(facts.runs))
    stated = {note.facts.get("figure") for note in (*answer.main, *answer.further)}

    def discuss(names: Sequence[str]) -> list[str]:
        return [_discuss(facts, name, findings.get(name)) for name in names if name not in stated]

    paragraphs = [
        *_inputs(preamble.figures),
        *filter(None, [to_latex(first)]),
        usable + facts.see(f"tab:{MEANS}", before=" Means of all cells are in ", after="."),
        *discuss(preamble.figures),
        *(_refer(facts, note) for note in preamble.notes[1:]),
        *([to_latex(answer.reading)] if answer.reading else []),
    ]
    for heading, section in sections.items():
        paragraphs += [
            *_inputs(section.figures),  # a figure across the page appears on the next page at the earliest
            *([rf"\subsection{{{to_latex(heading)}}}"] if len(sections) > 1 else []),
            *(_refer(facts, note) for note in section.notes),
            *discuss(section.figures),
        ]
    return "\n\n".join(paragraphs) + "\n"


def arrange_sections(figures: Mapping[str, FigureSpec], answer: Answer) -> tuple[Section, dict[str, Section]]:
    """Return the preamble, which has no heading, and the sections by heading, in the order of the paper."""
    preamble, sections = Section(), dict[str, Section]()
    by_heading: dict[str, list[Note]] = {}
    for note in answer.main:
        by_heading.setdefault(note_heading(note), []).append(note)
    preamble.notes = by_heading.pop("", [])
    for heading in sorted(by_heading, key=lambda heading: -_significant_share(by_heading[heading])):
        sections[heading] = Section(by_heading[heading])
    for note in answer.further:
        sections.setdefault(note_heading(note), Section()).notes.append(note)
    for name, spec in figures.items():
        heading = "" if spec.kind in OVERVIEWS else _figure_heading(spec)
        section = sections.setdefault(heading, Section()) if heading else preamble
        section.figures.append(name)
    return preamble, sections


def factor_heading(factor: str) -> str:
    """Return the heading of the results about a factor."""
    name = title(factor)
    return HEADINGS.get(factor, f"{name[0].upper()}{name[1:]}")


def note_heading(note: Note) -> str:
    """Return the heading of a note; "" for a note about all factors."""
    if note.code in ("effect-not-known", "out-of-memory"):
        return OTHER_FACTORS
    factor = FACTORS.get(note.code) or note.facts.get("factor")
    return factor_heading(factor) if factor else ""


def _figure_heading(spec: FigureSpec) -> str:
    """Return the heading of a figure: that of its kind, or of the factor on its x axis."""
    return KIND_HEADINGS.get(spec.kind) or (factor_heading(spec.x) if spec.x else OTHER_RESULTS)


def _significant_share(notes: Iterable[Note]) -> float:
    """Return the share of significant comparisons of the first note that counts them; 0 without one."""
    counted = (note.facts for note in notes if note.facts.get("tested"))
    return next((facts["significant"] / facts["tested"] for facts in counted), 0.0)


def _refer(facts: Facts, note: Note) -> str:
    """Return a note of the answer with references to its figures or to the table with its numbers.

    An effect is referred to by every figure of this factor and response.
    """
    text, figure = to_latex(note), note.facts.get("figure")
    if figure:
        return text.replace(FIGURE_REFERENCE, see("fig", figure))
    response = RESPONSES[facts.study.response]
    figures = [f"fig:{spec.name}" for spec in facts.figure_specs if find_effect_note(spec, [note], response)]
    references = facts.see(*TABLES_OF_NOTES.get(note.code, figures))
    return f"{text.removesuffix('.')}{references}." if references else text


def _inputs(names: Sequence[str]) -> list[str]:
    return [rf"\input{{figures/{name}}}" for name in names]


def _discuss(facts: Facts, name: str, finding: Note | None) -> str:
    """Return the finding of a figure, or a reminder to the author to write one."""
    reference = see("fig", name)
    if not finding:
        return rf"\tobewritten{{what {reference} shows.}}"
    reference += facts.see(*TABLES_OF_NOTES.get(finding.code, ()), before=", ", after="")
    return to_latex(finding).replace(FIGURE_REFERENCE, reference)
