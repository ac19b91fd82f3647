"""Compare estimates of memory with allocations by PyTorch: `make bench-memory`.

Each case takes two real steps on processors, on samples of zeros; the ranks share this machine's loopback.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from common.files import write_json
from common.program_sources import SCRIPTS
from declared.site import Site, load_site
from document import machine, table
from environments.built import read_built
from environments.record import BuiltEnvironment
from plan.identity import environment_of
from plan.memory import MemoryEstimate, memory_estimate_input
from runs.memory_estimates import estimate
from support.one_run import one_run

RANK = Path(__file__).with_name("memory_rank.py")
LIMIT_S = 300
IMAGES = {"dataset": "synthetic-96x96x3-10-1500", "batch_size": 16}
TOKENS = {
    "model": "gpt-nano",
    "dataset": "synthetic-tokens-64-32-1280",
    "batch_size": 32,
    "optimizer": "adam",
}
WIDE = {"model": "wide-mlp", "dataset": "digits", "batch_size": 32, "optimizer": "adam"}
COMMON = {"nodes": 1, "sync_every": 1, "learning_rate": 0.01, "epochs": 2}
MESH = {"framework": "pytorch-mesh"}
PIPELINE = {**MESH, "nodes": 2, "parallelism": "pipeline", "microbatches": 4}
STRATEGY = {"framework": "pytorch-strategy", "batch_scope": "global", "nodes": 2, "parallelism": "expert"}
ZERO = {"framework": "deepspeed", "nodes": 2, "parallelism": "sharded"}
#: levels of each case; nodes have one rank
CASES: tuple[dict[str, Any], ...] = (
    {"framework": "pytorch-single", "model": "resnet-18", **IMAGES},
    {"framework": "pytorch-single", **TOKENS, "model": "rnn-nano"},
    {"framework": "pytorch-single", **TOKENS},
    {"framework": "pytorch-single", **TOKENS, "precision": "amp"},
    {"framework": "pytorch-single", **WIDE},
    {"framework": "pytorch-ddp", "nodes": 2, "model": "resnet-18", **IMAGES},
    {"framework": "pytorch-ddp", "nodes": 2, **TOKENS},
    {"framework": "pytorch-ddp", "nodes": 2, **WIDE, "sync_every": 4},
    {"framework": "pytorch-fsdp", "nodes": 2, "model": "resnet-18", **IMAGES},
    {"framework": "pytorch-fsdp", "nodes": 4, **TOKENS},
    {"framework": "pytorch-fsdp", "nodes": 2, **TOKENS, "precision": "amp"},
    {"framework": "pytorch-fsdp", "nodes": 4, **WIDE},
    {**MESH, "nodes": 4, "parallelism": "sharded", **WIDE},
    {**MESH, "nodes": 2, "parallelism": "tensor", **TOKENS},
    {**MESH, "nodes": 4, "parallelism": "data2-tensor2", **WIDE},
    {**PIPELINE, **TOKENS},
    {**PIPELINE, "nodes": 4, "schedule": "1f1b", **WIDE},
    {**PIPELINE, "schedule": "interleaved-1f1b", **TOKENS},
    {**PIPELINE, "schedule": "zero-bubble", **TOKENS},
    {**MESH, "nodes": 4, "parallelism": "sharded2-tensor2", **TOKENS},
    {**STRATEGY, "model": "alexnet", "dataset": "digits", "batch_size": 16},
    {**STRATEGY, **TOKENS},
    {"framework": "deepspeed", "nodes": 2, **TOKENS},
    {**ZERO, "sharding": "optimizer", **WIDE},
    {**ZERO, "sharding": "gradients", **TOKENS},
    {**ZERO, "sharding": "parameters", **TOKENS},
    {**ZERO, "sharding": "parameters", **WIDE},
)


class Row(NamedTuple):
    """A case, its estimate, and the peak of its rank that needed most, bytes."""

    levels: Mapping[str, Any]
    estimate: MemoryEstimate
    allocated_bytes: int


def measure_ranks(environment: BuiltEnvironment, content: Mapping[str, Any]) -> list[dict[str, int]]:
    """Return what each rank measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_json(folder / "rank_input.json", content)
        processes = [
            subprocess.Popen(
                [environment["python"]["executable"], str(RANK), str(folder)],
                env=os.environ
                | environment["variables"]
                | {
                    "PYTHONPATH": str(SCRIPTS),
                    "OMP_NUM_THREADS": "1",
                    "RINGSIDE_RANK": str(rank),
                    "RINGSIDE_ALARM_S": str(LIMIT_S),
                },
                stdout=sys.stderr,
            )
            for rank in range(content["spec"]["ranks"])
        ]
        for process in processes:
            process.wait()
        ranks: list[dict[str, int]] = json.loads((folder / "measured.json").read_text())
        return ranks


def measure(site: Site, cases: tuple[dict[str, Any], ...] = CASES) -> list[Row]:
    """Return a row for each case."""
    planned = [one_run(site, **{**COMMON, **levels}) for levels in cases]
    rows = []
    for _, members in itertools.groupby(
        zip(cases, planned, strict=True), lambda case: case[1][0].framework.environment
    ):
        same_environment = list(members)
        inputs = [
            memory_estimate_input(run.framework, run.graph, spec) for _, (run, spec) in same_environment
        ]
        environment = read_built(environment_of(site, same_environment[0][1][0].framework))
        for (levels, _), content, entry in zip(
            same_environment, inputs, estimate(site, environment, inputs), strict=True
        ):
            allocated = max(rank["peak_bytes"] for rank in measure_ranks(environment, content))
            rows.append(Row(levels, entry, allocated))
            print(describe(rows[-1]), file=sys.stderr, flush=True)
    return rows


def megabytes(n_bytes: float) -> str:
    """Return megabytes with so many decimals that a reader can recompute the error of small estimates."""
    return f"{n_bytes / 1e6:.{1 if n_bytes >= 1e8 else 2}f}"


def describe(row: Row) -> list[str]:
    """Return the cells of a row of the table."""
    levels = row.levels
    names = ("precision", "sync_every", "schedule", "sharding")
    extra = [f"{name} {levels[name]}" for name in names if name in levels]
    cell = ", ".join(filter(None, [levels["framework"], levels.get("parallelism"), *extra]))
    case = [cell, levels["model"], str(levels.get("nodes", 1))]
    if row.estimate.tensor_bytes is None:
        return [*case, str(row.estimate.error), "", ""]
    estimated = sum(row.estimate.tensor_bytes.values())
    return [
        *case,
        megabytes(estimated),
        megabytes(row.allocated_bytes),
        f"{100 * (estimated / row.allocated_bytes - 1):+.1f} %".replace("-", "−"),
    ]


def main() -> None:
    """Print the table, with the machine."""
    site = replace(load_site("local"), nodes=4, reference=False)
    header = ("framework", "model", "ranks", "estimated (MB)", "allocated (MB)", "error")
    print(machine(), table(header, [describe(row) for row in measure(site)]), sep="\n\n")


if __name__ == "__main__":
    main()
