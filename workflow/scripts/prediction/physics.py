"""The model with physics in it: epoch time from computation on one replica, the exchange's messages, and waiting.

    T = S c(b) + X u + X exposed + X sqrt(S / X) c(b) sigma E(p) + S extra

S batches and X exchanges an epoch, c(b) = alpha + beta b the computation of a batch of b samples and u of an update, both
from runs on one replica. `exposed` is what the messages of an exchange take beyond the backward pass (prediction.exchange)
by a law of the network's sweeps (prediction.law). The last but one term is waiting for the slowest of p ranks: where the
time of a batch scatters by sigma c, that of the S / X batches before an exchange does by the square root of their number
as much, and the largest of p normal numbers lies E(p) standard deviations above their mean. `extra`: see exchange.Rule.
Ranks that divide more than samples: prediction.strategies has their computation and messages; where a tensor axis or a pipeline makes
ranks wait for each other in every batch, S stands for X in the term of waiting.
Up to three numbers are fitted to runs on several nodes, for each framework and device: the share of the backward pass that hides messages,
sigma, and where ranks divide layers what a library takes for each message within them beyond the sweep. Each has to earn its place: it is left out unless
it makes the errors of cells that are left out smaller. Where as many ranks exchange as often in all cells, hiding and waiting both go with computation, one as its
price and one as its gain, so that only their difference is known: then one of them is taken at most.
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
from prediction import exchange, law, strategies
from prediction.exchange import Tensors
from prediction.law import Law

# Factors that change how many batches and exchanges there are, or what carries them, but not the cost of each.
NOT_COMPUTATION = (
    "framework", "nodes", "devices_per_node", "batch_size", "sync_every", "batch_scope", "bandwidth", "epochs",
    "warmup_epochs", "shares", "lr_scaling", "lr_warmup_epochs", "learning_rate",
)  # fmt: skip
DIVIDES = ("parallelism", *OF_STRATEGIES)  # of which prediction.strategies knows what they cost
COUNTS = ["nodes", "ranks", "replicas", "sync_every"]
MEASURES = ["local_batch", "steps", "exchanges", "rate", "samples"]
OF_COMPUTATION = ["steps", "exchanges", "local_batch", "epoch_time_s"]
OF_PART = ["nodes", "ranks", "rate", "steps", "exchanges", "training_loop"]
TERMS = ("hidden", "scatter", "dispatch")
CONFOUNDED = {"hidden", "scatter"}  # where as many ranks exchange as often in all cells: both go with computation
LIMITS = np.array([[0.0, 0.0, 0.0], [1.0, 5.0, 0.1]])


def prepared(runs: pd.DataFrame, meshes: bool = False) -> pd.DataFrame:
    """A row per measured cell: its factors, COUNTS, MEASURES (rate in bytes/s, NaN: not known), epoch_time_s, n, sd; `is_mesh`: whether ranks
    divide more than samples; `computes`.

    Epoch times are adjusted by how quick the machine was, where means are (`analysis.adjusted`). Batches and exchanges are
    scaled as epoch time is: to the data set's samples. `uncounted` cells are left out, and but for `meshes` those whose ranks divide more than
    samples; cells `of_strategies` always.
    """
    ok = successful(runs)
    ok = ok.assign(epoch_time_s=adjusted_times(runs).reindex(ok.index))
    ok = ok[~of_strategies(ok)]
    divided = is_mesh(ok)
    ok = ok.assign(is_mesh=divided, computes=computes(ok))
    ok = ok if meshes else ok[~divided]
    ok = ok.assign(rate=ok["bandwidth_bytes_s"].astype(float), samples=ok["samples_per_epoch"].astype(float))
    ok = ok.assign(steps=scaled(ok, "steps"), exchanges=scaled(ok, "exchanges"))
    by_cell = ok.groupby("cell", sort=False)
    named = [name for name in [*factors(), "base"] if name not in COUNTS]
    cells = by_cell[[*named, *COUNTS, *MEASURES, "is_mesh", "computes"]].first()
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


def planned(runs: pd.DataFrame) -> pd.DataFrame:
    """The cells on several nodes that a study plans, run or not, as `prepared` has them, but for what was measured."""
    cells = runs[(runs["nodes"] > 1) & ~of_strategies(runs)].drop_duplicates("cell").reset_index(drop=True)
    samples, batch = cells["samples_per_epoch"].astype(float), cells["local_batch"].astype(float)
    exchanges = samples / cells["effective_batch"].astype(float)
    counted = {"steps": exchanges * cells["sync_every"].astype(int), "exchanges": exchanges, "local_batch": batch}
    told = {"rate": cells["bandwidth_bytes_s"].astype(float), "is_mesh": is_mesh(cells), "computes": computes(cells)}
    kinds = dict.fromkeys(COUNTS, int)
    return (
        cells[["cell", *factors(), "base", "ranks", "replicas"]]
        .assign(samples=samples, **counted, **told)
        .astype(kinds)
    )


def uncounted(runs: pd.DataFrame, meshes: bool = False) -> str:
    """The cells that nothing here can use, in a note, or nothing: those whose batches or exchanges were not counted, which are `of_strategies` or, but for `meshes`, whose
    ranks divide more than samples."""
    counts = successful(runs).groupby("cell", sort=False)[["steps", "exchanges"]].count()
    lacking = counts.index[(counts == 0).any(axis=1)].tolist()
    cells = {
        "batches or exchanges were not counted": lacking,
        "ranks divide more than samples": [] if meshes else list(dict.fromkeys(runs.loc[is_mesh(runs), "cell"])),
        "each layer is divided by itself, which is simulated, not predicted": list(
            dict.fromkeys(runs.loc[of_strategies(runs), "cell"])
        ),
    }
    if not any(cells.values()):
        return ""
    text = " ".join(f"Left out, because {why}: {conditions.join_names(own)}." for why, own in cells.items() if own)
    facts = dict(zip(("uncounted", "divided", "of_strategies"), cells.values(), strict=True))
    return Note("cells-left-out", text, **facts)


def computes(runs: pd.DataFrame) -> pd.Series:
    """How LBANN's ranks divide layers, or data: what computation on one replica is told apart by."""
    return runs["parallelism"].where(runs["parallelism"].isin(NOT_MESHES), PLAIN)


def is_mesh(runs: pd.DataFrame) -> pd.Series:
    """Where ranks divide more than samples."""
    pairs = zip(runs["parallelism"], runs["ranks"], strict=True)
    return pd.Series([divides_more(level, int(ranks)) for level, ranks in pairs], index=runs.index, dtype=bool)


def of_strategies(runs: pd.DataFrame) -> pd.Series:
    """Where each layer is divided by itself, as a strategy says."""
    return runs["framework"].map(has_strategies).astype(bool)


def of_unlike(runs: pd.DataFrame) -> str:
    """That nodes are unlike, which nothing here knows, in a sentence; or nothing."""
    if runs["cpu_shares"].isna().all() and runs["rank_samples"].isna().all():
        return ""
    text = "Nodes or ranks are unlike: this takes all of them for what the first one is. The table hybrid does not."
    return Note("heterogeneous", text)


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
    graph = _graph(model, dataset)
    return exchange.tensors(graph) if graph else None


Levels = tuple[object, ...]  # of the factors, the framework first
Carrier = tuple[str, str]  # a framework and what trains: who sends, and from where


def carriers(cells: pd.DataFrame) -> list[Carrier]:
    """The carriers of all cells, [cells]."""
    return list(zip(cells["framework"], cells["device"], strict=True))


@dataclass(frozen=True)
class Physics:
    """A fitted model. `computation`: (framework, levels of `keys`...) -> alpha, beta, u; `divisible`: the same where ranks divide more than
    samples (`_told_apart`); `gradients`: (model, data set) -> tensors; the rest by carrier, of those of which all-reduce was swept: `laws`, collective
    -> its law. `whole`: a framework that shards is taken for one all-reduce of all gradients."""

    keys: tuple[str, ...]
    computation: dict[Levels, np.ndarray]
    divisible: dict[Levels, np.ndarray]
    gradients: dict[tuple[str, str], Tensors]
    laws: dict[Carrier, dict[str, Law]]
    hidden: dict[Carrier, float] = field(default_factory=dict)
    scatter: dict[Carrier, float] = field(default_factory=dict)
    dispatch: dict[Carrier, float] = field(default_factory=dict)
    whole: bool = False

    def law(self, carrier: Carrier, collective: str = ALL_REDUCE) -> Law | None:
        """That of a collective of a carrier; None where it was not swept."""
        return self.laws.get(carrier, {}).get(collective)

    def shards(self, carrier: Carrier) -> list[Law]:
        """Those of exchange.SHARDS, where a carrier's messages are these and both were swept; else none."""
        found = [one for name in exchange.SHARDS if (one := self.law(carrier, name))]
        return (
            found if exchange.is_sharded(carrier[0]) and not self.whole and len(found) == len(exchange.SHARDS) else []
        )

    def predict(self, cells: pd.DataFrame) -> np.ndarray:
        """Epoch times of `prepared` cells in seconds, NaN where something that it needs was not measured."""
        predicted = np.full(len(cells), np.nan)
        for place, part in self.parts(cells):
            predicted[place] = part.seconds(*self.terms(part.carrier))
        return predicted

    def terms(self, carrier: Carrier) -> tuple[float, ...]:
        """The fitted numbers of a carrier, by TERMS; 0 what is left out."""
        return tuple(found.get(carrier, 0.0) for found in (self.hidden, self.scatter, self.dispatch))

    def parts(self, cells: pd.DataFrame) -> Iterator[tuple[np.ndarray, "Part"]]:
        """The cells that can be predicted, in parts of one carrier, model and data set: their places, and what they need.

        Replicas that share one node are not among them: no sweep knows what their exchange takes.
        """
        own = self.computed(cells)
        divided = cells["is_mesh"].to_numpy(bool)
        single, several = (cells["replicas"] == 1).to_numpy() & ~divided, (cells["nodes"] > 1).to_numpy()
        columns = {name: cells[name].to_numpy() for name in OF_PART}
        for names, places in cells.groupby(["framework", "device", "model", "dataset"]).indices.items():
            carrier, model = names[:2], names[2:]
            alone, here = places[single[places]], places[(several & ~divided)[places]]
            if carrier in self.laws and model in self.gradients:
                yield from self._of_meshes(carrier, cells, places[(several & divided)[places]])
            if len(alone):
                yield alone, Part(carrier, own[alone].sum(axis=1))
            if len(here) and carrier in self.laws and model in self.gradients:
                theirs = {name: values[here] for name, values in columns.items()}
                yield here, self._on_several(carrier, theirs, own[here], self.gradients[model])

    def streams(self, carrier: Carrier) -> bool:
        """Whether messages can travel beside computation, as far as they are known."""
        return exchange.streams(carrier[0]) and bool(self.shards(carrier) or not exchange.is_sharded(carrier[0]))

    def _on_several(self, carrier: Carrier, cells: Mapping[str, np.ndarray], own: np.ndarray, made: Tensors) -> "Part":
        rule, place = exchange.rule_of(carrier[0]), (cells["nodes"], cells["ranks"], cells["rate"])
        steps, exchanges = cells["steps"], cells["exchanges"]
        batch_s = own[:, 0] / steps
        backward_s = exchange.BACKWARD_SHARE * batch_s
        here, shards = self.laws[carrier][ALL_REDUCE].at(*place), [one.at(*place) for one in self.shards(carrier)]
        extra = np.array([rule.extra.get(loop, 0) for loop in cells["training_loop"]], float)
        beside = steps * extra * here.seconds(np.full(len(steps), exchange.NUMBER_BYTES))
        each, of_each = np.unique(cells["ranks"], return_inverse=True)
        slowest = np.array([expected_largest(int(count)) for count in each])[of_each]

        def beyond(hidden: float) -> np.ndarray:
            if shards:
                gather, scatter = shards
                units = exchange.units(made, rule.limits_bytes[1])
                one = exchange.exposed_units(units, gather, scatter, backward_s, hidden, steps / exchanges)
            else:
                one = exchange.exposed(rule, made, here, backward_s, hidden)
            return exchanges * one + beside

        return Part(carrier, own.sum(axis=1), np.sqrt(steps * exchanges) * batch_s * slowest, beyond)

    def _of_meshes(
        self, carrier: Carrier, cells: pd.DataFrame, places: np.ndarray
    ) -> Iterator[tuple[np.ndarray, "Part"]]:
        """Those of `places` whose messages the sweeps know, each by itself."""
        rule, each = exchange.rule_of(carrier[0]), self.coefficients(cells, self.divisible)
        for place in places:
            row = cells.iloc[place].to_dict()
            mesh, steps, exchanges = mesh_of(row["parallelism"], row["ranks"]), row["steps"], row["exchanges"]
            where = strategies.Place(row["nodes"], row["ranks"], row["rate"])
            graph, batch = model_graph(row["model"], row["dataset"]), round(row["local_batch"])
            law_of = functools.partial(self.law, carrier)
            one = strategies.step(graph, mesh, batch, row, each[place], where, law_of, rule.limits_bytes[1])
            if one is None:
                continue
            batch_s, groups = one.computed_s / row["sync_every"], steps / row["sync_every"]
            waits = steps if mesh.tensor * mesh.pipeline > 1 else exchanges

            yield (
                np.array([place]),
                Part(
                    carrier,
                    np.array([groups * one.computed_s + exchanges * one.update_s]),
                    np.array([math.sqrt(steps * waits) * batch_s * expected_largest(row["ranks"])]),
                    functools.partial(_beyond, one, groups, exchanges, exchange.BACKWARD_SHARE * batch_s),
                    groups * one.divided,
                ),
            )

    def computed(self, cells: pd.DataFrame) -> np.ndarray:
        """Seconds of an epoch in batches and in updates, [cells, 2]: the framework's own, or that of its base."""
        found = self.coefficients(cells, self.computation)
        steps, exchanges, batch = (cells[name].to_numpy() for name in ("steps", "exchanges", "local_batch"))
        return np.column_stack([steps * (found[:, 0] + found[:, 1] * batch), exchanges * found[:, 2]])

    def coefficients(self, cells: pd.DataFrame, of: Mapping[Levels, np.ndarray]) -> np.ndarray:
        """alpha, beta and u of one replica, [cells, 3]: the framework's own, or those of its base; NaN where neither was measured. `of`:
        computation, or divisible."""
        nothing = np.full(3, np.nan)
        found: np.ndarray = np.array(
            [
                of.get((framework, *levels), of.get((base, *levels), nothing))
                for framework, base, *levels in cells[["framework", "base", *self.keys]].itertuples(
                    index=False, name=None
                )
            ]
        ).reshape(-1, 3)
        return found


def _beyond(one: strategies.Step, groups: float, exchanges: float, backward_s: float, hidden: float) -> float:
    """Seconds of an epoch in messages that nothing hides."""
    return groups * one.waited_s + exchanges * max(one.parameters_s - hidden * backward_s, 0.0)


@dataclass(frozen=True)
class Part:
    """Cells of one carrier, model and data set, [cells]: seconds of computation; of waiting where sigma is 1; of messages
    beyond the backward pass as a function of its hidden share; how many messages there are within layers."""

    carrier: Carrier
    computed: np.ndarray
    waiting: np.ndarray | float = 0.0
    beyond: Callable[[float], np.ndarray | float] = lambda hidden: 0.0
    divided: float = 0.0

    def seconds(self, hidden: float, scatter: float, dispatch: float) -> np.ndarray:
        """Epoch times, by TERMS."""
        return self.computed + self.beyond(hidden) + scatter * self.waiting + dispatch * self.divided


def plain(cells: pd.DataFrame, sweeps: pd.DataFrame) -> Physics:
    """What one-node cells (`prepared`) and sweeps (`law.points`) say: nothing is hidden, nobody waits."""
    costs = [*(name for name in factors() if name not in (*NOT_COMPUTATION, *DIVIDES)), "computes"]
    keys = tuple(name for name in costs if cells[name].nunique(dropna=False) > 1)
    single = cells[(cells["replicas"] == 1) & ~cells["is_mesh"]]
    replicas = {tuple(levels): own for levels, own in single.groupby(["framework", *keys], dropna=False)}
    computation = {levels: _computation(own[OF_COMPUTATION]) for levels, own in replicas.items()}
    graphs = {levels: _graph(*own[["model", "dataset"]].iloc[0]) for levels, own in replicas.items()}
    divisible = _told_apart(computation, graphs, [i for i, name in enumerate(keys, 1) if name in ("model", "dataset")])
    names = cells[["model", "dataset"]].drop_duplicates().itertuples(index=False, name=None)
    gradients = {name: made for name in names if (made := model_tensors(*name))}
    laws: dict[Carrier, dict[str, Law]] = {}
    for carrier, own in cells[cells["nodes"] > 1].groupby(["framework", "device"]):
        used = set(zip(own["model"], own["dataset"], strict=True)) & set(gradients)
        largest = max((gradients[name].total_bytes for name in used), default=math.inf)
        handed = _largest(own[own["is_mesh"]])
        swept = sweeps[(sweeps["framework"] == carrier[0]) & (sweeps["device"] == carrier[1])]
        asked = dict.fromkeys(filter(set(swept["collective"]).__contains__, COLLECTIVES), largest)
        asked |= {name: max(size, asked.get(name, 0.0)) for name, size in handed.items()}
        fits = {name: law.fit(swept[swept["collective"] == name], size) for name, size in asked.items()}
        found = {name: network for name, network in fits.items() if network}
        if ALL_REDUCE in found:
            laws[carrier] = found
    return Physics(keys, computation, divisible, gradients, laws)


def _largest(meshes: pd.DataFrame) -> dict[str, float]:
    """Collective -> bytes of its largest message in these cells."""
    found: dict[str, float] = {}
    for row in meshes.to_dict("records"):
        mesh, batch = mesh_of(row["parallelism"], row["ranks"]), round(row["local_batch"])
        for one in strategies.messages(row["model"], row["dataset"], mesh, batch, row):
            found[one.kind] = max(found.get(one.kind, 0.0), one.bytes)
    return found


def fit(cells: pd.DataFrame, sweeps: pd.DataFrame, terms: Sequence[str] = TERMS) -> Physics:
    """The model of `prepared` cells and `law.points`. `terms`: the fitted numbers that may be used."""
    return fitted(plain(cells, sweeps), cells, terms)


def fitted(made: Physics, cells: pd.DataFrame, terms: Sequence[str] = TERMS) -> Physics:
    """`made` with the numbers (TERMS) of each carrier that its cells on several nodes ask for."""
    several = cells[(cells["nodes"] > 1) & ~np.isnan(made.predict(cells))]
    by_carrier = several.groupby(["framework", "device"]).groups
    found = {}
    for carrier in made.laws:
        own = several.loc[by_carrier.get(carrier, [])]
        parts = [(part, own["epoch_time_s"].to_numpy()[place]) for place, part in made.parts(own)]
        can = {"hidden": made.streams(carrier), "dispatch": any(part.divided for part, _ in parts)}
        apart = own["ranks"].nunique() > 1 or (own["steps"] / own["exchanges"]).round(6).nunique() > 1
        found[carrier] = _earned(parts, [name for name in terms if can.get(name, True)], apart)
    hidden, scatter, dispatch = ({name: numbers[i] for name, numbers in found.items()} for i in range(len(TERMS)))
    return replace(made, hidden=hidden, scatter=scatter, dispatch=dispatch)


def _computation(cells: pd.DataFrame) -> np.ndarray:
    """alpha, beta, u of one replica's cells: relative least squares, none below 0; what cannot be told apart is 0."""
    steps, exchanges, batch, seconds = (cells[name].to_numpy() for name in OF_COMPUTATION)
    columns = np.column_stack([steps, steps * batch, exchanges])
    kept = [len(set(batch)) > 1, True, len(set(np.round(exchanges / steps, 6))) > 1]
    found = np.zeros(3)
    found[kept] = nnls(columns[:, kept] / seconds[:, None], np.ones(len(cells)))[0]
    return found


def _told_apart(
    computation: Mapping[Levels, np.ndarray], graphs: Mapping[Levels, Graph | None], of_model: Collection[int]
) -> dict[Levels, np.ndarray]:
    """`computation`, in which u is told from alpha also where nothing on one replica accumulates: from model to model, a batch's constant part
    grows with the operators, an update with the parameters. `of_model`: which of the levels say what is trained; the others are alike."""
    found = dict(computation)
    alike: dict[Levels, list[Levels]] = {}
    for levels, (alpha, _, update) in computation.items():
        if alpha and not update and graphs[levels]:
            others = tuple("" if i in of_model else level for i, level in enumerate(levels))
            alike.setdefault(others, []).append(levels)
    for group in alike.values():
        sizes = [(len(graph.operators), graph.parameters) for levels in group if (graph := graphs[levels])]
        if len(set(sizes)) < 2:
            continue
        constant = np.array([computation[levels][0] for levels in group])
        _, each = nnls(np.array(sizes, float) / constant[:, None], np.ones(len(group)))[0]
        for levels, (_, parameters) in zip(group, sizes, strict=True):
            alpha, beta, _ = computation[levels]
            update = min(each * parameters, alpha)
            found[levels] = np.array([alpha - update, beta, update])
    return found


def _graph(model: str, dataset: str) -> Graph | None:
    """A model for a data set; None for one that is not described here."""
    try:
        return model_graph(model, dataset)
    except (InputError, KeyError, ValueError):
        return None


def _earned(parts: Sequence[tuple[Part, np.ndarray]], terms: Sequence[str], apart: bool) -> tuple[float, ...]:
    """The numbers (TERMS) with the least `press` of relative errors, each 0 where it is left out.

    `parts`, with their measured seconds, are those of one carrier; `apart`: whether they tell the CONFOUNDED numbers apart.
    """
    nothing = np.zeros(len(TERMS))
    if not parts:
        return tuple(nothing.tolist())

    def errors(*numbers: float) -> np.ndarray:
        return np.concatenate([part.seconds(*numbers) / seconds - 1 for part, seconds in parts])

    without = errors(*nothing)
    best, least = nothing, press(without, np.empty((len(without), 0)))
    counts = range(1, len(terms) + 1)
    for chosen in itertools.chain.from_iterable(itertools.combinations(terms, count) for count in counts):
        if not apart and set(chosen) >= CONFOUNDED:
            continue
        use = np.isin(TERMS, chosen)
        place = np.eye(len(TERMS))[use]  # x @ place has a 0 for what is left out
        bounds = LIMITS[:, use]
        found = least_squares(lambda x, place=place: errors(*(x @ place)), bounds.mean(axis=0) / 2, bounds=bounds)
        if (score := press(found.fun, found.jac)) < least:
            best, least = found.x @ place, score
    return tuple(best.tolist())


def press(errors: np.ndarray, slopes: np.ndarray) -> float:
    """Sum of squares of the errors that each cell would have, had it been left out of the fit (Allen, Technometrics 16, 1974).

    `errors` [n], `slopes` [n, parameters]: derivatives of the errors. Exact where these are constant.
    """
    if len(errors) <= slopes.shape[1]:
        return math.inf
    leverage = np.einsum("ij,ji->i", slopes, np.linalg.pinv(slopes))
    return float(np.sum((errors / np.maximum(1 - leverage, 1e-6)) ** 2))
