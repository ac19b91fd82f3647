"""The model with physics in it: epoch time from computation on one replica, the exchange's messages, and waiting.

    T = S c(b) + X u + X exposed + X sqrt(S / X) c(b) sigma E(p) + S extra

S batches and X exchanges an epoch, c(b) = alpha + beta b the computation of a batch of b samples and u of an update, both
from runs on one replica. `exposed` is what the messages of an exchange take beyond the backward pass (prediction.exchange)
by a law of the network's sweeps (prediction.law). The last but one term is waiting for the slowest of p ranks: where the
time of a batch scatters by sigma c, that of the S / X batches before an exchange does by the square root of their number
as much, and the largest of p normal numbers lies E(p) standard deviations above their mean. `extra`: see exchange.Rule.
Two numbers are fitted to runs on several nodes, for each framework and device: the share of the backward pass that hides messages,
and sigma. Each has to earn its place: it is left out unless it makes the errors of cells that are left out smaller.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from scipy.integrate import quad
from scipy.optimize import least_squares, nnls
from scipy.special import ndtr

from analysis import conditions
from analysis.measured import factors, scaled, successful
from common.errors import InputError
from declared.mesh import divides_more
from declared.models import model_graph
from models.graph import Graph
from prediction import exchange, law
from prediction.exchange import Tensors
from prediction.law import Law

# Factors that change how many batches and exchanges there are, or what carries them, but not the cost of each.
NOT_COMPUTATION = (
    "framework", "nodes", "devices_per_node", "batch_size", "sync_every", "batch_scope", "bandwidth", "epochs",
    "warmup_epochs", "shares", "lr_scaling", "lr_warmup_epochs", "learning_rate",
)  # fmt: skip
COUNTS = ["nodes", "ranks", "replicas", "sync_every"]
MEASURES = ["local_batch", "steps", "exchanges", "rate", "samples"]
OF_COMPUTATION = ["steps", "exchanges", "local_batch", "epoch_time_s"]
OF_PART = ["nodes", "ranks", "rate", "steps", "exchanges", "training_loop"]
TERMS = ("hidden", "scatter")
LIMITS = np.array([[0.0, 0.0], [1.0, 5.0]])


def prepared(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per measured cell: its factors, COUNTS, MEASURES (rate in bytes/s, NaN: not known), epoch_time_s, n, sd.

    Batches and exchanges are scaled as epoch time is: to the data set's samples. `uncounted` cells are left out, and meshes.
    """
    ok = successful(runs)
    ok = ok[~is_mesh(ok)]
    ok = ok.assign(rate=ok["bandwidth_bytes_s"].astype(float), samples=ok["samples_per_epoch"].astype(float))
    ok = ok.assign(steps=scaled(ok, "steps"), exchanges=scaled(ok, "exchanges"))
    by_cell = ok.groupby("cell", sort=False)
    named = [name for name in [*factors(), "base"] if name not in COUNTS]
    cells = by_cell[[*named, *COUNTS, *MEASURES]].first()
    times = by_cell["epoch_time_s"]
    cells = cells.assign(epoch_time_s=times.mean(), n=times.size(), sd=times.std())
    if "bandwidth" in cells:  # a level may leave it to the site
        cells["bandwidth"] = (8 * cells["rate"] / 1e6).fillna(cells["bandwidth"])
    cells = cells.dropna(subset=["steps", "exchanges"])
    kinds = dict.fromkeys(COUNTS, int) | dict.fromkeys(MEASURES, float)
    return cells.astype(kinds).reset_index()


def pooled_cv(cells: pd.DataFrame, of_means: bool = False) -> float:
    """The coefficient of variation of a run, or of a cell's mean, pooled over cells; NaN for single replicates."""
    more = cells[cells["n"] > 1]
    if more.empty:
        return math.nan
    n, cv = more["n"].to_numpy(float), (more["sd"] / more["epoch_time_s"]).to_numpy(float)
    return float(np.sqrt(np.average(cv**2 / (n if of_means else 1), weights=n - 1)))


def uncounted(runs: pd.DataFrame) -> str:
    """The cells that nothing here can use, whose batches or exchanges were not counted or which are meshes, in a sentence; or nothing."""
    counts = successful(runs).groupby("cell", sort=False)[["steps", "exchanges"]].count()
    lacking = counts.index[(counts == 0).any(axis=1)].tolist()
    left_out = (
        [f"Left out, because batches or exchanges were not counted: {conditions.named(lacking)}."] if lacking else []
    )
    if meshes := list(dict.fromkeys(runs.loc[is_mesh(runs), "cell"])):
        left_out.append(f"Left out, because ranks divide more than samples: {conditions.named(meshes)}.")
    return " ".join(left_out)


def is_mesh(runs: pd.DataFrame) -> pd.Series:
    """Where ranks divide more than samples."""
    pairs = zip(runs["parallelism"], runs["ranks"], strict=True)
    return pd.Series([divides_more(level, int(ranks)) for level, ranks in pairs], index=runs.index, dtype=bool)


def of_unlike(runs: pd.DataFrame) -> str:
    """That nodes are unlike, which nothing here knows, in a sentence; or nothing."""
    if runs["cpu_shares"].isna().all() and runs["rank_samples"].isna().all():
        return ""
    return "Nodes or ranks are unlike: this takes all of them for what the first one is. The table hybrid does not."


@functools.cache
def expected_largest(count: int) -> float:
    """Expected value of the largest of so many standard normal numbers (Harter, Biometrika 48, 1961, table 1)."""
    if count < 2:
        return 0.0
    return float(
        quad(lambda x: count * x * math.exp(-x * x / 2) * ndtr(x) ** (count - 1), -8, 12)[0] / math.sqrt(2 * math.pi)
    )


@functools.cache
def model_tensors(model: str, dataset: str) -> Tensors | None:
    """The gradients of a model for a data set; None for one that is not described here."""
    try:
        graph: Graph = model_graph(model, dataset)
    except (InputError, KeyError, ValueError):
        return None
    return exchange.tensors(graph)


Carrier = tuple[str, str]  # a framework and what trains: who sends, and from where


def carriers(cells: pd.DataFrame) -> list[Carrier]:
    """The carriers of all cells, [cells]."""
    return list(zip(cells["framework"], cells["device"], strict=True))


@dataclass(frozen=True)
class Physics:
    """A fitted model. `computation`: (framework, levels of `keys`...) -> alpha, beta, u; `gradients`: (model, data set) ->
    tensors; the rest by carrier."""

    keys: tuple[str, ...]
    computation: dict[tuple[object, ...], np.ndarray]
    gradients: dict[tuple[str, str], Tensors]
    laws: dict[Carrier, Law]
    hidden: dict[Carrier, float] = field(default_factory=dict)
    scatter: dict[Carrier, float] = field(default_factory=dict)

    def predict(self, cells: pd.DataFrame) -> np.ndarray:
        """Epoch times of `prepared` cells in seconds, NaN where something that it needs was not measured."""
        predicted = np.full(len(cells), np.nan)
        for place, part in self.parts(cells):
            hidden, scatter = self.hidden.get(part.carrier, 0.0), self.scatter.get(part.carrier, 0.0)
            predicted[place] = part.seconds(hidden, scatter)
        return predicted

    def parts(self, cells: pd.DataFrame) -> Iterator[tuple[np.ndarray, "Part"]]:
        """The cells that can be predicted, in parts of one carrier, model and data set: their places, and what they need.

        Replicas that share one node are not among them: no sweep knows what their exchange takes.
        """
        own = self.computed(cells)
        single, several = (cells["replicas"] == 1).to_numpy(), (cells["nodes"] > 1).to_numpy()
        columns = {name: cells[name].to_numpy() for name in OF_PART}
        for names, places in cells.groupby(["framework", "device", "model", "dataset"]).indices.items():
            carrier, model = names[:2], names[2:]
            alone, here = places[single[places]], places[several[places]]
            if len(alone):
                yield alone, Part(carrier, own[alone].sum(axis=1))
            if len(here) and carrier in self.laws and model in self.gradients:
                theirs = {name: values[here] for name, values in columns.items()}
                yield here, _on_several(carrier, theirs, own[here], self.laws[carrier], self.gradients[model])

    def computed(self, cells: pd.DataFrame) -> np.ndarray:
        """Seconds of an epoch in batches and in updates, [cells, 2]: the framework's own, or that of its base."""
        nothing = np.full(3, np.nan)
        found = np.array(
            [
                self.computation.get((framework, *levels), self.computation.get((base, *levels), nothing))
                for framework, base, *levels in cells[["framework", "base", *self.keys]].itertuples(
                    index=False, name=None
                )
            ]
        ).reshape(-1, 3)
        steps, exchanges, batch = (cells[name].to_numpy() for name in ("steps", "exchanges", "local_batch"))
        return np.column_stack([steps * (found[:, 0] + found[:, 1] * batch), exchanges * found[:, 2]])


@dataclass(frozen=True)
class Part:
    """Cells of one carrier, model and data set, [cells]: seconds of computation; of waiting where sigma is 1; of messages
    beyond the backward pass as a function of its hidden share."""

    carrier: Carrier
    computed: np.ndarray
    waiting: np.ndarray | float = 0.0
    beyond: Callable[[float], np.ndarray | float] = lambda hidden: 0.0

    def seconds(self, hidden: float, scatter: float) -> np.ndarray:
        """Epoch times."""
        return self.computed + self.beyond(hidden) + scatter * self.waiting


def _on_several(
    carrier: Carrier, cells: Mapping[str, np.ndarray], own: np.ndarray, network: Law, made: Tensors
) -> Part:
    rule = exchange.rule_of(carrier[0])
    steps, exchanges, ranks = cells["steps"], cells["exchanges"], cells["ranks"]
    batch_s = own[:, 0] / steps
    here = network.at(cells["nodes"], ranks, cells["rate"])
    extra = np.array([rule.extra.get(loop, 0) for loop in cells["training_loop"]], float)
    beside = steps * extra * here.seconds(np.full(len(steps), exchange.NUMBER_BYTES))
    each, place = np.unique(ranks, return_inverse=True)
    slowest = np.array([expected_largest(int(count)) for count in each])[place]

    def beyond(hidden: float) -> np.ndarray:
        return exchanges * exchange.exposed(rule, made, here, exchange.BACKWARD_SHARE * batch_s, hidden) + beside

    return Part(carrier, own.sum(axis=1), np.sqrt(steps * exchanges) * batch_s * slowest, beyond)


def plain(cells: pd.DataFrame, sweeps: pd.DataFrame) -> Physics:
    """What one-node cells (`prepared`) and sweeps (`law.points`) say: nothing is hidden, nobody waits."""
    keys = tuple(name for name in factors() if name not in NOT_COMPUTATION and cells[name].nunique(dropna=False) > 1)
    single = cells[cells["replicas"] == 1]
    computation = {
        tuple(levels): _computation(group)
        for levels, group in single[["framework", *keys, *OF_COMPUTATION]].groupby(["framework", *keys], dropna=False)
    }
    names = cells[["model", "dataset"]].drop_duplicates().itertuples(index=False, name=None)
    gradients = {name: made for name in names if (made := model_tensors(*name))}
    laws = {}
    for carrier, own in cells[cells["nodes"] > 1].groupby(["framework", "device"]):
        used = set(zip(own["model"], own["dataset"], strict=True)) & set(gradients)
        largest = max((gradients[name].total_bytes for name in used), default=math.inf)
        found = law.fit(sweeps[(sweeps["framework"] == carrier[0]) & (sweeps["device"] == carrier[1])], largest)
        if found:
            laws[carrier] = found
    return Physics(keys, computation, gradients, laws)


def fit(cells: pd.DataFrame, sweeps: pd.DataFrame, terms: Sequence[str] = TERMS) -> Physics:
    """The model of `prepared` cells and `law.points`. `terms`: the fitted numbers that may be used."""
    return fitted(plain(cells, sweeps), cells, terms)


def fitted(made: Physics, cells: pd.DataFrame, terms: Sequence[str] = TERMS) -> Physics:
    """`made` with the hidden share and sigma of each carrier that its cells on several nodes ask for."""
    several = cells[(cells["nodes"] > 1) & ~np.isnan(made.predict(cells))]
    by_carrier = several.groupby(["framework", "device"]).groups
    found = {}
    for carrier in made.laws:
        own = several.loc[by_carrier.get(carrier, [])]
        parts = [(part, own["epoch_time_s"].to_numpy()[place]) for place, part in made.parts(own)]
        usable = [name for name in terms if name != "hidden" or exchange.streams(carrier[0])]
        found[carrier] = _earned(parts, usable) if parts else (0.0, 0.0)
    return replace(
        made,
        hidden={name: hidden for name, (hidden, _) in found.items()},
        scatter={name: scatter for name, (_, scatter) in found.items()},
    )


def _computation(cells: pd.DataFrame) -> np.ndarray:
    """alpha, beta, u of one replica's cells: relative least squares, none below 0; what cannot be told apart is 0."""
    steps, exchanges, batch, seconds = (cells[name].to_numpy() for name in OF_COMPUTATION)
    columns = np.column_stack([steps, steps * batch, exchanges])
    kept = [len(set(batch)) > 1, True, len(set(np.round(exchanges / steps, 6))) > 1]
    found = np.zeros(3)
    found[kept] = nnls(columns[:, kept] / seconds[:, None], np.ones(len(cells)))[0]
    return found


def _earned(parts: Sequence[tuple[Part, np.ndarray]], terms: Sequence[str]) -> tuple[float, float]:
    """Hidden share and sigma with the least `press` of relative errors, each 0 where it is left out.

    `parts`, with their measured seconds, are those of one carrier.
    """

    def errors(hidden: float, scatter: float) -> np.ndarray:
        return np.concatenate([part.seconds(hidden, scatter) / seconds - 1 for part, seconds in parts])

    without = errors(0.0, 0.0)
    best, least = (0.0, 0.0), press(without, np.empty((len(without), 0)))
    for chosen in itertools.chain.from_iterable(itertools.combinations(terms, count) for count in (1, 2)):
        use = np.isin(TERMS, chosen)
        place = np.eye(2)[use]  # x @ place has a 0 for what is left out
        bounds = LIMITS[:, use]
        found = least_squares(lambda x, place=place: errors(*(x @ place)), bounds.mean(axis=0) / 2, bounds=bounds)
        if (score := press(found.fun, found.jac)) < least:
            best, least = tuple(found.x @ place), score
    return float(best[0]), float(best[1])


def press(errors: np.ndarray, slopes: np.ndarray) -> float:
    """Sum of squares of the errors that each cell would have, had it been left out of the fit (Allen, Technometrics 16, 1974).

    `errors` [n], `slopes` [n, parameters]: derivatives of the errors. Exact where these are constant.
    """
    if len(errors) <= slopes.shape[1]:
        return math.inf
    leverage = np.einsum("ij,ji->i", slopes, np.linalg.pinv(slopes))
    return float(np.sum((errors / np.maximum(1 - leverage, 1e-6)) ** 2))
