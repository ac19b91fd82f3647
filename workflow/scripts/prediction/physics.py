"""The physical model: epoch time from computation on one replica, gradient all-reduces, and waiting.

    T = S c(b) + X u + X exposed + X sqrt(S / X) c(b) sigma E(p) + S extra

S batches and X all-reduces an epoch; c(b) = alpha + beta b is the computation of a batch of b samples and u
that of an update, both from runs on one replica. `exposed` is communication that outlasts the backward pass
(prediction.communication), by a law of the collective benchmark (prediction.law). The fourth term is waiting
for the slowest of p ranks: if the time of a batch has a standard deviation of sigma c, the S / X batches
before an all-reduce have sqrt(S / X) times as much, and the largest of p normal numbers is expected E(p)
standard deviations above their mean. `extra`: see communication.Rule.

prediction.strategies has computation and messages with model parallelism. Where a tensor axis or a pipeline
makes ranks wait in every batch, S replaces X in the waiting term.

Up to three numbers are fitted to runs on several nodes, for each framework and device: the share of the
backward pass that overlaps messages (hidden), sigma (scatter), and the library's additional time for each
message within layers (dispatch). A number is used only if it improves cross-validated error. If all cells
have the same number of ranks and accumulation steps, overlap and waiting are both proportional to
computation, with opposite signs, so that at most one of them is fitted.
"""

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from scipy.integrate import quad
from scipy.optimize import least_squares, nnls
from scipy.special import ndtr

from analysis import conditions
from analysis.adjusted import adjusted_times
from analysis.measured import factors, scaled, successful
from common.errors import InputError
from common.notes import Note
from declared.factors import OF_STRATEGIES
from declared.frameworks import has_strategies
from declared.mesh import NOT_MESHES, PLAIN, divides_more, mesh_of
from declared.models import model_graph
from models.collectives import ALL_REDUCE, COLLECTIVES
from models.graph import Graph
from prediction import communication, law, strategies
from prediction.communication import Tensors
from prediction.law import Law

# Factors that change the number of batches and all-reduces, or their network, but not the computation of
# each.
NOT_COMPUTATION = (
    "framework", "nodes", "devices_per_node", "batch_size", "sync_every", "batch_scope", "bandwidth",
    "epochs", "warmup_epochs", "shares", "lr_scaling", "lr_warmup_epochs", "learning_rate",
)  # fmt: skip
STRATEGY_FACTORS = ("parallelism", *OF_STRATEGIES)  # prediction.strategies predicts their cost
COUNT_COLUMNS = ["nodes", "ranks", "replicas", "sync_every"]
MEASURE_COLUMNS = ["local_batch", "steps", "n_allreduces", "rate", "samples"]
COMPUTATION_COLUMNS = ["steps", "n_allreduces", "local_batch", "epoch_time_s"]
PART_COLUMNS = ["nodes", "ranks", "rate", "steps", "n_allreduces", "training_loop"]
TERMS = ("hidden", "scatter", "dispatch")
CONFOUNDED = {"hidden", "scatter"}  # with equal ranks and accumulation steps in all cells
LIMITS = np.array([[0.0, 0.0, 0.0], [1.0, 5.0, 0.1]])


def measured_cells(runs: pd.DataFrame, include_meshes: bool = False) -> pd.DataFrame:
    """Return a row for each measured cell.

    Columns: factors, COUNT_COLUMNS, MEASURE_COLUMNS (rate in bytes/s, NaN: unknown), epoch_time_s, n, sd,
    `is_mesh` (model parallelism) and `computes` (`lbann_layout`). Epoch times are adjusted for machine speed
    like means in tables (`analysis.adjusted`); batches and all-reduces are scaled to the data set's samples
    like epoch times.

    Args:
        runs: runs.csv of the study. Runs with uncounted batches, or with a strategy per layer, are left out.
        include_meshes: Include cells with model parallelism.
    """
    ok = successful(runs)
    ok = ok.assign(epoch_time_s=adjusted_times(runs).reindex(ok.index))
    ok = ok[~has_strategy(ok)]
    has_mesh = is_mesh(ok)
    ok = ok.assign(is_mesh=has_mesh, computes=lbann_layout(ok))
    ok = ok if include_meshes else ok[~has_mesh]
    ok = ok.assign(rate=ok["bandwidth_bytes_s"].astype(float), samples=ok["samples_per_epoch"].astype(float))
    ok = ok.assign(steps=scaled(ok, "steps"), n_allreduces=scaled(ok, "n_allreduces"))
    by_cell = ok.groupby("cell", sort=False)
    level_columns = [name for name in [*factors(), "baseline"] if name not in COUNT_COLUMNS]
    cells = by_cell[[*level_columns, *COUNT_COLUMNS, *MEASURE_COLUMNS, "is_mesh", "computes"]].first()
    times = by_cell["epoch_time_s"]
    cells = cells.assign(epoch_time_s=times.mean(), n=times.size(), sd=times.std())
    if "bandwidth" in cells:  # the level "site" has no number
        cells["bandwidth"] = (8 * cells["rate"] / 1e6).fillna(cells["bandwidth"])
    cells = cells.dropna(subset=["steps", "n_allreduces"])
    kinds = dict.fromkeys(COUNT_COLUMNS, int) | dict.fromkeys(MEASURE_COLUMNS, float)
    return cells.astype(kinds).reset_index()


def pooled_cv(cells: pd.DataFrame, of_means: bool = False) -> float:
    """Return the coefficient of variation of runs, or of means, pooled over cells; NaN without replicates."""
    replicated = cells[cells["n"] > 1]
    if replicated.empty:
        return math.nan
    n, cv = replicated["n"].to_numpy(float), (replicated["sd"] / replicated["epoch_time_s"]).to_numpy(float)
    return float(np.sqrt(np.average(cv**2 / (n if of_means else 1), weights=n - 1)))


def planned_cells(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the planned cells on several nodes, run or not, as `measured_cells` without measurements."""
    cells = runs[(runs["nodes"] > 1) & ~has_strategy(runs)].drop_duplicates("cell").reset_index(drop=True)
    samples, batch = cells["samples_per_epoch"].astype(float), cells["local_batch"].astype(float)
    n_allreduces = samples / cells["effective_batch"].astype(float)
    counts = {
        "steps": n_allreduces * cells["sync_every"].astype(int),
        "n_allreduces": n_allreduces,
        "local_batch": batch,
    }
    description = {
        "rate": cells["bandwidth_bytes_s"].astype(float),
        "is_mesh": is_mesh(cells),
        "computes": lbann_layout(cells),
    }
    kinds = dict.fromkeys(COUNT_COLUMNS, int)
    return (
        cells[["cell", *factors(), "baseline", "ranks", "replicas"]]
        .assign(samples=samples, **counts, **description)
        .astype(kinds)
    )


def left_out_note(runs: pd.DataFrame, include_meshes: bool = False) -> str:
    """Return a note of the cells that the model cannot use, "" if there are none.

    These are cells with uncounted batches or all-reduces, with a strategy per layer, and, without
    `include_meshes`, with model parallelism.
    """
    counts = successful(runs).groupby("cell", sort=False)[["steps", "n_allreduces"]].count()
    uncounted = counts.index[(counts == 0).any(axis=1)].tolist()
    cells = {
        "batches or all-reduces were not counted": uncounted,
        "they use model parallelism": []
        if include_meshes
        else list(dict.fromkeys(runs.loc[is_mesh(runs), "cell"])),
        "their strategy partitions each layer separately, which is simulated, not predicted": list(
            dict.fromkeys(runs.loc[has_strategy(runs), "cell"])
        ),
    }
    if not any(cells.values()):
        return ""
    text = " ".join(
        f"Left out, because {cause}: {conditions.join_names(names)}."
        for cause, names in cells.items()
        if names
    )
    facts = dict(zip(("uncounted", "divided", "of_strategies"), cells.values(), strict=True))
    return Note("cells-left-out", text, **facts)


def lbann_layout(runs: pd.DataFrame) -> pd.Series:
    """Return LBANN's own layout of layers or data, which its computation depends on; PLAIN elsewhere."""
    return runs["parallelism"].where(runs["parallelism"].isin(NOT_MESHES), PLAIN)


def is_mesh(runs: pd.DataFrame) -> pd.Series:
    """Return which runs use model parallelism."""
    pairs = zip(runs["parallelism"], runs["ranks"], strict=True)
    return pd.Series(
        [divides_more(level, int(ranks)) for level, ranks in pairs], index=runs.index, dtype=bool
    )


def has_strategy(runs: pd.DataFrame) -> pd.Series:
    """Return which runs partition each layer separately, by a parallelization strategy."""
    return runs["framework"].map(has_strategies).astype(bool)


def heterogeneous_note(runs: pd.DataFrame) -> str:
    """Return a note that nodes or ranks are heterogeneous, which the model ignores, "" if they are not."""
    if runs["cpu_shares"].isna().all() and runs["rank_samples"].isna().all():
        return ""
    text = (
        "Nodes or ranks are heterogeneous, but this assumes that all are like the first one. The table "
        "hybrid does not."
    )
    return Note("heterogeneous", text)


@functools.cache
def expected_maximum(count: int) -> float:
    """Return the expected maximum of standard normal numbers (Harter, Biometrika 48, 1961, table 1)."""
    if count < 2:
        return 0.0
    return float(
        quad(lambda x: count * x * math.exp(-x * x / 2) * ndtr(x) ** (count - 1), -8, 12)[0]
        / math.sqrt(2 * math.pi)
    )


@functools.cache
def model_gradients(model: str, dataset: str) -> Tensors | None:
    """Return the gradients of a model for a data set; None for a model that Ringside does not describe."""
    graph = _load_graph(model, dataset)
    return communication.gradient_tensors(graph) if graph else None


Levels = tuple[object, ...]  # the framework, then the levels of `PhysicalModel.keys`
Carrier = tuple[str, str]  # framework and device, whose messages follow one law


def carriers(cells: pd.DataFrame) -> list[Carrier]:
    """Return the carrier of each cell, [cells]."""
    return list(zip(cells["framework"], cells["device"], strict=True))


@dataclass(frozen=True)
class PhysicalModel:
    """A fitted model.

    Attributes:
        keys: The factors that computation depends on, besides the framework.
        computation: alpha, beta and u of one replica, [3], by framework and levels of `keys`.
        divisible: The same for model parallelism (`_separate_update_cost`).
        gradients: The tensors of each model and data set.
        laws: The law of each benchmarked collective, for carriers with a benchmark of all-reduce.
        hidden: Share of the backward pass that overlaps messages, by carrier.
        scatter: Standard deviation of a batch's time relative to the time, by carrier.
        dispatch: Additional seconds for each message within layers, by carrier.
        single_allreduce: Predict one all-reduce of all gradients also for frameworks that shard.
    """

    keys: tuple[str, ...]
    computation: dict[Levels, np.ndarray]
    divisible: dict[Levels, np.ndarray]
    gradients: dict[tuple[str, str], Tensors]
    laws: dict[Carrier, dict[str, Law]]
    hidden: dict[Carrier, float] = field(default_factory=dict)
    scatter: dict[Carrier, float] = field(default_factory=dict)
    dispatch: dict[Carrier, float] = field(default_factory=dict)
    single_allreduce: bool = False

    def law(self, carrier: Carrier, collective: str = ALL_REDUCE) -> Law | None:
        """Return the law of a carrier's collective, or None if it was not benchmarked."""
        return self.laws.get(carrier, {}).get(collective)

    def shards(self, carrier: Carrier) -> list[Law]:
        """Return a carrier's laws of communication.SHARDS, [] unless both are sent and benchmarked."""
        laws = [law for name in communication.SHARDS if (law := self.law(carrier, name))]
        return (
            laws
            if communication.is_sharded(carrier[0])
            and not self.single_allreduce
            and len(laws) == len(communication.SHARDS)
            else []
        )

    def predict(self, cells: pd.DataFrame) -> np.ndarray:
        """Return epoch times of `measured_cells` in seconds, [cells]; NaN where a measurement is missing."""
        predicted = np.full(len(cells), np.nan)
        for place, part in self.parts(cells):
            predicted[place] = part.seconds(*self.terms(part.carrier))
        return predicted

    def terms(self, carrier: Carrier) -> tuple[float, ...]:
        """Return the fitted numbers of a carrier in the order of TERMS, 0 for those left out."""
        return tuple(values.get(carrier, 0.0) for values in (self.hidden, self.scatter, self.dispatch))

    def parts(self, cells: pd.DataFrame) -> Iterator[tuple[np.ndarray, "Part"]]:
        """Yield positions of predictable cells and their `Part`, for one carrier, model and data set each.

        Replicas that share one node are left out, because benchmarks do not measure messages within a node.
        """
        computed_s = self.computed(cells)
        has_mesh = cells["is_mesh"].to_numpy(bool)
        single, is_multi_node = (
            (cells["replicas"] == 1).to_numpy() & ~has_mesh,
            (cells["nodes"] > 1).to_numpy(),
        )
        columns = {name: cells[name].to_numpy() for name in PART_COLUMNS}
        for names, places in cells.groupby(["framework", "device", "model", "dataset"]).indices.items():
            carrier, model = names[:2], names[2:]
            alone, distributed = places[single[places]], places[(is_multi_node & ~has_mesh)[places]]
            if carrier in self.laws and model in self.gradients:
                yield from self._mesh_parts(carrier, cells, places[(is_multi_node & has_mesh)[places]])
            if len(alone):
                yield alone, Part(carrier, computed_s[alone].sum(axis=1))
            if len(distributed) and carrier in self.laws and model in self.gradients:
                part_columns = {name: values[distributed] for name, values in columns.items()}
                yield (
                    distributed,
                    self._multi_node_part(
                        carrier, part_columns, computed_s[distributed], self.gradients[model]
                    ),
                )

    def can_overlap(self, carrier: Carrier) -> bool:
        """Return whether messages can overlap computation, as far as they are known."""
        return communication.can_overlap(carrier[0]) and bool(
            self.shards(carrier) or not communication.is_sharded(carrier[0])
        )

    def _multi_node_part(
        self, carrier: Carrier, cells: Mapping[str, np.ndarray], computed_s: np.ndarray, gradients: Tensors
    ) -> "Part":
        rule, place = communication.message_rule(carrier[0]), (cells["nodes"], cells["ranks"], cells["rate"])
        steps, n_allreduces = cells["steps"], cells["n_allreduces"]
        batch_s = computed_s[:, 0] / steps
        backward_s = communication.BACKWARD_SHARE * batch_s
        allreduce, shards = (
            self.laws[carrier][ALL_REDUCE].at(*place),
            [exposed_s.at(*place) for exposed_s in self.shards(carrier)],
        )
        extra = np.array([rule.extra.get(loop, 0) for loop in cells["training_loop"]], float)
        extra_s = steps * extra * allreduce.seconds(np.full(len(steps), communication.NUMBER_BYTES))
        rank_counts, index = np.unique(cells["ranks"], return_inverse=True)
        slowest = np.array([expected_maximum(int(count)) for count in rank_counts])[index]

        def exposed(hidden: float) -> np.ndarray:
            if shards:
                gather, scatter = shards
                units = communication.join_units(gradients, rule.limits_bytes[1])
                exposed_s = communication.exposed_units_s(
                    units, gather, scatter, backward_s, hidden, steps / n_allreduces
                )
            else:
                exposed_s = communication.exposed_s(rule, gradients, allreduce, backward_s, hidden)
            return n_allreduces * exposed_s + extra_s

        return Part(
            carrier, computed_s.sum(axis=1), np.sqrt(steps * n_allreduces) * batch_s * slowest, exposed
        )

    def _mesh_parts(
        self, carrier: Carrier, cells: pd.DataFrame, places: np.ndarray
    ) -> Iterator[tuple[np.ndarray, "Part"]]:
        """Yield the cells at `places` whose messages were all benchmarked, each as a part of its own."""
        rule, coefficients = communication.message_rule(carrier[0]), self.coefficients(cells, self.divisible)
        for place in places:
            row = cells.iloc[place].to_dict()
            mesh, steps, n_allreduces = (
                mesh_of(row["parallelism"], row["ranks"]),
                row["steps"],
                row["n_allreduces"],
            )
            place_of_cell = strategies.Place(row["nodes"], row["ranks"], row["rate"])
            graph, batch = model_graph(row["model"], row["dataset"]), round(row["local_batch"])
            law_of = functools.partial(self.law, carrier)
            step = strategies.predict_step(
                graph, mesh, batch, row, coefficients[place], place_of_cell, law_of, rule.limits_bytes[1]
            )
            if step is None:
                continue
            batch_s, groups = step.computed_s / row["sync_every"], steps / row["sync_every"]
            waits = steps if mesh.tensor * mesh.pipeline > 1 else n_allreduces

            yield (
                np.array([place]),
                Part(
                    carrier,
                    np.array([groups * step.computed_s + n_allreduces * step.update_s]),
                    np.array([math.sqrt(steps * waits) * batch_s * expected_maximum(row["ranks"])]),
                    functools.partial(
                        _exposed_mesh_s, step, groups, n_allreduces, communication.BACKWARD_SHARE * batch_s
                    ),
                    groups * step.divided,
                ),
            )

    def computed(self, cells: pd.DataFrame) -> np.ndarray:
        """Return seconds of an epoch in batches and in updates, [cells, 2], by framework or baseline."""
        coefficients = self.coefficients(cells, self.computation)
        steps, n_allreduces, batch = (
            cells[name].to_numpy() for name in ("steps", "n_allreduces", "local_batch")
        )
        return np.column_stack(
            [steps * (coefficients[:, 0] + coefficients[:, 1] * batch), n_allreduces * coefficients[:, 2]]
        )

    def coefficients(self, cells: pd.DataFrame, costs: Mapping[Levels, np.ndarray]) -> np.ndarray:
        """Return alpha, beta and u of one replica, [cells, 3], of the framework or else of its baseline.

        Args:
            cells: Cells like `measured_cells`.
            costs: `computation` or `divisible`.
        """
        missing = np.full(3, np.nan)
        coefficients: np.ndarray = np.array(
            [
                costs.get((framework, *levels), costs.get((baseline, *levels), missing))
                for framework, baseline, *levels in cells[["framework", "baseline", *self.keys]].itertuples(
                    index=False, name=None
                )
            ]
        ).reshape(-1, 3)
        return coefficients


def _exposed_mesh_s(
    step: strategies.Step, groups: float, n_allreduces: float, backward_s: float, hidden: float
) -> float:
    """Return seconds of an epoch in messages that are not overlapped."""
    return groups * step.waited_s + n_allreduces * max(step.parameters_s - hidden * backward_s, 0.0)


@dataclass(frozen=True)
class Part:
    """Cells of one carrier, model and data set, [cells].

    Attributes:
        carrier: Framework and device.
        computed: Seconds of computation.
        waiting: Seconds of waiting for a scatter of 1.
        exposed: Seconds of exposed communication as a function of the overlapping share of the backward pass.
        divided: Number of messages within layers.
    """

    carrier: Carrier
    computed: np.ndarray
    waiting: np.ndarray | float = 0.0
    exposed: Callable[[float], np.ndarray | float] = lambda _: 0.0
    divided: float = 0.0

    def seconds(self, hidden: float, scatter: float, dispatch: float) -> np.ndarray:
        """Return epoch times for the fitted numbers in the order of TERMS."""
        return self.computed + self.exposed(hidden) + scatter * self.waiting + dispatch * self.divided


def base_model(cells: pd.DataFrame, benchmarks: pd.DataFrame) -> PhysicalModel:
    """Return the model from cells on one node and benchmarks, without overlap or waiting.

    Args:
        cells: Cells of `measured_cells`; those on several nodes say only which laws are needed.
        benchmarks: Points of `law.benchmark_points`.
    """
    costs = [*(name for name in factors() if name not in (*NOT_COMPUTATION, *STRATEGY_FACTORS)), "computes"]
    keys = tuple(name for name in costs if cells[name].nunique(dropna=False) > 1)
    single = cells[(cells["replicas"] == 1) & ~cells["is_mesh"]]
    replicas = {tuple(levels): group for levels, group in single.groupby(["framework", *keys], dropna=False)}
    computation = {levels: _fit_computation(group[COMPUTATION_COLUMNS]) for levels, group in replicas.items()}
    graphs = {levels: _load_graph(*group[["model", "dataset"]].iloc[0]) for levels, group in replicas.items()}
    divisible = _separate_update_cost(
        computation, graphs, [i for i, name in enumerate(keys, 1) if name in ("model", "dataset")]
    )
    names = cells[["model", "dataset"]].drop_duplicates().itertuples(index=False, name=None)
    gradients = {name: tensors for name in names if (tensors := model_gradients(*name))}
    laws: dict[Carrier, dict[str, Law]] = {}
    for carrier, group in cells[cells["nodes"] > 1].groupby(["framework", "device"]):
        trained = set(zip(group["model"], group["dataset"], strict=True)) & set(gradients)
        gradient_bytes = max((gradients[name].total_bytes for name in trained), default=math.inf)
        mesh_bytes = _largest_message_bytes(group[group["is_mesh"]])
        points = benchmarks[(benchmarks["framework"] == carrier[0]) & (benchmarks["device"] == carrier[1])]
        largest_bytes = dict.fromkeys(
            filter(set(points["collective"]).__contains__, COLLECTIVES), gradient_bytes
        )
        largest_bytes |= {name: max(size, largest_bytes.get(name, 0.0)) for name, size in mesh_bytes.items()}
        fits = {
            name: law.fit_law(points[points["collective"] == name], size)
            for name, size in largest_bytes.items()
        }
        carrier_laws = {name: network for name, network in fits.items() if network}
        if ALL_REDUCE in carrier_laws:
            laws[carrier] = carrier_laws
    return PhysicalModel(keys, computation, divisible, gradients, laws)


def _largest_message_bytes(meshes: pd.DataFrame) -> dict[str, float]:
    """Return the size of the largest message of each collective in these cells."""
    largest: dict[str, float] = {}
    for row in meshes.to_dict("records"):
        mesh, batch = mesh_of(row["parallelism"], row["ranks"]), round(row["local_batch"])
        for message in strategies.model_messages(row["model"], row["dataset"], mesh, batch, row):
            largest[message.kind] = max(largest.get(message.kind, 0.0), message.bytes)
    return largest


def fit_model(cells: pd.DataFrame, benchmarks: pd.DataFrame) -> PhysicalModel:
    """Return the model fitted to cells and benchmarks."""
    return fit_terms(base_model(cells, benchmarks), cells)


def fit_terms(model: PhysicalModel, cells: pd.DataFrame, terms: Sequence[str] = TERMS) -> PhysicalModel:
    """Return the model with the TERMS that improve each carrier's predictions of cells on several nodes."""
    predictable = cells[(cells["nodes"] > 1) & ~np.isnan(model.predict(cells))]
    by_carrier = predictable.groupby(["framework", "device"]).groups
    numbers_of_carrier = {}
    for carrier in model.laws:
        carrier_cells = predictable.loc[by_carrier.get(carrier, [])]
        parts = [
            (part, carrier_cells["epoch_time_s"].to_numpy()[place])
            for place, part in model.parts(carrier_cells)
        ]
        is_possible = {
            "hidden": model.can_overlap(carrier),
            "dispatch": any(part.divided for part, _ in parts),
        }
        are_separable = (
            carrier_cells["ranks"].nunique() > 1
            or (carrier_cells["steps"] / carrier_cells["n_allreduces"]).round(6).nunique() > 1
        )
        numbers_of_carrier[carrier] = _select_terms(
            parts, [name for name in terms if is_possible.get(name, True)], are_separable
        )
    hidden, scatter, dispatch = (
        {name: values[i] for name, values in numbers_of_carrier.items()} for i in range(len(TERMS))
    )
    return replace(model, hidden=hidden, scatter=scatter, dispatch=dispatch)


def _fit_computation(cells: pd.DataFrame) -> np.ndarray:
    """Return alpha, beta, u of cells on one replica by non-negative least squares of relative errors.

    Inseparable coefficients are 0.
    """
    steps, n_allreduces, batch, seconds = (cells[name].to_numpy() for name in COMPUTATION_COLUMNS)
    columns = np.column_stack([steps, steps * batch, n_allreduces])
    is_estimable = [len(set(batch)) > 1, True, len(set(np.round(n_allreduces / steps, 6))) > 1]
    coefficients = np.zeros(3)
    coefficients[is_estimable] = nnls(columns[:, is_estimable] / seconds[:, None], np.ones(len(cells)))[0]
    return coefficients


def _separate_update_cost(
    computation: Mapping[Levels, np.ndarray], graphs: Mapping[Levels, Graph | None], of_model: Collection[int]
) -> dict[Levels, np.ndarray]:
    """Return `computation` with u separated from alpha also where no single replica accumulates gradients.

    From model to model, a batch's constant part grows with the number of operators, and an update with the
    parameters. Models are compared within groups of equal other levels.

    Args:
        computation: alpha, beta and u by levels.
        graphs: The model of each.
        of_model: Which of the levels name model and data set.
    """
    separated = dict(computation)
    groups: dict[Levels, list[Levels]] = {}
    for levels, (alpha, _, update) in computation.items():
        if alpha and not update and graphs[levels]:
            other_levels = tuple("" if i in of_model else level for i, level in enumerate(levels))
            groups.setdefault(other_levels, []).append(levels)
    for group in groups.values():
        sizes = [(len(graph.operators), graph.parameters) for levels in group if (graph := graphs[levels])]
        if len(set(sizes)) < 2:
            continue
        constant = np.array([computation[levels][0] for levels in group])
        _, update_s_per_parameter = nnls(np.array(sizes, float) / constant[:, None], np.ones(len(group)))[0]
        for levels, (_, parameters) in zip(group, sizes, strict=True):
            alpha, beta, _ = computation[levels]
            update = min(update_s_per_parameter * parameters, alpha)
            separated[levels] = np.array([alpha - update, beta, update])
    return separated


def _load_graph(model: str, dataset: str) -> Graph | None:
    """Return a model for a data set; None for a model that Ringside does not describe."""
    try:
        return model_graph(model, dataset)
    except (InputError, KeyError, ValueError):
        return None


def _select_terms(
    parts: Sequence[tuple[Part, np.ndarray]], terms: Sequence[str], are_separable: bool
) -> tuple[float, ...]:
    """Return the numbers (TERMS) with the least `press` of relative errors, 0 for those left out.

    Args:
        parts: Parts of one carrier with their measured seconds.
        terms: The numbers that may be used.
        are_separable: Whether the parts can separate the CONFOUNDED numbers.
    """
    zeros = np.zeros(len(TERMS))
    if not parts:
        return tuple(zeros.tolist())

    def errors(*numbers: float) -> np.ndarray:
        return np.concatenate([part.seconds(*numbers) / seconds - 1 for part, seconds in parts])

    errors_without_terms = errors(*zeros)
    best, best_score = zeros, press(errors_without_terms, np.empty((len(errors_without_terms), 0)))
    counts = range(1, len(terms) + 1)
    for chosen in itertools.chain.from_iterable(itertools.combinations(terms, count) for count in counts):
        if not are_separable and set(chosen) >= CONFOUNDED:
            continue
        is_used = np.isin(TERMS, chosen)
        placement = np.eye(len(TERMS))[is_used]  # x @ placement has zeros for unused terms
        bounds = LIMITS[:, is_used]
        fitted = least_squares(
            lambda x, placement=placement: errors(*(x @ placement)), bounds.mean(axis=0) / 2, bounds=bounds
        )
        if (score := press(fitted.fun, fitted.jac)) < best_score:
            best, best_score = fitted.x @ placement, score
    return tuple(best.tolist())


def press(errors: np.ndarray, slopes: np.ndarray) -> float:
    """Return the PRESS statistic: the sum of squared leave-one-out errors (Allen, Technometrics 16, 1974).

    It is exact if the derivatives are constant.

    Args:
        errors: Errors of the fit, [n].
        slopes: Derivatives of the errors, [n, parameters].
    """
    if len(errors) <= slopes.shape[1]:
        return math.inf
    leverage = np.einsum("ij,ji->i", slopes, np.linalg.pinv(slopes))
    return float(np.sum((errors / np.maximum(1 - leverage, 1e-6)) ** 2))
