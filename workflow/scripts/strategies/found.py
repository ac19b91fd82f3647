"""The fastest strategy of every question of a study, from what was measured at its site -> config/strategies/<study>.<site>.json.

A question is what cells that train by a strategy that is found have in common (plan.strategies.question). The file is an input of the campaign,
as the study is: plan.strategies reads it. A question of which something was not measured has no answer, and one line says why.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import tables
from analysis.measured import title_with_unit
from common.errors import InputError
from common.files import digest_text, shown, write_text
from common.notes import Note
from common.options import run_program
from common.schemas import check
from common.text import number_of
from declared.mesh import FOUND
from declared.site import Site, load_site
from declared.study import load_study
from plan.design import Run, design
from plan.identity import lacks
from plan.strategies import ASKED, file_of, question
from strategies.find import METHODS, NAMES, Question, found, interpreter
from strategies.measured import Known, Lacking, costs_of, known, rows_of, topology

PROPOSALS = 20_000
SEED = 1
TITLE = "Strategies that were found, by the simulated time of a step"
HOW = Note(
    "simulation-method",
    "Simulated: computation of each part as it was timed at the site (costs.csv), messages and sums by latency and bandwidth as they were fitted to "
    "its sweeps (network.csv), and what ranks do for messages as that was timed (messages.csv).",
)
SEARCHED = (
    "The fastest of two searches from three starts, with {proposals} proposals each; data parallelism is one of the starts. "
    "Speed-up: over data parallelism."
)
NOTHING = Note("no-question", "The study asks for no strategy that is found.")


def asked(runs: Sequence[Run], site: Site) -> dict[str, Run]:
    """The questions of a study that its site can train the answers of, each with one of its runs."""
    of: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.run_id):
        if run.framework.strategies and run.levels["parallelism"] == FOUND and lacks(site, run.levels) is None:
            of.setdefault(question(run.levels), run)
    return of


def numbers_of_parameter(levels: Mapping[str, Any]) -> int:
    """What is kept of each parameter: itself, its gradient, and what the optimizer keeps of it."""
    if levels["optimizer"] == "adam":
        return 4
    return 3 if levels["momentum"] else 2


def posed(run: Run, of: Known) -> Question:
    """The question of a run, with all that was measured of it. Lacking where something was not."""
    own = costs_of(of.costs, run)
    links = topology(of.network, of.messages, run, float(own["memory_bytes"].iloc[0]), of.cores)
    kept = numbers_of_parameter(run.levels)
    return Question(run.graph, run.geometry.local_batch, links, PROPOSALS, SEED, kept, costs=rows_of(own))


def fastest(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The answer whose step takes the least time. Lacking where no strategy has the memory."""
    fits = [answer for answer in answers if answer["seconds"]]
    if not fits:
        raise Lacking(Note("too-little-memory", "no strategy was found whose devices have the memory"))
    return min(fits, key=lambda answer: answer["seconds"])


def row(run: Run, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is told of a question: the times of starts, and of the fastest strategy."""
    starts = {answer["start"]: answer["seconds"] for answer in answers if answer["method"] is None}
    best = fastest(answers)
    return {
        "framework": run.framework.name,
        **{name: run.levels[name] for name in ASKED},
        "data_s": starts["data"],
        "expert_s": starts["expert"],
        "found_s": best["seconds"],
        "method": best["method"] or "",  # none: a start is the fastest
        "start": best["start"],
        **{name: best[name] for name in ("exchanged_bytes", "gradient_bytes", "memory_bytes")},
    }


def table(rows: Sequence[Mapping[str, Any]], missed: Mapping[str, str]) -> tables.Table:
    """The table of what was found."""
    head = ["framework", *ASKED]
    data = pd.DataFrame(rows, columns=[*head, *row_names()])
    unanswered = [
        Note("question-unanswered", f"{name}: {why}.", question=name, reason=why) for name, why in missed.items()
    ]
    if data.empty:
        return tables.Table(TITLE, data, pd.DataFrame(columns=["model"]), unanswered or [NOTHING], head)
    told_of = [name for name in head if name == "model" or data[name].nunique() > 1]
    shown: dict[str, Any] = {title_with_unit(name): data[name].map(str) for name in told_of}
    for name in ("data", "expert", "found"):
        seconds = data[f"{name}_s"].astype(float)
        shown[f"{name} (ms)"] = [
            "too little memory" if pd.isna(each) else tables.number(1e3 * each) for each in seconds
        ]
    ratios = data["data_s"].astype(float) / data["found_s"].astype(float)
    shown["speed-up"] = [tables.DASH if pd.isna(ratio) else f"{ratio:.2f}" for ratio in ratios]
    shown["found by"] = [_by(method, start) for method, start in zip(data["method"], data["start"], strict=True)]
    words = [*map(title_with_unit, ("framework", "model", "dataset", "device", "optimizer")), "found by"]
    searched = Note("searches", SEARCHED.format(proposals=f"{PROPOSALS:,}"), proposals=PROPOSALS)
    return tables.Table(TITLE, data, pd.DataFrame(shown), [HOW, searched, *unanswered], words)


def row_names() -> list[str]:
    """The columns of `row` behind those of the question."""
    return ["data_s", "expert_s", "found_s", "method", "start", "exchanged_bytes", "gradient_bytes", "memory_bytes"]


def _by(method: str, start: str) -> str:
    return f"{METHODS[method]}, from {NAMES[start]}" if method else NAMES[start]


def in_few_lines(content: Mapping[str, Any]) -> str:
    """Content as JSON, with a line for each list of numbers."""
    return re.sub(r"\[[\d,\s]+\]", lambda found: " ".join(found[0].split()), json.dumps(content, indent=2)) + "\n"


def answered(
    runs: Mapping[str, Run], of: Known, python: str
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Note]]:
    """The content of the file of strategies, the rows of the table, and why questions have no answer."""
    strategies, made_of, rows, missed = {}, {}, [], {}
    for name, run in runs.items():
        try:
            wanted = posed(run, of)
            answers = found(wanted, python)
            best, told = fastest(answers), row(run, answers)
        except Lacking as lacking:
            missed[name] = lacking.note
            continue
        made_of[name] = digest_text(json.dumps(wanted.job(), sort_keys=True))
        strategies[name] = {"step_s": best["seconds"], "parts": best["parts"]}
        rows.append(told)
        data = f", data parallelism {1e3 * told['data_s']:.3g} ms" if told["data_s"] else ""
        print(f"{name}: {1e3 * best['seconds']:.3g} ms a step{data}", flush=True)
    return {"made_of": made_of, "strategies": strategies}, rows, missed


def main(*, study: str, site: str, costs: Path, messages: Path, network: Path, out: Path) -> None:
    """Search for the fastest strategies of a study at its site, and write them.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        costs: costs.csv of the study
        messages: messages.csv of the study
        network: network.csv of the study
        out: table to write, without its suffix
    """
    there = load_site(site)
    questions = asked(design(load_study(study), there), there)
    file = file_of(study, site)
    content, rows, missed = answered(questions, known(there, costs, messages, network), interpreter(there))
    for name, why in missed.items():
        print(f"{name}: no strategy: {why}", flush=True)
    if missed and not content["strategies"]:
        first = next(iter(missed.values()))
        raise InputError(first.code, f"not written: {first}", file=shown(file), got=list(missed))
    check(content, "strategies", file)
    write_text(file, in_few_lines(content))
    tables.write(table(rows, missed), out)
    print(f"{number_of(len(rows), 'question')} answered in {shown(file)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_program(main))
