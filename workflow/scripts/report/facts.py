"""Collect the facts that a paper is based on, and render its sentences from methods.yaml."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined, Template

from analysis import conditions
from analysis.level_words import combination_text
from analysis.records import successful
from common.files import load_yaml
from common.notes import Note
from common.text import join_words, number_of
from declared.figure_specs import FigureSpec
from declared.site import Site
from declared.study import Study
from models.collectives import titles
from network.fit import bytes_text
from report import latex
from report.checkout import State

MEANS = "means"  # Name of the paper's short table of cells.


@functools.cache
def texts() -> Mapping[str, Any]:
    """Return the templates of methods.yaml, by the codes of sentences."""
    return dict(load_yaml(Path(__file__).with_name("methods.yaml")))


@functools.cache
def _template(text: str) -> Template:
    environment = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701 - LaTeX, no HTML
    environment.filters |= {"latex": latex.to_latex, "command": latex.command}
    environment.globals |= {
        "bytes": bytes_text,
        "cite": latex.cite,
        "count": number_of,
        "join": join_words,
        "join_short": conditions.join_names,
        "span": _span,
        "tab": functools.partial(latex.see, "tab"),
        "titles": titles,
        "words": combination_text,
    }
    return environment.from_string(text)


def _span(counts: Sequence[int], noun: str) -> str:
    """Return the range of ascending counts, such as `3 to 5 runs`."""
    return f"{counts[0]} to " * (len(counts) > 1) + number_of(counts[-1], noun)


@dataclass(frozen=True)
class Facts:
    """The study, records and contents that a paper is based on.

    Attributes:
        study: The study.
        site: The site; None if its file is not available.
        runs: The runs that tables and figures use: untraced ones, or all if every run is traced.
        network: Rows of network.csv; None without a collective benchmark.
        checks: The table `checks` (analysis/checks.py); None without one.
        paper_labels: Labels of the paper's figures and tables, such as tab:anova.
        supplement_numbers: What those of the supplement are called, such as `Table S3`, by label.
        figure_specs: Specs of the study's figures.
        load_epochs: Returns the epochs of the runs, which some responses are derived from.
        recovers: Whether the answer states what accumulation recovers.
        state: The state of the checkout that makes the paper.
    """

    study: Study
    site: Site | None
    runs: pd.DataFrame
    network: pd.DataFrame | None
    checks: pd.DataFrame | None
    paper_labels: Sequence[str] = ()
    supplement_numbers: Mapping[str, str] = field(default_factory=dict)
    figure_specs: Sequence[FigureSpec] = ()
    load_epochs: Callable[[], pd.DataFrame] = pd.DataFrame
    recovers: bool = False
    state: State = field(default_factory=State)

    @property
    def anonymous(self) -> bool:
        """Whether the paper must not reveal who made the study, or where."""
        return self.study.anonymous

    @property
    def ok(self) -> pd.DataFrame:
        """Return the successful runs."""
        return successful(self.runs)

    def see(self, *labels: str, before: str = " (", after: str = ")") -> str:
        """Return references to those figures and tables that the paper or its supplement has; "" for none.

        A reference to the short table of means becomes one to `cells` if the paper has no such table.

        Args:
            labels: Labels of figures and tables.
            before: The text before the references.
            after: The text after them.
        """
        references = []
        for label in labels:
            if label == f"tab:{MEANS}" and label not in self.paper_labels:
                label = "tab:cells"
            if label in self.paper_labels:
                references.append(latex.see(*label.split(":")))
            elif label in self.supplement_numbers:
                references.append(self.supplement_numbers[label].replace(" ", "~"))
        return f"{before}{join_words(references)}{after}" if references else ""

    def sentence(self, code: str, **stated: Any) -> Note:
        """Return the sentence `code` of methods.yaml in LaTeX, rendered with these facts.

        If the code has several sentences, the first fact chooses one.
        """
        text = texts()[code]
        if isinstance(text, Mapping):
            text = text[next(iter(stated.values()))]
        rendered = _template(text).render(see=self.see, **stated)
        return Note(code, " ".join(rendered.split()), **stated)
