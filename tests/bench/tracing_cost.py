"""What tracing costs: every other epoch of a training is traced (traced_in_turn.py), the other one first in every second pair."""

import csv
import json
import statistics
import tempfile
from collections.abc import Sequence
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


def measure(frameworks: Sequence[str], trainings: int, epochs: int) -> tuple[dict[str, Pairs], float]:
    """All pairs of all trainings of every framework, the frameworks in turn; and the largest share of the processors that
    others had meanwhile."""
    made: dict[str, Pairs] = {framework: [] for framework in frameworks}
    foreign = 0.0
    with tempfile.TemporaryDirectory(prefix="ringside-bench-") as folder:
        bench = Bench(Path(folder), epochs)
        for _ in range(trainings):
            for framework in frameworks:
                with alone_here(framework):
                    attempt, _ = bench.trained(framework, "traced_in_turn", trace="phases")
                made[framework] += paired(attempt)
                foreign = max(foreign, json.loads((attempt / "result.json").read_text())["foreign_cpu_share"])
    return made, foreign


def paired(attempt: Path) -> Pairs:
    """Neighbouring epochs of a training, without the first ones."""
    with open(attempt / "epochs.csv", newline="") as table:
        times_s = [float(row["epoch_time_s"]) for row in csv.DictReader(table)]
    pairs = []
    for first in range(WARM_UP, len(times_s) - 1, 2):
        one, other = times_s[first : first + 2]
        pairs.append((other, one) if is_traced(first + 1) else (one, other))
    return pairs


def report(made: dict[str, Pairs], foreign: float, command: str) -> str:
    """The part of the document."""
    rows = []
    for framework, pairs in made.items():
        plain_s, traced_s = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = [traced / plain for plain, traced in pairs]
        ratio = statistics.median(ratios)
        rows.append([
            framework, str(ranks_of(framework)), str(len(pairs)), f"{1e3 * plain_s:.1f} ms", f"{1e3 * traced_s:.1f} ms",
            f"{ratio:.3f}", interval_of_median(ratios), f"{AIM}: {'met' if ratio <= AIM else 'missed'}",
        ])  # fmt: skip
    return section(
        "What `trace: phases` costs",
        command,
        table(["framework", "ranks", "pairs", "epoch, untraced", "traced", "ratio", "95 % interval", "aim"], rows),
        f"small-cnn on digits: steps of a few milliseconds, of which marks cost a larger share than of long ones. Of two neighbouring epochs "
        f"of a training one is traced, the other one first in every second pair; the ratio is the median of all pairs', its interval between "
        f"two of them in their order, which assumes no distribution. In PyTorch another model is trained, untraced; in TensorFlow the same "
        f"one, by another graph. What FSDP and Horovod call stays wrapped in untraced epochs, too. Others used at most {foreign:.1%} of "
        f"the processor time meanwhile.",
    )
