"""Find the fastest strategy for each question of a study, from measurements at its site.

A question has the levels that cells with a searched strategy share
(`plan.strategies.strategy_search_name`). The answers are written to config/strategies/<study>.<site>.json, an
input of the campaign that `plan.strategies` reads. If the measurements of a question are missing, it has no
answer, and a printed line gives the reason.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import tables
from analysis.level_words import title_with_unit
from common.errors import InputError
from common.files import digest_text, display_path, write_text
from common.notes import Note
from common.options import run_program
from common.schemas import check
from common.text import format_bytes, number_of
from declared.mesh import SEARCHED
from declared.site import Site, load_site
from declared.study import load_study
from models.layout import BUCKET_BYTES, BucketBytes
from models.messages import n_optimizer_states
from plan.design import Run, plan_design
from plan.site_limits import unsupported_reason
from plan.strategies import STRATEGY_SEARCH_FACTORS, strategy_file, strategy_search_name
from strategies.find import (
    NONE_FITS,
    TOO_LITTLE_MEMORY,
    interpreter,
    restart_times,
    run_planner,
    strategy_name,
)
from strategies.measured import (
    Measurements,
    MissingMeasurement,
    load_measurements,
    measured_rows,
    measured_topology,
    select_costs,
)
from strategies.question import RESTARTS, SearchQuestion

ANSWER_COLUMNS = (
    "data_s", "expert_s", "found_s", "method", "start", "median_restart_s", "sent_activation_bytes",
    "gradient_bytes", "memory_bytes",
)  # fmt: skip
PROPOSALS = 20_000
SEED = 1
TITLE = "Searched strategies, by simulated step time"
METHOD = Note(
    "simulation-method",
    "Simulated: computation of each part as timed at the site (costs.csv); messages and all-reduce by "
    "latency and bandwidth fitted to its collective benchmark (network.csv); CPU time of messages as timed "
    "(messages.csv).",
)
SEARCH_NOTE = (
    "The fastest result of two searches from each start, each restarted {restarts} times with {proposals} "
    "proposals and a seed of its own; one start is data parallelism. Speed-up: over data parallelism. Gap: "
    "by how much the median restart of the fastest search is slower than the best of them."
)
NO_QUESTION = Note("no-question", "The study has no cell with a searched strategy (parallelism: found).")


def list_questions(runs: Sequence[Run], site: Site) -> dict[str, Run]:
    """Return the questions of a study with one run of each; the site must be able to train the answer."""
    questions: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.run_id):
        if (
            run.framework.strategies
            and run.levels["parallelism"] == SEARCHED
            and unsupported_reason(site, run.levels) is None
        ):
            questions.setdefault(strategy_search_name(run.levels), run)
    return questions


def numbers_of_parameter(levels: Mapping[str, Any]) -> int:
    """Return how many numbers are kept for each parameter: itself, its gradient, optimizer state."""
    return 2 + n_optimizer_states(levels)


def measured_question(run: Run, measurements: Measurements, bucket_bytes: BucketBytes) -> SearchQuestion:
    """Return the question of a run, with its measurements.

    Raises:
        MissingMeasurement: If one is missing.
    """
    costs = select_costs(measurements.costs, run)
    links = measured_topology(
        measurements.network,
        measurements.messages,
        run,
        float(costs["memory_bytes"].iloc[0]),
        measurements.cores,
    )
    n_numbers = numbers_of_parameter(run.levels)
    return SearchQuestion(
        run.graph,
        run.geometry.local_batch,
        links,
        PROPOSALS,
        SEED,
        n_numbers,
        bucket_bytes=bucket_bytes,
        costs=measured_rows(costs),
    )


def fastest_answer(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the answer with the shortest step time.

    Raises:
        MissingMeasurement: If no strategy fits in memory.
    """
    fits = [answer for answer in answers if answer["seconds"]]
    if not fits:
        least_bytes = min(answer["memory_bytes"] for answer in answers)
        text = NONE_FITS.format(least=format_bytes(least_bytes))
        raise MissingMeasurement(Note("too-little-memory", text, least_bytes=least_bytes))
    return min(fits, key=lambda answer: answer["seconds"])


def answer_row(run: Run, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the table's row of a question: times of starts, and of the fastest strategy."""
    starts = {answer["start"]: answer["seconds"] for answer in answers if answer["method"] is None}
    best = fastest_answer(answers)
    return {
        "framework": run.framework.name,
        **{name: run.levels[name] for name in STRATEGY_SEARCH_FACTORS},
        "data_s": starts["data"],
        "expert_s": starts["expert"],
        "found_s": best["seconds"],
        "method": best["method"] or "",  # Empty if a start is the fastest.
        "start": best["start"],
        "median_restart_s": restart_times(best).get("median_restart_s"),
        **{name: best[name] for name in ("sent_activation_bytes", "gradient_bytes", "memory_bytes")},
    }


def table(rows: Sequence[Mapping[str, Any]], missed: Mapping[str, str]) -> tables.Table:
    """Return the table of searched strategies."""
    head = ["framework", *STRATEGY_SEARCH_FACTORS]
    data = pd.DataFrame(rows, columns=[*head, *ANSWER_COLUMNS])
    unanswered = [
        Note("question-unanswered", f"{name}: {reason}.", question=name, reason=reason)
        for name, reason in missed.items()
    ]
    if data.empty:
        return tables.Table(TITLE, data, pd.DataFrame(columns=["model"]), unanswered or [NO_QUESTION], head)
    level_names = [name for name in head if name == "model" or data[name].nunique() > 1]
    columns: dict[str, Any] = {title_with_unit(name): data[name].map(str) for name in level_names}
    for name in ("data", "expert", "found"):
        seconds = data[f"{name}_s"].astype(float)
        columns[f"{name} (ms)"] = [
            TOO_LITTLE_MEMORY if pd.isna(value) else tables.number(1e3 * value) for value in seconds
        ]
    ratios = data["data_s"].astype(float) / data["found_s"].astype(float)
    columns["speed-up"] = [tables.DASH if pd.isna(ratio) else f"{ratio:.2f}" for ratio in ratios]
    gaps = data["median_restart_s"].astype(float) / data["found_s"].astype(float) - 1
    columns["gap (%)"] = [tables.DASH if pd.isna(gap) else f"{100 * gap:.1f}" for gap in gaps]
    columns["found by"] = [
        strategy_name(method, start) for method, start in zip(data["method"], data["start"], strict=True)
    ]
    words = [*map(title_with_unit, ("framework", "model", "dataset", "device", "optimizer")), "found by"]
    method = SEARCH_NOTE.format(proposals=f"{PROPOSALS:,}", restarts=RESTARTS)
    searched = Note("searches", method, proposals=PROPOSALS, restarts=RESTARTS)
    return tables.Table(TITLE, data, pd.DataFrame(columns), [METHOD, searched, *unanswered], words)


def format_strategies(content: Mapping[str, Any]) -> str:
    """Return content as JSON with one line per list of numbers."""
    return (
        re.sub(r"\[[\d,\s]+\]", lambda match: " ".join(match[0].split()), json.dumps(content, indent=2))
        + "\n"
    )


def answer_questions(
    runs: Mapping[str, Run], measurements: Measurements, python: str
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Note]]:
    """Return the content of the file of strategies, the table's rows, and why questions have no answer."""
    strategies, digests, rows, unanswered = {}, {}, [], {}
    for name, run in runs.items():
        try:
            posed_question = measured_question(run, measurements, BUCKET_BYTES)
            answers = run_planner(posed_question, python)
            best, row = fastest_answer(answers), answer_row(run, answers)
        except MissingMeasurement as error:
            unanswered[name] = error.note
            continue
        digests[name] = digest_text(json.dumps(posed_question.job(), sort_keys=True))
        strategies[name] = {"step_s": best["seconds"], "parts": best["parts"]}
        rows.append(row)
        data = f", data parallelism {1e3 * row['data_s']:.3g} ms" if row["data_s"] else ""
        print(f"{name}: {1e3 * best['seconds']:.3g} ms a step{data}", flush=True)
    content = {"made_of": digests, "bucket_bytes": list(BUCKET_BYTES), "strategies": strategies}
    return content, rows, unanswered


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
    declared_site = load_site(site)
    questions = list_questions(plan_design(load_study(study), declared_site), declared_site)
    file = strategy_file(study, site)
    content, rows, unanswered = answer_questions(
        questions, load_measurements(declared_site, costs, messages, network), interpreter(declared_site)
    )
    for name, reason in unanswered.items():
        print(f"{name}: no strategy: {reason}", flush=True)
    if unanswered and not content["strategies"]:
        first = next(iter(unanswered.values()))
        raise InputError(first.code, f"not written: {first}", file=display_path(file), got=list(unanswered))
    check(content, "strategies", file)
    write_text(file, format_strategies(content))
    tables.write(table(rows, unanswered), out)
    print(f"{number_of(len(rows), 'question')} answered in {display_path(file)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_program(main))
