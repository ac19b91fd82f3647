"""What limits each cell, by rule: the evidence, its size in seconds of an epoch, and what would help.

RULES is the one list of them. A rule looks at the mean of a cell's runs; the size of what it finds is told run by run, so that it has
an interval. Sizes are what the remedy could save at most, never more than the steps take; remedies of one cause overlap, and their sizes
must not be added. What would help is something that the cell's framework can do, or it is said that another one can.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis import conditions, intervals, tables
from analysis.decomposition import BENCHMARK_COLUMNS, all_reduce_s, gradient_bytes
from analysis.intervals import Estimate, columns
from analysis.measured import title
from analysis.speedup import own_cells
from common.notes import Note
from declared.frameworks import Framework, framework_names, load_framework
from traces import cells
from traces.cells import EXCHANGED, STEP, Measured
from traces.steps import WAIT

TITLE = "What limits each cell, by rule, and what would help"
#: of a step, that a part must take to be named: what is smaller drowns in the noise between runs, and no remedy pays for it
NOTABLE = 0.05
#: times the latency of the sweep, below which a message is small: at twice the latency, half of its time does not depend on its size
NEAR_LATENCY = 2.0
#: times the fastest library of the sweep, from which on a library is called slow: sweeps differ by a tenth or two from day to day
SLOW = 1.5
#: of the communication that backward could hide, below which it is called poorly overlapped: DDP hides half or more where it can
WELL_HIDDEN = 0.5
#: batches that would be accumulated; what three of four exchanges cost goes
ACCUMULATED = 4
NOT_SWEPT = Note("no-sweep", "The network was not swept, so latency and other libraries are not judged.")
#: of what the others wait, that the slowest rank's longer computing must explain to be called its cause
OWN_FAULT = 0.5


@dataclass(frozen=True)
class Cell:
    """What is known of a cell. `runs`: a row per run, seconds of an epoch by phase and part of the exchange, and STEP; `computing`: by
    rank, mean over runs; `alone_s`: computing on one replica; `counted`: exchanges in a step.

    `latency_s`: of the smallest message in the sweep of its framework; `others_s`: what all messages of an epoch take by
    it, by framework; NaN and empty without a sweep. `steps`: of an epoch. `every`: batches for each exchange. `waiting`: for the last
    rank to start an exchange, not hidden, by rank, mean over runs, seconds of an epoch. `levels`: a row of runs.csv.
    """

    runs: pd.DataFrame
    computing: pd.Series
    alone_s: float
    counted: float
    latency_s: float
    others_s: dict[str, float]
    steps: float
    every: float
    waiting: pd.Series = field(default_factory=lambda: pd.Series(dtype=float))
    levels: Mapping[str, Any] = field(default_factory=dict)

    def mean(self, name: str) -> float:
        """Mean over runs, s of an epoch."""
        return float(self.of(name).mean())

    def of(self, name: str) -> pd.Series:
        """By run, 0 where no run has it."""
        return self.runs[name] if name in self.runs else pd.Series(0.0, index=self.runs.index)

    @cached_property
    def busy(self) -> pd.Series:
        """Computing, by run: all phases but waiting."""
        return self.of(STEP) - self.of(WAIT)

    @cached_property
    def computed(self) -> pd.Series:
        """All phases but waiting for the exchange and for data, by run."""
        return self.busy - self.of("data")

    @property
    def others_wait(self) -> pd.Series:
        """What each rank but the slowest waits for the last to start an exchange, by run, if that one waits for nobody."""
        ranks = len(self.computing)
        return self.of("exposed_waiting") * (ranks / (ranks - 1) if ranks > 1 else 1)

    @cached_property
    def hidden(self) -> pd.Series:
        """Communication behind computing, by run."""
        return self.of("communication") - self.of("exposed")

    @property
    def framework(self) -> Framework | None:
        """What its framework says of itself; None of one that is not here any more."""
        name = str(self.levels.get("framework", ""))
        return load_framework(name) if name in framework_names() else None

    @property
    def told(self) -> bool:
        """Whether its exchange is known, or there is none: else phases may hold waiting that nobody marked."""
        return self.counted > 0 or self.levels.get("replicas", 1) <= 1

    @property
    def packs(self) -> str | None:
        """How its library makes messages of gradients (framework.yaml, exchange.messages), as far as it is known."""
        return self.framework.exchange.messages if self.framework and self.framework.exchange else None

    @property
    def accumulates(self) -> bool:
        """Whether its framework can exchange once for ACCUMULATED batches, and that spares exchanges: who exchanges before backward
        gathers parameters, and does so in every batch."""
        before = self.mean("until_first") < 0.99 * (self.mean("data") + self.mean("forward"))
        can = self.framework is None or self.framework.can({**self.levels, "sync_every": ACCUMULATED})
        return can and not (before and self.several)

    @property
    def several(self) -> bool:
        """Whether an update exchanges more than one message; of an epoch's last batches, too few to accumulate, there is one more."""
        return round(self.counted * self.every) > 1

    @property
    def best(self) -> tuple[str, float]:
        """The framework whose library is fastest by the sweep at this cell's messages, and seconds of an epoch."""
        return min(self.others_s.items(), key=lambda entry: entry[1], default=("", math.nan))

    @property
    def slowest(self) -> tuple[int, float]:
        """The rank that computes longest, and by how many seconds of an epoch more than the others' mean."""
        rank = int(self.computing.idxmax())
        others = self.computing.drop(rank)
        return rank, float(self.computing[rank] - others.mean()) if len(others) else 0.0

    def ms(self, seconds: float) -> str:
        """Seconds of an epoch as milliseconds of a step."""
        return f"{tables.number(1e3 * seconds / self.steps)} ms"

    def step(self, name: str) -> float:
        """Mean over runs, s of a step."""
        return self.mean(name) / self.steps


@dataclass(frozen=True)
class Rule:
    """`applies`: whether the evidence is there; `size`: seconds of an epoch, by run; `evidence`: a sentence, whose facts are s of a step;
    `help`: what would."""

    limit: str
    applies: Callable[[Cell], bool]
    size: Callable[[Cell], pd.Series]
    evidence: Callable[[Cell], Note]
    help: Callable[[Cell], Note]


def _small_messages(of: Cell) -> bool:
    each = of.mean("moving") / of.steps / of.counted if of.counted else math.nan
    return of.several and each < NEAR_LATENCY * of.latency_s


def _of_latency(of: Cell) -> pd.Series:
    """What the latencies of all messages but one an update take; that one has at least its own."""
    more, one = (count * of.latency_s * of.steps for count in (of.counted - 1 / of.every, 1 / of.every))
    return np.minimum(np.minimum(of.of("exposed_moving"), of.of("moving") - one), more)


def _poorly_hidden(of: Cell) -> bool:
    could = min(of.mean("communication"), of.mean("backward"))
    return could > 0 and float(of.hidden.mean()) < WELL_HIDDEN * could


def _slow_library(of: Cell) -> bool:
    """Where a library tells one exchange a step, its time may hold waiting for gradients: only what is exposed surely moves."""
    return of.mean("moving" if of.several else "exposed_moving") > SLOW * of.best[1]


def _at_fault(of: Cell) -> bool:
    return len(of.computing) > 1 and of.slowest[1] >= OWN_FAULT * float(of.others_wait.mean())


def _in_turn(of: Cell) -> bool:
    """Whether every rank waits: who is always the last to start waits for nobody."""
    return len(of.waiting) > 1 and not _at_fault(of) and float(of.waiting.min()) >= OWN_FAULT * float(of.waiting.mean())


def _faster(of: Cell) -> Note:
    """What makes computing shorter."""
    if of.framework is None or of.framework.distributed or of.framework.mirrored:
        text = "faster or more processors for each rank; more ranks, as long as the exchange stays small beside it"
        return Note("more-ranks", text)
    return Note("distributed-framework", "faster or more processors; a framework that trains on several ranks")


def _other_library(of: Cell) -> Note:
    why = "the reason why this one is slower beside computing than in the sweep (cores for its threads)"
    if of.best[0] == of.levels.get("framework"):
        return Note("cores-for-communication", why)
    return Note("other-library", f"the all-reduce of {of.best[0]}, or {why}", library=of.best[0])


def _fewer(of: Cell) -> Note:
    if of.accumulates:
        text = f"one exchange for {ACCUMULATED} accumulated batches (sync_every), or larger batches"
        return Note("accumulate", text, batches=ACCUMULATED)
    text = f"larger batches (the size is that of batches {ACCUMULATED} times as large)"
    return Note("larger-batches", text, times=ACCUMULATED)


def _overlapped(of: Cell) -> Note:
    """What makes a library exchange beside backward, by how it makes messages."""
    ways = {
        "buckets": "buckets that are sent while backward goes on (a smaller first bucket), or a core for its communication threads",
        "fusion": "a shorter cycle, so that gradients leave earlier (HOROVOD_CYCLE_TIME), or a core for its communication thread",
        "ends": "a framework that sends gradients while backward goes on: this one has them all first",
    }
    text = ways.get(of.packs or "", "a core for communication; else a framework that exchanges beside backward")
    return Note("overlap", text, packs=of.packs)


def _larger(of: Cell) -> Note:
    """What makes a library's messages larger."""
    ways = {
        "buckets": "larger buckets (DDP's bucket_cap_mb)",
        "fusion": "a longer cycle, so that more gradients are fused into one message (HOROVOD_CYCLE_TIME)",
    }
    text = ways.get(of.packs or "", "more parameters or gradients in a message, or a framework that does so")
    return Note("larger-messages", text, packs=of.packs)


def _equal(of: Cell) -> Note:
    """What makes ranks end together."""
    equal = "equal ranks: the same processors, cores and load"
    if of.framework is not None and of.framework.unlike:
        return Note(
            "measured-shares", f"{equal}; or a smaller share of the batch for the slower one (shares: measured)"
        )
    able = [name for name in framework_names() if load_framework(name).unlike]
    text = f"{equal}; or shares of the batch by speed, which {' and '.join(able)} can give" if able else equal
    return Note("equal-ranks", text, able=able)


def _computing(of: Cell) -> Note:
    computed, longest = float(of.computed.mean()), _largest(of)
    text = f"Computing takes {of.ms(computed)} of a step of {of.ms(of.mean(STEP))}; its longest phase is {cells.PHASES.get(longest, 'one phase')}."
    return Note("computing-longest", text, computed=computed / of.steps, step=of.step(STEP), longest=longest)


def _exchange_longest(of: Cell) -> Note:
    busy = float(of.busy.mean())
    text = f"The exposed exchange takes {of.ms(of.mean('exposed'))} of a step, computing only {of.ms(busy)}."
    return Note("exchange-longest", text, exposed=of.step("exposed"), busy=busy / of.steps)


def _other_is_faster(of: Cell) -> Note:
    library, seconds = of.best
    moves = f"Bytes move for {of.ms(of.mean('moving'))} of a step; "
    if not of.several:
        moves = f"Bytes move for {of.ms(of.mean('exposed_moving'))} of a step that no computing hides; "
    text = f"{moves}by the sweep the same messages take {of.ms(seconds)} in the library of {library}."
    moving = of.step("moving" if of.several else "exposed_moving")
    return Note("faster-library", text, moving=moving, library=library, by_sweep=seconds / of.steps)


def _often(of: Cell) -> Note:
    text = (
        f"There is an exchange every {'batch' if of.every <= 1 else f'{of.every:g} batches'}; bytes move for "
        f"{of.ms(of.mean('exposed_moving'))} of a step that no computing hides."
    )
    return Note("exchanges-often", text, every=of.every, exposed_moving=of.step("exposed_moving"))


def _little_hidden(of: Cell) -> Note:
    hidden = float(of.hidden.mean())
    text = (
        f"Of {of.ms(of.mean('communication'))} of communication {of.ms(hidden)} is hidden; the backward pass, which "
        f"could hide it, takes {of.ms(of.mean('backward'))}. The first exchange begins {of.ms(of.mean('until_first'))} after the step does."
    )
    seconds = {name: of.step(name) for name in ("communication", "backward", "until_first")}
    return Note("little-hidden", text, hidden=hidden / of.steps, **seconds)


def _near_latency(of: Cell) -> Note:
    each = of.step("moving") / of.counted
    text = (
        f"{tables.number(of.counted)} exchanges in a step move for {tables.number(1e3 * of.mean('moving') / of.steps / of.counted)} ms each, "
        f"less than {NEAR_LATENCY:g} times the {tables.number(1e3 * of.latency_s)} ms that the smallest message takes in the sweep."
    )
    return Note("messages-small", text, exchanges=of.counted, each=each, latency=of.latency_s)


def _slower_rank(of: Cell) -> Note:
    rank, longer = of.slowest
    text = (
        f"Ranks wait {of.ms(of.mean('exposed_waiting'))} of a step for the last one to start an exchange; rank {rank} computes "
        f"{of.ms(longer)} longer than the others."
    )
    return Note("rank-slower", text, waiting=of.step("exposed_waiting"), rank=rank, longer=longer / of.steps)


def _none_always_last(of: Cell) -> Note:
    rank, longer = of.slowest
    least = float(of.waiting.min())
    text = (
        f"Ranks wait {of.ms(of.mean('exposed_waiting'))} of a step for the last one to start an exchange, and none is always the last: each "
        f"waits {of.ms(least)} or more. The slowest, {rank}, computes only {of.ms(longer)} longer than the others."
    )
    facts = {
        "waiting": of.step("exposed_waiting"),
        "least": least / of.steps,
        "rank": rank,
        "longer": longer / of.steps,
    }
    return Note("ranks-wait-in-turn", text, **facts)


def _slower_together(of: Cell) -> Note:
    busy = float(of.busy.mean())
    text = (
        f"The same batch takes {of.ms(busy)} of computing here and {of.ms(of.alone_s)} on one rank: ranks share caches, memory "
        "or cores, or communication takes cores from them."
    )
    return Note("slower-than-alone", text, busy=busy / of.steps, alone=of.alone_s / of.steps)


def _waits_for_data(of: Cell) -> Note:
    return Note("waits-for-data", f"A step waits {of.ms(of.mean('data'))} for its batch.", data=of.step("data"))


def _advice(code: str, text: str) -> Callable[[Cell], Note]:
    """What would help every cell alike."""
    return lambda of: Note(code, text)


RULES = (
    Rule(
        "computation",
        lambda of: of.told and float(of.computed.mean()) > of.mean(WAIT),
        lambda of: of.computed,
        _computing,
        _faster,
    ),
    Rule(
        "exchange longer than computation",
        lambda of: of.mean("exposed") > float(of.busy.mean()),
        lambda of: of.of("exposed"),
        _exchange_longest,
        _advice("fewer-ranks", "fewer ranks, or more work for each: a larger batch"),
    ),
    Rule(
        "slow all-reduce",
        _slow_library,
        lambda of: np.minimum(of.of("exposed_moving"), of.of("moving") - of.best[1]),
        _other_is_faster,
        _other_library,
    ),
    Rule(
        "frequent exchanges",
        lambda of: of.counted > 0 and of.every < ACCUMULATED,
        lambda of: of.of("exposed_moving") * (1 - of.every / ACCUMULATED),
        _often,
        _fewer,
    ),
    Rule(
        "exchange behind computation, not beside it",
        _poorly_hidden,
        lambda of: np.minimum(of.of("exposed_moving"), (of.of("backward") - of.hidden).clip(lower=0)),
        _little_hidden,
        _overlapped,
    ),
    Rule(
        "many small messages",
        _small_messages,
        _of_latency,
        _near_latency,
        _larger,
    ),
    Rule(
        "a slower rank",
        _at_fault,
        lambda of: of.others_wait.clip(upper=of.slowest[1]),  # who waits longer waits for something else, too
        _slower_rank,
        _equal,
    ),
    Rule(
        "ranks wait for each other in turn",
        _in_turn,
        lambda of: of.of("exposed_waiting"),
        _none_always_last,
        _advice(
            "less-noise",
            "less noise: ranks bound to cores, no other programs; fewer exchanges, over which it averages out",
        ),
    ),
    Rule(
        "computation slower than on one rank",
        lambda of: of.told and not math.isnan(of.alone_s),
        lambda of: of.busy - of.alone_s,
        _slower_together,
        _advice("own-cores", "ranks bound to cores of their own, fewer ranks on a machine, a core for communication"),
    ),
    Rule(
        "input",
        lambda of: True,
        lambda of: of.of("data"),
        _waits_for_data,
        _advice("faster-input", "more cores for preparing batches, data in memory, less augmentation"),
    ),
)


def _largest(of: Cell) -> str:
    """The longest phase of computing; empty where no phase is known."""
    names = [name for name in of.runs if name in cells.PHASES and name not in (WAIT, "data")]
    return max(names, key=of.mean) if names else ""


def of_cells(measured: Measured, network: pd.DataFrame) -> dict[str, Cell]:
    """What is known of every cell, in the order of tables. `network`: network.csv, without rows where nothing was swept."""
    if not measured.order:
        return {}
    found = (
        measured.wide("step")
        .join(measured.wide("exchange").drop(columns=STEP, errors="ignore"), how="left")
        .fillna(0.0)
    )
    counts = measured.wide("exchange", "count").get("communication", pd.Series(dtype=float))
    alone, ok = own_cells(measured.runs), measured.ok.set_index("run_id")
    step_s = measured.wide("step", "step_s")
    busy = (step_s[STEP] - step_s.get(WAIT, 0.0)).groupby(measured.cell_of.reindex(step_s.index)).mean()
    at_steps, at_exchange = (measured.current["scope"] == scope for scope in ("step", "exchange"))
    ranks = _by_rank(measured, at_steps & (measured.current["phase"] != WAIT))
    waiting = _by_rank(measured, at_exchange & (measured.current["phase"] == "exposed_waiting"))
    made = {}
    for cell in measured.order:
        mine = [run for run in found.index if measured.cell_of.get(run) == cell]
        if not mine:
            continue
        row, steps = ok.loc[mine[0]], float(ok.loc[mine, "steps"].astype(float).mean())
        counted = float(counts.reindex(mine).fillna(0.0).mean()) if row["replicas"] > 1 else 0.0
        apart = alone.get(cell) if row["replicas"] > 1 else None
        latency, others = _by_sweep(row, network, counted, steps)
        own = found.loc[mine, [name for name in found if row["replicas"] > 1 or name not in EXCHANGED]]
        made[cell] = Cell(
            own,
            ranks[cell],
            steps * float(busy.get(apart, math.nan)),
            counted,
            latency,
            others,
            steps,
            float(row["sync_every"]),
            waiting[cell] if cell in waiting and row["replicas"] > 1 else pd.Series(dtype=float),
            row.to_dict(),
        )
    return made


def _by_rank(measured: Measured, kept: pd.Series) -> dict[str, pd.Series]:
    """Cell -> what the rows that are `kept` come to of each rank, seconds of an epoch, mean over runs."""
    mine = measured.current[kept]
    of_run = mine.groupby(["cell", "run_id", "rank"])["seconds"].sum()
    return {str(cell): some.groupby("rank").mean() for cell, some in of_run.groupby(level="cell")}


def _by_sweep(row: pd.Series, network: pd.DataFrame, counted: float, steps: float) -> tuple[float, dict[str, float]]:
    """Seconds of the smallest message in the sweep of the cell's framework, and of all messages of an epoch in the libraries of all
    frameworks that were swept at its nodes and links."""
    at = network
    for name in (*(name for name in BENCHMARK_COLUMNS if name != "framework"), "ranks"):
        at = at[at[name] == row[name]]
    own = at[at["framework"] == row["framework"]]
    smallest = float(own["bytes"].min()) if own["bytes"].notna().any() else math.nan
    latency = all_reduce_s(own, smallest).value if len(own) else math.nan
    if not counted:
        return latency, {}
    size = gradient_bytes(row["model"], row["dataset"]) / (counted * float(row["sync_every"]))
    seconds = {str(name): counted * steps * all_reduce_s(some, size).value for name, some in at.groupby("framework")}
    return latency, {name: value for name, value in seconds.items() if not math.isnan(value)}


def found(of: Cell) -> Iterator[tuple[Rule, Estimate]]:
    """The rules that apply to a cell, with the size of what they find; the largest first."""
    least = NOTABLE * of.mean(STEP)
    hit = [
        (rule, intervals.mean(np.minimum(rule.size(of), of.of(STEP)).to_numpy(float), minimum=0.0))
        for rule in RULES
        if rule.applies(of)
    ]
    yield from sorted(((rule, size) for rule, size in hit if size.value >= least), key=lambda entry: -entry[1].value)


def summarize(measured: Measured, network: pd.DataFrame) -> pd.DataFrame:
    """One row per cell and limit, the largest of a cell first."""
    rows = []
    for cell, of in of_cells(measured, network).items():
        for place, (rule, size) in enumerate(found(of), start=1):
            rows.append(
                {
                    "cell": cell,
                    "place": place,
                    "limit": rule.limit,
                    "n": size.n,
                    **columns("seconds", size),
                    "share": size.value / of.mean(STEP),
                    "evidence": rule.evidence(of),
                    "help": rule.help(of),
                }
            )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["cell", "limit"])


def _untold(measured: Measured, network: pd.DataFrame) -> str:
    """The cells whose exchange is not told, in a sentence; empty for none."""
    cells_untold = [cell for cell, of in of_cells(measured, network).items() if not of.told]
    text = f"Exchange not told, so that computing is not told from waiting: {conditions.join_names(cells_untold)}."
    return Note("exchange-not-told", text, cells=cells_untold) if cells_untold else ""


def table(measured: Measured, network: pd.DataFrame) -> tables.Table:
    """The table."""
    data = summarize(measured, network)
    if data.empty:
        return cells.nothing(TITLE, measured)
    again = (data["cell"] == data["cell"].shift()).to_numpy()
    names = cells.levels(measured.runs, data["cell"])
    shown = {name: texts.where(~again, "") for name, texts in names.items()}
    shown |= {
        "limit": data["limit"],
        "seconds of an epoch": pd.Series(cells.texts(data, "seconds")),
        "of the steps (%)": pd.Series([tables.percent(share) for share in data["share"]]),
        "evidence": data["evidence"],
        "what would help": data["help"],
    }
    notes = [
        cells.runs_behind(measured, "In brackets the interval."),
        Note(
            "seconds-saved-at-most",
            f"Seconds: what the remedy could save at most. Those of one cause overlap and must not be added. Named is what takes {100 * NOTABLE:g} % of the steps.",
            least_share=NOTABLE,
        ),
        Note(
            "thresholds",
            "Thresholds: a message is small below "
            f"{NEAR_LATENCY:g} times the latency of the sweep; a library slow above {SLOW:g} times the fastest; an exchange poorly overlapped where less than "
            f"{100 * WELL_HIDDEN:g} % of what backward could hide is hidden; a rank is the cause where its longer computing is {100 * OWN_FAULT:g} % of what the others wait.",
        ),
        _untold(measured, network),
        "" if len(network) else NOT_SWEPT,
        *measured.notes,
        conditions.setting_note(measured.runs),
    ]
    words = [*(title(name) for name in ("framework", "model", "dataset")), "limit", "evidence", "what would help"]
    parts = [row for row in range(1, len(data)) if not again[row]]
    return tables.Table(
        TITLE, cells.with_factors(measured.runs, data), pd.DataFrame(shown), [n for n in notes if n], words, parts
    )
