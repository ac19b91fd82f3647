"""How many nodes are worth it: speed-up and efficiency over nodes at link rates that were not measured, as a table.

From a study (its computation, its law of the network, what is hidden, the waiting, with intervals of a parametric
bootstrap), or from numbers alone (prediction.question has both). figures.outlook draws it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.measured import read_timed, successful, title
from common.cores import all_cores
from common.errors import InputError
from common.notes import Note
from common.options import run_program
from common.tables import read_table
from common.text import alternatives
from declared.datasets import load_dataset
from declared.models import model_graph, model_names
from models.collectives import ALL_REDUCE
from models.graph import BYTES
from prediction import exchange, law, physics
from prediction.extrapolate import (
    BANDS,
    FACTORS,
    LEVELS,
    answerable,
    answers,
    anywhere,
    cases,
    curves,
    hypothetical,
    redrawn,
    with_bands,
)
from prediction.law import Law, rate_text
from prediction.physics import Levels, Physics
from prediction.question import DEFAULT_FRAMEWORK, Question, ask

DRAWS = 400
SAID_EVERY = 100  # draws
AT_ONCE = 25  # draws that one process makes
NOTHING = Note(
    "nothing-to-predict",
    "An outlook needs cells on one node, and cells on several nodes whose network was swept at two message sizes or more.",
)
EMULATED = Note(
    "emulated", "Emulated nodes have no outlook, because they share the loopback of one machine and no network."
)
INSTEAD = Note(
    "what-to-do",
    "Give numbers instead (`./ringside predict --help` explains them), or measure the study at a site whose nodes have a network.",
)
TITLE = "How many nodes are worth it, by the rate of the links"
GIGABIT = 1e9 / 8


def table(rows: pd.DataFrame, notes: Sequence[str]) -> tables.Table:
    """The table of `answers`."""
    named = [name for name in FACTORS if name != "device" or rows[name].nunique() > 1]
    shown: dict[str, Any] = {title(name): rows[name].map(str) for name in named}
    shown["links"] = rows["rate"].map(rate_text)
    for level in LEVELS:
        shown[f"nodes at {100 * level:.0f} % efficiency"] = _shown(rows, f"nodes_at_{100 * level:.0f}")
    shown["greatest speed-up"] = _shown(rows, "greatest_speedup")
    shown["on nodes"] = rows["at_nodes"].map(lambda nodes: f"{nodes:.0f}")
    firsts = rows.index[(rows[FACTORS] != rows[FACTORS].shift()).any(axis=1)].tolist()
    words = [title(name) for name in named if name != "batch_size"]
    return tables.Table(TITLE, rows, pd.DataFrame(shown), list(notes), words, firsts[1:])


def _shown(rows: pd.DataFrame, name: str) -> list[str]:
    whole = name.startswith("nodes")

    def text(value: float, most: float) -> str:
        if whole:
            return f"≥{most:.0f}" if value >= most else f"{value:.0f}"
        return tables.number(value)

    texts = []
    for row in rows.to_dict("records"):
        said = text(row[name], row["most_nodes"])
        if f"{name}_low" in row:
            low, high = (text(row[f"{name}_{end}"], row["most_nodes"]) for end in ("low", "high"))
            said += f" [{low}, {high}]"
        texts.append(said)
    return texts


@dataclass(frozen=True)
class Study:
    """Runs, `prepared` cells and `law.points` of a study, and the model fitted to them."""

    runs: pd.DataFrame
    cells: pd.DataFrame
    sweeps: pd.DataFrame
    fitted: Physics


def by_study(folder: Path) -> Study:
    """The study whose records are in `folder`."""
    return load_records(folder / "runs.csv", folder / "network.csv")


def load_records(runs_csv: Path, network_csv: Path) -> Study:
    """Return the study of these runs and sweeps, with the model fitted to them."""
    runs = read_timed(runs_csv)
    cells, sweeps = physics.prepared(runs), law.points(read_table(network_csv, "network"))
    return Study(runs, cells, sweeps, anywhere(physics.fit(cells, sweeps)))


def by_numbers(args: Question, network: Physics | None) -> tuple[Physics, pd.DataFrame]:
    """The model and its one case as the command line gives them; on the network of a study where one is given."""
    swept = sorted({name for name, _ in network.laws}) if network else []
    framework = args.framework or (swept[0] if len(swept) == 1 else DEFAULT_FRAMEWORK)
    if network and framework not in swept:
        problem, expected = f"'{framework}' was not swept", swept or "none"
        raise InputError("unknown-name", problem, file="--framework", got=framework, expected=expected)
    gradients, names = _gradients(args)
    carrier = next((one for one in (network.laws if network else {}) if one[0] == framework), (framework, "site"))
    own = Law(args.algorithm, law.PIPELINED, 0.0, 2 * args.latency, 1 / args.share, 0.0)
    # each is one of the two passes of an all-reduce
    shards = {name: replace(own, step_s=args.latency, collective=name) for name in exchange.SHARDS}
    computation: dict[Levels, np.ndarray] = {
        (framework,): np.array([0.0, cast(float, args.step_time) / args.batch_size, 0.0])
    }
    made = Physics(
        (),
        computation,
        computation,
        {names: gradients},
        {carrier: network.laws[carrier] if network else {ALL_REDUCE: own, **shards}},
        {carrier: network.hidden[carrier] if network else args.hidden},
        {carrier: network.scatter[carrier] if network else args.scatter},
    )
    levels = {"framework": framework, "device": carrier[1], "base": framework, "model": names[0], "dataset": names[1]}
    counted = {"batch_size": args.batch_size, "sync_every": args.sync_every, "samples": args.samples}
    fixed = {"batch_scope": "local", "training_loop": "custom", "nodes": 1.0, "rate": np.nan, "is_mesh": False}
    return made, pd.DataFrame([levels | counted | fixed])


def _gradients(args: Question) -> tuple[exchange.Tensors, tuple[str, str]]:
    if args.model is not None:
        if args.model not in model_names():
            problem, known = f"'{args.model}' is unknown", model_names()
            raise InputError("unknown-name", problem, file="--model", got=args.model, **alternatives(args.model, known))
        load_dataset(args.dataset, "--dataset")
        try:
            return exchange.tensors(model_graph(args.model, args.dataset)), (args.model, args.dataset)
        except ValueError as error:
            problem, hint = f"{args.model} for {args.dataset}: {error}", "name another --dataset, or model"
            raise InputError("conflicting-keys", problem, file="--model", got=args.model, hint=hint) from None
    size = args.gradient_bytes or BYTES * cast(float, args.parameters)
    return exchange.whole(size), (f"{size / 1e6:g} MB of gradients", "any")


@dataclass(frozen=True)
class Answer:
    """What is asked, answered: the curves over nodes and the rows of the table (`extrapolate.curves`, `answers`), and what they stand on."""

    curves: pd.DataFrame
    rows: pd.DataFrame
    notes: list[str]

    @property
    def table(self) -> tables.Table:
        """As a table."""
        return table(self.rows, self.notes)


def answer(args: Question, study: Study | None = None) -> Answer:
    """Answer a question (prediction.question) of `study`, or of the one that it names."""
    study = by_study(args.study) if args.study and study is None else study
    if study and args.step_time is None:
        made, asked = study.fitted, cases(study.cells)
    else:
        made, asked = by_numbers(args, study.fitted if study else None)
    if study and conditions.is_emulated(study.runs):
        asked = asked[:0]
    drawn = answerable(
        curves(made, hypothetical(asked, [GIGABIT * rate for rate in dict.fromkeys(args.rate)], args.nodes))
    )
    rows = answers(drawn)
    if study and args.step_time is None and len(rows):
        drawn, rows = with_bands(drawn, rows, _redrawn(study, drawn))
    if rows.empty:
        notes = _unanswerable(study)
    else:
        notes = [_unanswered(asked, rows), *_notes(), *(_of_study(study, args) if study else _of_numbers(args))]
    return Answer(drawn, rows, [note for note in notes if note])


def written(drawn: pd.DataFrame) -> pd.DataFrame:
    """What outlook_curves.csv has of `extrapolate.curves`."""
    bands = [name for name in drawn if name.startswith(tuple(BANDS))]
    return drawn[[*FACTORS, "rate", "nodes", "epoch_time_s", *bands]]


def main(*, runs: Path, network: Path, out: Path) -> None:
    """Write the table of a study, and what its figure shows as numbers.

    Args:
        runs: runs.csv of the study
        network: network.csv of the study
        out: files of the table to write, without their suffix; the curves lie beside it
    """
    found = answer(ask(from_=runs.parent), load_records(runs, network))
    tables.write(found.table, out)
    tables.write_csv(written(found.curves), out.with_name(f"{out.name}_curves.csv"))


def _redrawn(study: Study, drawn: pd.DataFrame) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """BANDS and `answers` by DRAWS models of the bootstrap, on all cores; up to minutes, so that it is said how far they are."""
    streams = np.random.default_rng(DRAWS).spawn(DRAWS)
    parts = [streams[first : first + AT_ONCE] for first in range(0, DRAWS, AT_ONCE)]
    made: list[tuple[pd.DataFrame, pd.DataFrame]] = []
    with all_cores() as pool:
        for part in pool.map(_refitted, repeat(replace(study, runs=study.runs[:0])), repeat(drawn), parts):
            made += part
            if len(made) % SAID_EVERY == 0 or len(made) == DRAWS:
                print(f"intervals: {len(made)} of {DRAWS} refits are done", file=sys.stderr, flush=True)
    return made


def _refitted(
    study: Study, drawn: pd.DataFrame, streams: Sequence[np.random.Generator]
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """The same for a model of each of these streams of random numbers."""
    again = (curves(redrawn(study.cells, study.sweeps, study.fitted, rng), drawn) for rng in streams)
    return [(one[BANDS], answers(one)) for one in again]


def _unanswerable(study: Study | None) -> list[str]:
    """Why there is no answer at all, in the first sentence."""
    if study is None:
        return [NOTHING]
    if successful(study.runs).empty:
        return [conditions.run_counts_note(study.runs), conditions.setting_note(study.runs)]
    why = [EMULATED, INSTEAD] if conditions.is_emulated(study.runs) else [NOTHING, physics.uncounted(study.runs)]
    return [*why, conditions.setting_note(study.runs)]


def _unanswered(asked: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Which frameworks have no answer, if any."""
    without = sorted(set(asked["framework"]) - set(rows["framework"]))
    text = f"Not answered, because the network was not swept at two message sizes: {conditions.join_names(without)}."
    return Note("not-answered", text, frameworks=without) if without else ""


def _notes() -> list[str]:
    return [
        Note(
            "extrapolated",
            "Extrapolated by the physical model of the table of predictions. Efficiency is speed-up divided by nodes; the base is the same "
            "model on one node with the same local batch. A node has one replica, and there are at most as many nodes as batches in an "
            "epoch. The columns of nodes have the largest number of nodes up to which efficiency stays at that level.",
        )
    ]


def _of_numbers(args: Question) -> list[str]:
    text = (
        f"Nothing here was measured: a step of {args.step_time:g} s with {args.batch_size} samples, {args.samples} samples "
        f"an epoch, an exchange every {_batches(args.sync_every)}; messages of {args.framework or DEFAULT_FRAMEWORK} on a {args.algorithm}, "
        f"{args.latency:g} s to the next node at every rate, {100 * args.share:g} % of the link's rate; hidden share "
        f"{args.hidden:g}, scatter {args.scatter:g}."
    )
    named = ("step_time", "batch_size", "samples", "sync_every", "algorithm", "latency", "share", "hidden", "scatter")
    return [Note("not-measured", text, **{name: getattr(args, name) for name in named})]


def _of_study(study: Study, args: Question) -> list[str]:
    """What the answer stands on, and what is assumed."""
    rates = [rate_text(rate) for rate in sorted(study.sweeps["link_bytes_s"].unique())]
    nodes = ", ".join(f"{count:g}" for count in sorted(study.sweeps["nodes"].unique()))
    networks = [laws[ALL_REDUCE] for laws in study.fitted.laws.values()]
    ways = " or ".join(sorted({network.algorithm for network in networks})) or "ring"
    link = (
        "falls in proportion to its rate"
        if study.sweeps["link_bytes_s"].notna().any()
        else "is that of its whole rate at least"
    )
    hidden_cost = not any(network.cost_s for network in networks)
    text = (
        f"The network was swept on {nodes} nodes with links of {', '.join(rates)}. Assumptions beyond: the "
        f"latency of a step of the {ways} is the same at every rate, and time on the link {link}"
        + (
            "; the cost of a byte on the processors was hidden by the link or cannot be separated from it. It is left out, so "
            "faster links look better than they are."
            if hidden_cost
            else "."
        )
    )
    swept = {name: sorted(study.sweeps[name].dropna().unique()) for name in ("nodes", "link_bytes_s")}
    said: list[str] = [Note("swept", text, **swept, cost_left_out=hidden_cost)]
    if args.step_time is None:
        alone = _swept_at_one_place(study)
        text = (
            f"Brackets have 95 % intervals of a parametric bootstrap ({DRAWS} refits of model and law to cells and sweeps drawn "
            "again with their noise). They do not include what the model leaves out." + _certain_network(study, alone)
        )
        said.append(Note("intervals", text, refits=DRAWS, swept_at_one_place=alone))
    else:
        text = (
            f"A step of {args.step_time:g} s with {args.batch_size} samples is given, not measured here; so are "
            f"{args.samples} samples an epoch and an exchange every {_batches(args.sync_every)}."
        )
        said.append(Note("step-given", text, step_time=args.step_time, batch_size=args.batch_size))
    if "virtual" in set(study.runs["placement"].dropna()):
        shares = sorted(study.runs["cpu_share"].dropna().unique())
        cores = ", ".join(f"{share:g}" for share in shares)
        text = (
            f"The measured nodes had {cores or 'a part of a'} core each, of a virtual cluster: on whole machines computation "
            "is faster, so the same link matters more."
        )
        said.append(Note("virtual-nodes", text, cores=shares))
    return [*said, physics.uncounted(study.runs), physics.of_unlike(study.runs), conditions.setting_note(study.runs)]


def _swept_at_one_place(study: Study) -> list[str]:
    """The frameworks whose sweeps cannot say how far the law is off."""
    known = {name for name, laws in study.fitted.laws.items() if np.isfinite(laws[ALL_REDUCE].misfit)}
    return sorted(name for name, _ in set(study.fitted.laws) - known)


def _certain_network(study: Study, alone: Sequence[str]) -> str:
    """What intervals lack where frameworks were swept at one place `alone`; with a space before it."""
    if not alone:
        return ""
    rounds = study.sweeps["error"].notna().any()
    what = (
        "no uncertainty of the network except the differences between rounds"
        if rounds
        else "no uncertainty of the network"
    )
    return f" Swept at one number of nodes and one rate ({conditions.join_names(alone)}), the intervals include {what}."


def _batches(count: int) -> str:
    return "batch" if count == 1 else f"{count} batches"


if __name__ == "__main__":
    sys.exit(run_program(main))
