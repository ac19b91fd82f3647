"""Generate runs and collective benchmarks from known costs, which predictions have to recover.

The loops are independent of the prediction's code. They simulate PyTorch DDP's buckets on a ring, or FSDP's
units (`Sharded`). Change a field of `Truth` for other true values, or override `seconds_of` for costs that
the prediction does not model.
"""

import itertools
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records import read_runs
from common.schemas import schema
from common.tables import read_table, write_table
from declared.factors import factor_names
from declared.models import model_graph
from plan.collective_benchmarks import message_sizes

MIB = 2**20
SAMPLES = 46080
HARTER = {1: 0.0, 2: 0.56419, 3: 0.84628, 4: 1.02938, 6: 1.26721, 8: 1.42360}  # Biometrika 48 (1961), table 1
NODES = (1, 2, 3, 4, 6)
BATCHES = (32, 64, 128)
RATES = (12.5e6, 37.5e6, 125e6)


@dataclass(frozen=True)
class Truth:
    """True costs of a framework on a network.

    Attributes:
        batch_s: Fixed time of a batch.
        sample_s: Time of a sample.
        update_s: Time of an optimizer step.
        step_s: Latency of a step of the ring.
        share: Share of the link rate that messages reach.
        byte_s: CPU time of a byte.
        hidden: Share of the backward pass that overlaps with communication.
        sigma: Relative standard deviation of a batch's time.
        way: How latency, link and CPU times combine: pipelined, sum or largest.
    """

    batch_s: float = 0.010
    sample_s: float = 0.0004
    update_s: float = 0.002
    step_s: float = 0.0005
    share: float = 0.9
    byte_s: float = 1.0e-9
    hidden: float = 0.0
    sigma: float = 0.0
    way: str = "pipelined"

    def bytes_s(self, size, nodes, rate):
        """Return the time in s that the bytes of one all-reduce take on the link or in the processors."""
        combine = sum if self.way == "sum" else max
        return 2 * (nodes - 1) / nodes * size * combine([1 / (self.share * rate), self.byte_s])

    def all_reduce(self, size, nodes, rate):
        """Return the time of one all-reduce on a ring in s."""
        latency = self.step_s * (nodes - 1)
        return (max if self.way == "largest" else sum)([latency, self.bytes_s(size, nodes, rate)])

    def collective(self, name, size, nodes, rate):
        """Return the time in s that a collective benchmark measures; None if it does not measure this."""
        return self.all_reduce(size, nodes, rate) if name == "all_reduce" else None

    def communication_s(self, model, dataset, nodes, rate, backward_s, batches=1):
        """Return by how many seconds DDP's buckets outlast the backward pass.

        Two buckets may be under way at a time; they share the link.
        """
        graph = model_graph(model, dataset)
        done, bucket, ready_buckets = 0, 0, []
        for operator in reversed(graph.operators):
            done += operator.macs
            for shape in reversed([s for w, s in operator.weights.items() if w not in ("mean", "variance")]):
                bucket += 4 * math.prod(shape)
                if bucket >= (25 * MIB if ready_buckets else MIB):
                    ready_buckets.append((bucket, -self.hidden * backward_s * (1 - done / graph.macs)))
                    bucket = 0
        if bucket:
            ready_buckets.append((bucket, 0.0))
        link_free, ends = -math.inf, []
        for size, ready in ready_buckets:
            start = max(ready, ends[-2]) if len(ends) > 1 else ready
            link_free = max(link_free, start) + self.bytes_s(size, nodes, rate)
            ends.append(max(start + self.all_reduce(size, nodes, rate), link_free))
        return max(0.0, *ends)

    def seconds_of(self, model, dataset, nodes, batch, rate, every=1):
        """Return the time of an epoch in s."""
        steps = SAMPLES // (nodes * batch)
        n_allreduces = -(-steps // every)
        computed = self.batch_s + self.sample_s * batch
        beyond = (
            self.communication_s(model, dataset, nodes, rate, 2 / 3 * computed, steps / n_allreduces)
            if nodes > 1
            else 0.0
        )
        waiting = math.sqrt(steps / n_allreduces) * computed * self.sigma * HARTER[nodes]
        return steps * computed + n_allreduces * (self.update_s + beyond + waiting)


@dataclass(frozen=True)
class Sharded(Truth):
    """True costs of FSDP: an all-gather is a pass of the ring, a reduce-scatter takes `gloo` times as long."""

    gloo: float = 2.0

    def collective(self, name, size, nodes, rate):
        """Return the time of a collective in s; an all-reduce makes two passes of the ring."""
        passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": self.gloo}[name]
        return passes / 2 * self.all_reduce(size, nodes, rate)

    def communication_s(self, model, dataset, nodes, rate, backward_s, batches=1):
        """Return by how many seconds messages extend the batches of one optimizer step.

        A list schedule places each task in order on the link or the processor.
        """
        units, macs, root = [], [], [0, 0]
        place = None
        for operator in model_graph(model, dataset).operators:
            own = sum(4 * math.prod(s) for w, s in operator.weights.items() if w not in ("mean", "variance"))
            if model.startswith("resnet"):  # A unit for each block, and one for the rest.
                before, place = place, operator.name.split("_")[:2] if "_block" in operator.name else None
                if place is None:
                    root = [root[0] + own, root[1] + operator.macs]
                    continue
                is_first = place != before
            else:
                is_first = not units or (own and units[-1] >= 25 * MIB)
            if is_first:
                units.append(0), macs.append(0)
            units[-1] += own
            macs[-1] += operator.macs
        if any(root):
            units.append(root[0]), macs.append(root[1])
        work = [self.hidden * backward_s * mine / sum(macs) for mine in macs]
        gather, scatter = (
            [self.collective(name, size, nodes, rate) for size in units]
            for name in ("all_gather", "reduce_scatter")
        )
        *inner_units, root = range(len(units))

        def lasts(first, last):
            start, end, free = {}, {}, {"link": 0.0, "processor": 0.0}

            def do(task, resource, seconds, after=()):
                start[task] = max([free[resource], *after])
                end[task] = free[resource] = start[task] + seconds

            if first:
                do(("gather", root), "link", gather[root])
            free["processor"] = free["link"]
            before = free["link"]
            for unit in inner_units:
                if first:
                    do(("gather", unit), "link", gather[unit], [before])
                do(("forward", unit), "processor", work[unit] / 2, [end.get(("gather", unit), 0.0)])
                before = start["forward", unit]
            do(("forward", root), "processor", work[root] / 2)
            do(("backward", root), "processor", work[root])
            above = root
            for unit in inner_units[::-1]:
                do(("again", unit), "link", gather[unit], [start["backward", above]])
                if last and above != root:
                    do(("scatter", above), "link", scatter[above], [end["backward", above]])
                do(("backward", unit), "processor", work[unit], [end["again", unit]])
                above = unit
            for unit in {0, root} if last else ():
                do(("scatter", unit), "link", scatter[unit], [free["processor"]])
            return max(free.values() if last else [free["processor"]]) - 1.5 * sum(work)

        return lasts(True, True) + (batches - 1) * lasts(False, False)


def runs(
    truth=None,
    folder=None,
    *,
    nodes=NODES,
    batches=BATCHES,
    rates=RATES,
    every=(1,),
    models=("small-cnn",),
    noise=0.02,
    replicates=3,
    seed=1,
    framework="pytorch-ddp",
):
    """Return runs as `read_runs` returns runs.csv, and write them to `folder` if given."""
    truth, rng = truth or Truth(), np.random.default_rng(seed)
    table, rows = schema("factors")["properties"], []
    for model, n, batch, rate, k, replicate in itertools.product(
        models, nodes, batches, rates, every, range(1, replicates + 1)
    ):
        steps = SAMPLES // (n * batch)
        levels = {name: entry.get("default") for name, entry in table.items()}
        levels |= {
            "framework": framework,
            "model": model,
            "dataset": "digits",
            "batch_size": batch,
            "nodes": n,
            "sync_every": k,
        }
        levels |= {"bandwidth": round(8 * rate / 1e6)} if "bandwidth" in levels else {}
        seconds = truth.seconds_of(model, "digits", n, batch, rate, k) * (1 + noise * rng.standard_normal())
        cell = f"{framework}.{model}.digits.b{batch}.n{n}.s{k}.link={rate / 125e3:g}"
        rows.append(
            {
                **{name: levels[name] for name in factor_names()},
                "run_id": f"{cell}.r{replicate}", "study": "known", "cell": cell, "replicate": replicate,
                "block": replicate, "order_key": float(replicate), "seed": replicate, "replicas": n,
                "ranks": n, "local_batch": batch, "effective_batch": batch * n * k,
                "baseline": "pytorch-single",
                "key": "0" * 12, "status": "ok", "reason": None, "epoch_time_s": seconds,
                "placement": "virtual", "bandwidth_bytes_s": rate, "timing_scope": "ranks",
                "samples_per_epoch": SAMPLES, "samples_trained": steps * n * batch, "steps": steps,
                "n_allreduces": -(-steps // k), "cpu_share": 0.3, "cpu_shares": None, "rank_samples": None,
                "steal_share": 0.0, "deployment": "venv", "max_other_cpu_share": 0.05,
            }
        )  # fmt: skip
        # epoch times are scaled to the data set's samples
        rows[-1]["epoch_time_s"] *= SAMPLES / rows[-1]["samples_trained"]
    return written(pd.DataFrame(rows), "runs", folder)


def joined(*frames):
    """Return the runs of several studies as one table."""
    return written(pd.concat([frame.astype(object) for frame in frames], ignore_index=True), "runs", None)


def network(
    truth=None,
    folder=None,
    *,
    nodes=NODES,
    rates=RATES,
    noise=0.02,
    seed=2,
    framework="pytorch-ddp",
    collectives=("all_reduce",),
):
    """Return benchmarks as `read_table` returns network.csv, and write them to `folder` if given."""
    truth, rng = truth or Truth(), np.random.default_rng(seed)
    rows = [
        {
            "study": "known", "collective": collective, "framework": framework, "nodes": n, "ranks": n,
            "key": "0" * 12, "status": "ok", "reason": None, "placement": "virtual", "link_bytes_s": rate,
            "bytes": size, "round": number, "repetition": 1,
            "seconds": truth.collective(collective, size, n, rate) * (1 + noise * rng.standard_normal()),
            "bus_bandwidth_bytes_s": 1.0,
        }
        for n in nodes
        if n > 1
        for collective, rate, size,
        number in itertools.product(collectives, rates, message_sizes(64 * MIB), range(1, 6))
    ]  # fmt: skip
    return written(
        pd.DataFrame(rows, columns=None if rows else schema("network")["required"]), "network", folder
    )


def written(frame, name, folder):
    """Write a table to a file in `folder`, and return what its reader returns for it."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(folder or scratch) / f"{name}.csv"
        write_table(frame.drop(columns="n_devices", errors="ignore"), name, file)
        return read_runs(file) if name == "runs" else read_table(file, name)
