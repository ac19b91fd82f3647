"""Measure the cost of tracing: one of two consecutive epochs is traced, in turn (traced_in_turn.py)."""

import csv
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from document import section, table
from epoch_times import WARM_UP, Bench, alone_here, interval_of_median, ranks_of
from traced_epochs import is_traced

AIM = 1.02
FRAMEWORKS = (
    "pytorch-single", "pytorch-ddp", "pytorch-fsdp", "horovod-pytorch",
    "tensorflow-single", "tensorflow-multiworker", "horovod-tensorflow",
)  # fmt: skip

Pairs = list[tuple[float, float]]  # seconds of an epoch: untraced, traced


@dataclass
class Cost:
    """Pairs of consecutive epochs: wall time, and CPU time of rank 0."""

    time_s: Pairs = field(default_factory=list)
    cpu_s: Pairs = field(default_factory=list)


def measure(frameworks: Sequence[str], trainings: int, epochs: int) -> tuple[dict[str, Cost], float]:
    """Return costs of every framework, measured in turns, and the largest CPU share of other processes."""
    costs = {framework: Cost() for framework in frameworks}
    other_share = 0.0
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as folder:
        bench = Bench(Path(folder), epochs)
        for _ in range(trainings):
            for framework, cost in costs.items():
                with alone_here(framework):
                    attempt, _ = bench.trained(framework, "traced_in_turn", trace="phases")
                with open(attempt / "epochs.csv", newline="") as table:
                    cost.time_s += paired([float(row["epoch_time_s"]) for row in csv.DictReader(table)])
                result = json.loads((attempt / "result.json").read_text())
                cost.cpu_s += paired(result["cpu_s"])
                other_share = max(other_share, result["other_cpu_share"])
    return costs, other_share


def paired(seconds: Sequence[float]) -> Pairs:
    """Return pairs (untraced, traced) of consecutive epochs without the first ones."""
    pairs = []
    for first in range(WARM_UP, len(seconds) - 1, 2):
        earlier, later = seconds[first : first + 2]
        pairs.append((later, earlier) if is_traced(first + 1) else (earlier, later))
    return pairs


def ratio(pairs: Pairs) -> tuple[float, str]:
    """Return the median ratio of traced to untraced, and its interval."""
    ratios = [traced / plain for plain, traced in pairs]
    return statistics.median(ratios), interval_of_median(ratios)


def report(costs: dict[str, Cost], other_share: float, command: str) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for framework, cost in costs.items():
        plain_s, traced_s = (statistics.median(side) for side in zip(*cost.time_s, strict=True))
        (took, took_between), (used, used_between) = ratio(cost.time_s), ratio(cost.cpu_s)
        rows.append([
            framework, str(ranks_of(framework)), str(len(cost.time_s)), f"{1e3 * plain_s:.1f} ms",
            f"{1e3 * traced_s:.1f} ms", f"{took:.3f}", took_between, f"{used:.3f}", used_between,
            f"{AIM}: {'met' if took <= AIM else 'missed'}",
        ])  # fmt: skip
    header = [
        "framework",
        "ranks",
        "pairs",
        "epoch, untraced",
        "traced",
        "ratio",
        "95 % interval",
        "of CPU time",
        "95 % interval",
        "aim",
    ]
    return section(
        "What `trace: phases` costs",
        command,
        table(header, rows),
        "small-cnn on digits: steps of a few milliseconds, of which marks cost a larger share than of long "
        "ones. Of two neighbouring epochs of a training one is traced, the other one first in every second "
        "pair; a ratio is the median of all pairs', its interval between two of them in their order, which "
        "assumes no distribution. CPU time is rank 0's; others disturb it less. In PyTorch another "
        "model is trained, untraced; in TensorFlow the same one, by another graph. What FSDP and Horovod "
        f"call stays wrapped in untraced epochs, too. Other processes used at most {other_share:.1%} of the "
        "processor time meanwhile.",
    )
