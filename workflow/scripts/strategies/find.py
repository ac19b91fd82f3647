"""Search for the fastest strategy of a model on given devices (`ringside strategies --model`).

No campaign is needed: steps are simulated. For each layer, a strategy states how samples, positions, rows,
columns, channels, units or heads are partitioned, and which device has which part. Times come from a roofline
of the devices, or with --measure from timings on this machine.
"""

import json
import math
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis import tables
from common.errors import InputError, system_faults
from common.files import display_path, write_json, write_text
from common.notes import Note
from common.text import format_bytes, number_of
from declared.configuration import load_config
from declared.site import Site, load_site
from environments.build import build_tool
from figures import style
from models.soap import divide
from plan.campaign import load_merged_config
from strategies import chakra, draw, meshes
from strategies.engine import NEVER
from strategies.problem import PICOSECONDS
from strategies.question import MESH, SOAP, START_TITLES, SearchQuestion

ENVIRONMENT = "planner"
MAX_SEARCH_S = 3600
TITLE = "Strategies of {model} on {devices}, by step time"
METHOD = Note(
    "simulation-method",
    "Simulated: computation by a roofline of the device's rates, messages by the rates and latencies of "
    "links. A device computes its parts in program order; a message waits until the links that it uses are "
    "free.",
)
MEASURED = (
    "Simulated: computation of each part as timed on this machine ({device}); messages by the rates and "
    "latencies of the topology's links; memory as the topology has it. A device computes its parts in "
    "program order; a message waits until the links that it uses are free."
)
SPEED_UP = Note("speedup-base", "Speed-up: over data parallelism on the same devices.")
SEARCHED = (
    "Searches: the fastest of {restarts} from each start with {proposals} proposals each, and seeds of their "
    "own. Restarts: the fastest and the slowest of them."
)
GAP = "The median restart of the fastest search is {gap:.1f} % slower than the best of its {restarts}."
TOO_LITTLE_MEMORY = "too little memory"
STUDY_TITLE = "A study of the suggested mesh, for config/studies/:"
NONE_FITS = "no strategy was found that fits in memory: the least that one needs is {least}"
METHODS = {"metropolis": "Metropolis-Hastings", "annealing": "annealing of groups"}
WORDS = ["strategy"]


def interpreter(site: Site | None = None) -> str:
    """Return the Python that has numba, of a site or the configured one; build its environment if needed."""
    return build_tool(ENVIRONMENT, site or load_site(load_config(load_merged_config()).site))


def run_planner(question: SearchQuestion, python: str) -> list[dict[str, Any]]:
    """Run `strategies.search` with the interpreter `python` and return its answers."""
    command = [python, "-m", "strategies.search"]
    scripts = str(Path(__file__).resolve().parents[1])
    try:
        process = subprocess.run(
            command,
            input=json.dumps(question.job()),
            env=os.environ | {"PYTHONPATH": scripts},
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=MAX_SEARCH_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise InputError(
            "too-slow",
            f"the search took more than {MAX_SEARCH_S} s",
            file="--proposals",
            got=question.proposals,
            hint="set fewer proposals",
        ) from None
    except subprocess.CalledProcessError as error:
        problem = f"the search ended with status {error.returncode}"
        raise InputError(
            "search-failed", problem, got=error.returncode, hint="see its output above"
        ) from None
    answers: list[dict[str, Any]] = json.loads(process.stdout)
    return answers


def table(
    question: SearchQuestion, answers: Sequence[dict[str, Any]], mesh_notes: Sequence[Note] = ()
) -> tables.Table:
    """Return the table of starts, searched strategies and meshes, fastest first."""
    base = next(
        (answer["seconds"] for answer in answers if answer["method"] is None and answer["start"] == "data"),
        next((answer["seconds"] for answer in answers if answer.get("is_plain")), None),
    )
    rows = pd.DataFrame(
        [
            {
                "method": answer["method"] or "",
                "start": answer["start"],
                "step_s": answer["seconds"],
                "speedup": base / answer["seconds"] if base and answer["seconds"] else None,
                "sent_activation_bytes": answer["sent_activation_bytes"],
                "gradient_bytes": answer["gradient_bytes"],
                "memory_bytes": answer["memory_bytes"],
                "weight_bytes": answer["weight_bytes"],
                **restart_times(answer),
                "accepted": answer["ended"]["accepted"] if "ended" in answer else None,
                "proposals_s": question.proposals / answer["wall_s"] if answer.get("wall_s") else None,
            }
            for answer in answers
        ]
    ).sort_values("step_s", kind="stable", ignore_index=True)
    columns = pd.DataFrame(
        {
            "strategy": [strategy_name(row["method"], row["start"]) for _, row in rows.iterrows()],
            "step (ms)": [
                TOO_LITTLE_MEMORY if pd.isna(value) else tables.number(1e3 * value)
                for value in rows["step_s"]
            ],
            "speed-up": [tables.DASH if pd.isna(value) else f"{value:.2f}" for value in rows["speedup"]],
            "restarts (ms)": [
                tables.DASH
                if pd.isna(slowest)
                else f"{tables.number(1e3 * fastest)} to {tables.number(1e3 * slowest)}"
                for fastest, slowest in zip(rows["step_s"], rows["slowest_restart_s"], strict=True)
            ],
            "outputs sent (MB)": [tables.number(value / 1e6) for value in rows["sent_activation_bytes"]],
            "gradients sent (MB)": [tables.number(value / 1e6) for value in rows["gradient_bytes"]],
            "memory (GB)": [tables.number(value / 1e9) for value in rows["memory_bytes"]],
            "of it weights (GB)": [tables.number(value / 1e9) for value in rows["weight_bytes"]],
        }
    )
    devices = number_of(question.topology.devices, "device")
    searched = Note(
        "searches",
        SEARCHED.format(proposals=f"{question.proposals:,}", restarts=question.restarts),
        proposals=question.proposals,
        restarts=question.restarts,
    )
    method = METHOD
    if question.timed_on:
        text = MEASURED.format(device=question.timed_on)
        method = Note("parts-measured", text, device=question.timed_on)
    notes = [method, SPEED_UP, *([searched] if question.space != MESH else []), *mesh_notes]
    searches = rows[rows["method"].isin(METHODS)]
    fastest = searches.iloc[0] if len(searches) else None
    if fastest is not None and pd.notna(fastest["step_s"]) and question.restarts > 1:
        gap = 100 * (fastest["median_restart_s"] / fastest["step_s"] - 1)
        notes.append(Note("restart-gap", GAP.format(gap=gap, restarts=question.restarts), gap_percent=gap))
    return tables.Table(
        TITLE.format(model=question.graph.model, devices=devices), rows, columns, notes, WORDS
    )


def restart_times(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return number, median and slowest step time of a search's restarts, None without a search."""
    if "restarts" not in answer:
        return dict.fromkeys(("n_restarts", "median_restart_s", "slowest_restart_s"))
    seconds = [value for value in answer["restarts"] if value] or [math.nan]
    return {
        "n_restarts": len(answer["restarts"]),
        "median_restart_s": statistics.median(seconds),
        "slowest_restart_s": max(seconds),
    }


def strategy_name(method: str, start: str) -> str:
    """Return the name of a strategy in tables."""
    if method == meshes.METHOD:
        return f"{meshes.METHOD}: {start}"
    return f"{METHODS[method]}, from {START_TITLES[start]}" if method else START_TITLES[start]


def all_answers(question: SearchQuestion) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return the answers of the question's spaces, and notes on meshes."""
    answers = [] if question.space == MESH else run_planner(question, interpreter())
    if question.space == SOAP:
        return answers, []
    rows, note = meshes.plan_meshes(
        question.graph, question.topology, question.batch, question.precision, question.numbers_of_parameter
    )
    return [*answers, *rows], [note]


def search(
    question: SearchQuestion, out: Path | None = None, traces: Path | None = None, strategy: str | None = None
) -> None:
    """Search for the fastest strategies, and print or write their table.

    Args:
        question: The question.
        out: Files to write, without their suffix: the table, the strategies, figures. None: print the table
            alone.
        traces: Folder for the execution traces of a step.
        strategy: The strategy in them, as the table names it; None: the fastest.
    """
    if traces and question.space == MESH:
        problem, hint = "exports strategies of layers", f"set --space {SOAP}"
        raise InputError("conflicting-keys", problem, file="--chakra", got=question.space, hint=hint)
    answers, mesh_notes = all_answers(question)
    if any((answer["seconds"] or 0) >= NEVER / PICOSECONDS for answer in answers):
        raise InputError(
            "too-slow",
            f"a step takes more than {NEVER / PICOSECONDS:.0f} s, too long to simulate",
            file="--batch-size",
            got=question.batch,
            hint="give fewer samples, or faster --links or --topology",
        )
    if not any(answer["seconds"] for answer in answers):
        least_bytes = min(answer["memory_bytes"] for answer in answers)
        available = question.topology.device.memory_bytes
        raise InputError(
            "too-little-memory",
            NONE_FITS.format(least=format_bytes(least_bytes)),
            file=question.graph.model,
            got=least_bytes,
            expected=f"at most {format_bytes(available)} on a device",
            hint="search longer (--proposals, --restarts), or give a smaller --batch-size",
        )
    by_layers = [answer for answer in answers if "parts" in answer]
    names = [strategy_name(answer["method"], answer["start"]) for answer in by_layers]
    traced = chakra.choose_answer(by_layers, names, strategy) if traces else 0
    result = table(question, answers, mesh_notes)
    study = next((meshes.study_text(answer["levels"]) for answer in answers if answer.get("suggested")), "")
    if not out:
        print(tables.markdown(result))
        print(f"{STUDY_TITLE}\n\n{study}" if study else "", end="")
    if traces:
        chakra.export(question.job(), by_layers[traced]["parts"], names[traced], traces)
        print(f"{names[traced]}: execution traces in {display_path(traces)}")
    if not out:
        return
    with system_faults(out):
        tables.write(result, out)
        write_json(out.with_suffix(".json"), {"question": question.job(), "answers": answers})
        if study:
            write_text(out.with_name(f"{out.name}.study.yaml"), study)
        layers = [answer for answer in answers if "parts" in answer]
        for stem, (picture, caption) in (draw_figures(question, layers, out) if layers else {}).items():
            style.save(picture, stem)
            write_text(stem.with_name(f"{stem.name}.caption.md"), caption + "\n")


def draw_figures(
    question: SearchQuestion, answers: Sequence[dict[str, Any]], stem: Path
) -> dict[Path, tuple[Figure, str]]:
    """Return figures and captions by path: two starts and the fastest strategy as bars, and progress."""
    starts = {answer["start"]: answer for answer in answers if answer["method"] is None}
    fastest = min((answer for answer in answers if answer["seconds"]), key=lambda answer: answer["seconds"])
    named = {START_TITLES[name]: starts[name] for name in ("data", "expert")} | {"the fastest": fastest}
    parts = {name: answer["parts"] for name, answer in named.items()}
    space = divide(question.graph, question.batch)
    return {
        stem: draw.bars(question.graph, space, parts, question.topology.devices),
        stem.with_name(f"{stem.name}.progress"): draw.progress(answers, METHODS | START_TITLES),
    }
