"""Answer the question of a study from its runs and tables, the same way for its report and its paper."""

from collections.abc import Callable, Mapping

import pandas as pd

from analysis.answers import Answer, Question, answer_sentences
from analysis.cell_means import measured_response
from analysis.evidence import Evidence
from declared.responses import RESPONSES
from declared.study import Study


def gather_evidence(
    study: Study,
    runs: pd.DataFrame,
    tables: Mapping[str, pd.DataFrame],
    load_epochs: Callable[[], pd.DataFrame],
) -> Evidence:
    """Return what answer and findings are computed from.

    Args:
        study: The study.
        runs: The runs that tables and figures use, with the column of the study's response.
        tables: Values of the study's tables, by name.
        load_epochs: Returns the epochs of the runs.
    """
    return Evidence(runs, tables, measured_response(runs, RESPONSES[study.response]), load_epochs)


def answer_question(study: Study, evidence: Evidence) -> Answer:
    """Return the answer to the study's question."""
    return answer_sentences(evidence, Question(study.answer_factors, study.margin, RESPONSES[study.response]))
