"""How many nodes are worth it: speed-up and efficiency over nodes at link rates that were not measured; table and figure.

From a study (--from results/<study>: its computation, its law of the network, what is hidden, the waiting, with intervals
of a parametric bootstrap), or from numbers alone, which needs no campaign: a model's size, the time of a step on one
device, the network. Both may be mixed: --from with --step-time puts another model on the study's network.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, tables
from analysis.measured import levels_in_order, title, treatments
from common.errors import InputError, exit_status
from common.files import write_text
from common.tables import read_table
from figures import outlook as figure
from figures import style
from models.graph import BYTES
from plan.study import load_dataset, model_graph, model_names
from prediction import exchange, law, physics
from prediction.law import Law, rate_text
from prediction.physics import Physics

RATES = (1.0, 10.0, 25.0, 100.0)  # Gbit/s
MOST_NODES = 1024
DRAWS = 100
LEVELS = (0.8, 0.5)
TITLE = "How many nodes are worth it, by the rate of the links"
FACTORS = ["framework", "model", "dataset", "batch_size"]
GIGABIT = 1e9 / 8


def counts(most: int) -> np.ndarray:
    """Numbers of nodes from 1 to `most`, every one up to 16 and then ever fewer."""
    return np.unique(np.r_[1:17, np.geomspace(16, max(most, 16), 49).round(), most]).astype(int).clip(max=most)


def hypothetical(cases: pd.DataFrame, rates: Sequence[float], most: int) -> pd.DataFrame:
    """`prepared`-like cells of every case (a one-replica cell, with `samples`) on all numbers of nodes, at all rates (bytes/s).

    A node has one replica. There are no more nodes than batches in the data set.
    """
    cells = cases.drop(columns=["nodes", "rate"]).merge(pd.DataFrame({"nodes": counts(most)}), how="cross")
    cells = cells.merge(pd.DataFrame({"rate": list(rates)}), how="cross")
    nodes = cells["nodes"].astype(float)
    local = cells["batch_size"] / nodes.where(cells["batch_scope"] == "global", 1.0)
    steps = cells["samples"] / (nodes * local)
    counted = {"ranks": nodes, "replicas": nodes, "nodes": nodes, "local_batch": local, "steps": steps}
    made = cells.assign(**counted, exchanges=steps / cells["sync_every"])
    return made[(steps >= 1) & (local >= 1)].reset_index(drop=True)


def cases(cells: pd.DataFrame) -> pd.DataFrame:
    """The study's combinations of FACTORS that have cells on several nodes, at the base level of every treatment."""
    several = cells[cells["replicas"] > 1]
    for name in treatments(cells):
        several = several[several[name] == levels_in_order(cells, name)[0]]
    return several.drop_duplicates(FACTORS).sort_values(FACTORS).reset_index(drop=True)


def curves(made: Physics, cells: pd.DataFrame) -> pd.DataFrame:
    """`hypothetical` cells with epoch_time_s, speedup and efficiency; the base is the same model on one node."""
    seconds = pd.Series(made.predict(cells), index=cells.index)
    base = seconds.where(cells["nodes"] == 1).groupby([cells[name] for name in [*FACTORS, "rate"]]).transform("max")
    return cells.assign(epoch_time_s=seconds, speedup=base / seconds, efficiency=base / seconds / cells["nodes"])


def last_above(nodes: np.ndarray, efficiency: np.ndarray, level: float) -> float:
    """The largest number of nodes up to which efficiency stays at `level` or above; infinite where it always does."""
    below = np.flatnonzero(efficiency < level)
    if not len(below):
        return np.inf
    right = int(below[0])
    if right == 0:
        return 0.0
    share = (efficiency[right - 1] - level) / (efficiency[right - 1] - efficiency[right])
    between = np.log(nodes[right - 1]) + share * (np.log(nodes[right]) - np.log(nodes[right - 1]))
    return float(min(np.floor(np.exp(between) + 1e-9), nodes[right] - 1))


def answers(drawn: pd.DataFrame) -> pd.DataFrame:
    """A row per case and rate: the last number of nodes above every level of efficiency, the greatest speed-up and its nodes."""
    rows = []
    for names, curve in drawn.groupby([*FACTORS, "rate"], sort=False):
        nodes, efficiency = curve["nodes"].to_numpy(), curve["efficiency"].to_numpy()
        best = int(np.argmax(curve["speedup"].to_numpy()))
        found = {f"nodes_at_{100 * level:.0f}": last_above(nodes, efficiency, level) for level in LEVELS}
        greatest = {"greatest_speedup": curve["speedup"].iloc[best], "at_nodes": nodes[best], "most_nodes": nodes[-1]}
        rows.append({**dict(zip([*FACTORS, "rate"], names, strict=True)), **found, **greatest})
    return pd.DataFrame(rows)


def redrawn(cells: pd.DataFrame, sweeps: pd.DataFrame, made: Physics, rng: np.random.Generator) -> Physics:
    """The model fitted to cells and sweeps drawn anew around what was measured: log-normal, with the noise that they have.

    Of cells the pooled coefficient of variation of a mean; of sweeps the misfit of the law.
    """
    more = cells[cells["n"] > 1]
    cv = (
        float(np.sqrt(np.average((more["sd"] / more["epoch_time_s"]) ** 2, weights=more["n"] - 1)))
        if len(more)
        else 0.0
    )
    times = cells["epoch_time_s"] * np.exp(cv / np.sqrt(cells["n"].to_numpy(float)) * rng.standard_normal(len(cells)))
    misfit = sweeps["framework"].map(lambda name: made.laws[name].misfit if name in made.laws else 0.0).to_numpy(float)
    seconds = sweeps["seconds"] * np.exp(misfit * rng.standard_normal(len(sweeps)))
    return physics.fit(cells.assign(epoch_time_s=times), sweeps.assign(seconds=seconds))


def with_bands(drawn: pd.DataFrame, rows: pd.DataFrame, draws: Sequence[Physics]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both with columns <name>_low and <name>_high: the 2.5 and 97.5 % quantiles over the models `draws`."""
    again = [curves(made, drawn) for made in draws]
    found = [answers(one) for one in again]
    for frame, name, many in [
        *((drawn, name, again) for name in ("speedup", "efficiency")),
        *((rows, name, found) for name in rows.columns if name.startswith(("nodes_at", "greatest"))),
    ]:
        values = np.array([one[name].to_numpy(float) for one in many])
        frame[f"{name}_low"], frame[f"{name}_high"] = np.quantile(values, [0.025, 0.975], axis=0, method="nearest")
    return drawn, rows


def table(rows: pd.DataFrame, notes: Sequence[str]) -> tables.Table:
    """The table of `answers`."""
    shown: dict[str, Any] = {title(name): rows[name].map(str) for name in FACTORS}
    shown["links"] = rows["rate"].map(rate_text)
    for level in LEVELS:
        shown[f"nodes at {100 * level:.0f} % efficiency"] = _shown(rows, f"nodes_at_{100 * level:.0f}")
    shown["greatest speed-up"] = _shown(rows, "greatest_speedup")
    shown["on nodes"] = rows["at_nodes"].map(lambda nodes: f"{nodes:.0f}")
    firsts = rows.index[(rows[FACTORS] != rows[FACTORS].shift()).any(axis=1)].tolist()
    words = [title(name) for name in FACTORS[:3]]
    return tables.Table(TITLE, rows, pd.DataFrame(shown), [note for note in notes if note], words, firsts[1:])


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


def by_study(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Runs, `prepared` cells and `law.points` of the study whose records are in `folder`."""
    runs = read_table(folder / "runs.csv", "runs")
    return runs, physics.prepared(runs), law.points(read_table(folder / "network.csv", "network"))


def by_numbers(args: argparse.Namespace, network: Physics | None) -> tuple[Physics, pd.DataFrame]:
    """The model and its one case as the command line gives them; on the network of a study where one is given."""
    framework = args.framework
    if network and framework not in network.laws:
        raise InputError(
            f"--framework: '{framework}' was not swept; expected one of {', '.join(network.laws) or 'none'}"
        )
    gradients, names = _gradients(args)
    own = Law(args.algorithm, True, 0.0, 2 * args.latency, 1 / args.share, 0.0)
    made = Physics(
        (),
        {(framework,): np.array([0.0, args.step_time / args.batch_size, 0.0])},
        {names: gradients},
        {framework: network.laws[framework] if network else own},
        {framework: network.hidden[framework] if network else args.hidden},
        {framework: network.scatter[framework] if network else args.scatter},
    )
    levels = dict(zip(("model", "dataset"), names, strict=True)) | {"framework": framework, "base": framework}
    counted = {"batch_size": args.batch_size, "sync_every": args.sync_every, "samples": args.samples}
    fixed = {"batch_scope": "local", "training_loop": "custom", "nodes": 1.0, "rate": np.nan}
    return made, pd.DataFrame([levels | counted | fixed])


def _gradients(args: argparse.Namespace) -> tuple[exchange.Tensors, tuple[str, str]]:
    if args.model:
        if args.model not in model_names():
            raise InputError(f"--model: '{args.model}' is unknown; expected one of {', '.join(model_names())}")
        load_dataset(args.dataset, "--dataset")
        try:
            return exchange.tensors(model_graph(args.model, args.dataset)), (args.model, args.dataset)
        except ValueError as error:
            raise InputError(f"--model: {args.model} for {args.dataset}: {error}") from None
    size = args.gradient_bytes or BYTES * args.parameters
    return exchange.whole(size), (f"{size / 1e6:g} MB of gradients", "any")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prediction.outlook", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    positive, share = _number(0, np.inf), _number(0, 1)
    parser.add_argument(
        "--from", dest="study", type=Path, metavar="FOLDER", help="results/<study>, or a folder of docs/campaigns/"
    )
    model = parser.add_argument_group("a model that was not measured")
    model.add_argument("--step-time", type=positive, metavar="S", help="seconds of a training step on one device")
    model.add_argument("--batch-size", type=int, default=32, metavar="N", help="samples of that step (default 32)")
    model.add_argument(
        "--samples", type=int, default=1281167, metavar="N", help="samples of an epoch (default: ImageNet's)"
    )
    model.add_argument("--model", help="a model of make models; with --dataset, which gives its images and classes")
    model.add_argument("--dataset", default="synthetic-224x224x3-1000", help="default: %(default)s")
    model.add_argument(
        "--parameters", type=_number(0, np.inf), metavar="N", help="instead of --model: parameters of 4 bytes"
    )
    model.add_argument(
        "--gradient-bytes", type=positive, metavar="N", help="instead of --model: bytes that are exchanged"
    )
    model.add_argument("--sync-every", type=int, default=1, metavar="K", help="batches per exchange (default 1)")
    network = parser.add_argument_group("the network; with --from all but the rates are the study's")
    network.add_argument(
        "--rate", type=positive, nargs="+", default=RATES, metavar="G", help="links, Gbit/s (default 1 10 25 100)"
    )
    network.add_argument(
        "--latency", type=positive, default=30e-6, metavar="S", help="of a message to the next node (default 30e-6)"
    )
    network.add_argument(
        "--share", type=share, default=0.9, help="of the link's rate that all-reduce reaches (default 0.9)"
    )
    network.add_argument(
        "--algorithm", choices=law.GROWTH, default="ring", help="how latency grows with nodes (default ring)"
    )
    network.add_argument(
        "--framework", choices=exchange.RULES, default="pytorch-ddp", help="whose messages (default pytorch-ddp)"
    )
    network.add_argument(
        "--hidden",
        type=_number(-1e-12, 1),
        default=0.0,
        help="share of the backward pass that hides messages (default 0)",
    )
    network.add_argument(
        "--scatter", type=_number(-1e-12, np.inf), default=0.0, help="s.d. of a batch's time over itself (default 0)"
    )
    parser.add_argument(
        "--nodes", type=int, default=MOST_NODES, metavar="N", help="the largest number of nodes (default 1024)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="STEM", help="where to write the table; default: it is printed alone"
    )
    parser.add_argument("--figure", type=Path, metavar="STEM", help="where to draw the figure; default: --out")
    return parser


def _number(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not least < value <= most or np.isinf(value):
            raise argparse.ArgumentTypeError(
                f"{text} is not above {max(least, 0):g}" + (f" and at most {most:g}" if most < np.inf else "")
            )
        return value

    return number


def _checked(args: argparse.Namespace) -> None:
    """InputError where the numbers do not make a question."""
    sizes = [name for name in ("model", "parameters", "gradient_bytes") if getattr(args, name)]
    if args.step_time is None and (sizes or not args.study):
        raise InputError("--step-time is missing: seconds of a training step on one device; or take a study by --from")
    if args.step_time is not None and len(sizes) != 1:
        raise InputError("give one of --model, --parameters and --gradient-bytes: what an exchange carries")
    for name in ("batch_size", "samples", "sync_every", "nodes"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')}: {getattr(args, name)} is too small; expected at least 1")


def main(argv: list[str] | None = None) -> None:
    """Answer, as a table and a figure."""
    args = _parser().parse_args(argv)
    _checked(args)
    runs, cells, sweeps = by_study(args.study) if args.study else (None, None, None)
    measured = physics.fit(cells, sweeps) if args.study else None
    if args.step_time is None:
        made, asked = measured, cases(cells)
    else:
        made, asked = by_numbers(args, measured)
    grid = hypothetical(asked, [GIGABIT * rate for rate in args.rate], args.nodes)
    drawn = curves(made, grid)
    drawn = drawn[drawn["speedup"].notna()].reset_index(drop=True)
    rows = answers(drawn)
    if len(rows) and args.step_time is None:
        rng = np.random.default_rng(DRAWS)
        drawn, rows = with_bands(drawn, rows, [redrawn(cells, sweeps, made, rng) for _ in range(DRAWS)])
    notes = _notes(args, runs, sweeps, made)
    answered = table(rows, notes)
    if args.out:
        tables.write(answered, args.out)
    else:
        print(tables.markdown(answered))
    if stem := args.figure or args.out:
        picture, caption = figure.draw(drawn, rows, notes)
        style.save(picture, stem)
        write_text(stem.with_name(f"{stem.name}.caption.md"), caption + "\n")


def _notes(
    args: argparse.Namespace, runs: pd.DataFrame | None, sweeps: pd.DataFrame | None, made: Physics
) -> list[str]:
    """What the answer stands on, and what is assumed."""
    said = [
        "Extrapolated by the physical model of the table of predictions; efficiency is speed-up over nodes, the base the same "
        "model on one node at the same local batch, with one replica a node, and no more nodes than batches in an epoch. In a column of nodes: the largest number up to "
        "which efficiency stays at that level.",
    ]
    if runs is None:
        said.append(
            f"Nothing here was measured: a step of {args.step_time:g} s with {args.batch_size} samples, {args.samples} samples "
            f"an epoch, an exchange every {args.sync_every} batches; messages of {args.framework} on a {args.algorithm}, "
            f"{args.latency:g} s to the next node at every rate, {100 * args.share:g} % of the link's rate; hidden share "
            f"{args.hidden:g}, σ = {args.scatter:g}."
        )
        return said
    rates = [rate_text(rate) for rate in sorted(sweeps["link_bytes_s"].dropna().unique())]
    swept = sorted(sweeps["nodes"].unique())
    said.append(
        f"The network was swept on {', '.join(f'{count:g}' for count in swept)} nodes with links of "
        f"{', '.join(rates) or 'a rate that is not known'}. Assumed beyond: latency per step of the {_algorithms(made)} and the "
        "processors' cost of a byte stay what they were, time on the link falls with its rate"
        + (
            "; with one rate measured all of a byte's time is taken for the link's, which flatters faster links."
            if len(rates) == 1
            else "."
        )
    )
    if args.step_time is None:
        said.append(
            f"In brackets 95 % intervals of a parametric bootstrap ({DRAWS} refits of model and law to cells and sweeps drawn "
            "anew with their noise): they say nothing of what the model leaves out."
        )
    else:
        said.append(f"A step of {args.step_time:g} s with {args.batch_size} samples is given, not measured here.")
    if "virtual" in set(runs["placement"].dropna()):
        cores = ", ".join(f"{share:g}" for share in sorted(runs["cpu_share"].dropna().unique()))
        said.append(
            f"Computation and the cost of messages are those of {cores or 'a part of a'} core of a virtual cluster: on whole "
            "machines both are faster, and the same link would matter more."
        )
    return [*said, conditions.circumstances(runs)]


def _algorithms(made: Physics) -> str:
    return " or ".join(sorted({network.algorithm for network in made.laws.values()})) or "ring"


if __name__ == "__main__":
    sys.exit(exit_status(main))
