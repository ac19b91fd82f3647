"""Write templates for a reader's own analysis: explore.ipynb (pandas) and explore.R (tidyverse).

Both load all data, reproduce one figure and one test of the study, and compare the test with the table of
effects.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.measured import read_timing_runs
from analysis.pooling import pooled
from common.files import write_text
from common.options import run_program

NOTEBOOK, SCRIPT = "explore.ipynb", "explore.R"
AGREES, DISAGREES = "as in the table of effects", "the table of effects says otherwise"
NO_TEST = "no two cells are compared within blocks: nothing to test"
TEMPLATES = {NOTEBOOK: "explore.py.jinja", SCRIPT: "explore.R.jinja"}
_CELL = re.compile(r"^# %%(?P<kind> \[markdown\])?\n", re.MULTILINE)


def render_templates(title: str, question: str, runs: pd.DataFrame) -> dict[str, str]:
    """Return the name and content of both files of a study."""
    within = pooled(runs).within
    prior = within.prior
    values = {
        "title": title,
        "question": question,
        "variance": repr(float(prior.variance)) if prior.df else "0.0",
        "df": repr(float(prior.df)),
        "most_df": repr(float(within.df)),
        "agrees": AGREES,
        "disagrees": DISAGREES,
        "no_test": NO_TEST,
    }
    contents = {name: _fill(template, values) for name, template in TEMPLATES.items()}
    return {**contents, NOTEBOOK: convert_to_notebook(contents[NOTEBOOK])}


def _fill(template: str, values: Mapping[str, str]) -> str:
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"{{{{ {name} }}}}", value)
    return text


def convert_to_notebook(source: str) -> str:
    """Return a notebook with a cell for each `# %%`; lines of `# %% [markdown]` cells are comments."""
    _, *parts = _CELL.split(source)
    cells: list[dict[str, Any]] = []
    for number, (kind, body) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        lines = body.strip().splitlines(keepends=True)
        cell: dict[str, Any] = {
            "cell_type": "markdown" if kind else "code",
            "id": f"cell-{number}",
            "metadata": {},
        }
        if kind:
            cell["source"] = [line.removeprefix("#").removeprefix(" ") for line in lines]
        else:
            cell |= {"execution_count": None, "outputs": [], "source": lines}
        cells.append(cell)
    language = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"cells": cells, "metadata": {"kernelspec": language}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main(*, title: str, question: str, runs: Path, out: Path) -> None:
    """Write explore.ipynb and explore.R.

    Args:
        title: the study's title
        question: the study's question
        runs: runs.csv of the study
        out: folder of the two files
    """
    for name, text in render_templates(title, question, read_timing_runs(runs)).items():
        write_text(out / name, text)


if __name__ == "__main__":
    sys.exit(run_program(main))
