"""Compare training in an image with training in a virtual environment: `make bench-overhead ARGS=images`."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from declared.environments import VENV, Realization
from document import section, table
from epoch_times import BATCH_SIZE, WARM_UP, Bench, Training, check_same_work, ranks_of, watched

AIM = 1.02
CONFIDENCE = 0.95


def measure(
    frameworks: Sequence[str], pairs: int, epochs: int, base: str
) -> tuple[dict[str, list[tuple[Training, Training]]], list[list[str]]]:
    """Return pairs (virtual environment, image) of every framework, and table rows that describe images."""
    trainings: dict[str, list[tuple[Training, Training]]] = {framework: [] for framework in frameworks}
    with tempfile.TemporaryDirectory(prefix="ringside-bench-", dir="/var/tmp") as folder:
        benches = [
            Bench(Path(folder, way), epochs, realization)
            for way, realization in (("venv", VENV), ("image", Realization("apptainer", base)))
        ]
        described = _images(frameworks, *benches)
        for number in range(pairs):
            for framework in frameworks:
                order = benches if number % 2 else benches[::-1]
                trained = {bench: watched(bench.train_worker, framework) for bench in order}
                venv, image = (trained[bench] for bench in benches)
                check_same_work(framework, venv, image)
                trainings[framework].append((venv, image))
                ratio = image.epoch_time_s / venv.epoch_time_s
                print(f"[{number + 1}/{pairs}] {framework}: ratio {ratio:.3f}", file=sys.stderr, flush=True)
    return trainings, described


def _images(frameworks: Sequence[str], venvs: Bench, images: Bench) -> list[list[str]]:
    rows: dict[str, list[str]] = {}
    for framework in frameworks:
        venv, image = venvs.environment(framework), images.environment(framework)
        size = Path(image["image"]["path"]).stat().st_size
        folder = Path(venv["prefixes"][0])
        unpacked = sum(
            path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
        )
        seconds = [f"{sum(environment['seconds'].values()):.0f} s" for environment in (venv, image)]
        rows[image["name"]] = [image["name"], *seconds, f"{unpacked / 1e6:.0f} MB", f"{size / 1e6:.0f} MB"]
    return list(rows.values())


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios, and the ends of its t-interval."""
    logs = np.log(ratios)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return float(mean), float(low), float(high)


def verdict(low: float, high: float, aim: float) -> str:
    """Return whether the aim, a largest ratio, is met, missed, or not resolved by the interval."""
    return "met" if high <= aim else "missed" if low > aim else "not resolved"


def report(
    trainings: dict[str, list[tuple[Training, Training]]], described: list[list[str]], command: str
) -> str:
    """Return the part of docs/measurements.md."""
    rows = []
    for framework, pairs in trainings.items():
        venv_s, image_s = (
            float(np.mean([side.epoch_time_s for side in sides])) for sides in zip(*pairs, strict=True)
        )
        starts = [float(np.median([side.startup_s for side in sides])) for sides in zip(*pairs, strict=True)]
        mean, low, high = interval([image.epoch_time_s / venv.epoch_time_s for venv, image in pairs])
        rows.append([
            framework, str(ranks_of(framework)), str(len(pairs)), f"{venv_s:.4f} s", f"{image_s:.4f} s",
            f"{mean:.3f} [{low:.3f}, {high:.3f}]", f"{AIM}: {verdict(low, high, AIM)}",
            f"{starts[0]:.1f} s", f"{starts[1]:.1f} s",
        ])  # fmt: skip
    return section(
        "Images against virtual environments",
        command,
        table(
            [
                "framework",
                "ranks",
                "pairs",
                "epoch, venv",
                "epoch, image",
                "ratio [95 %]",
                "aim",
                "start-up, venv",
                "image",
            ],
            rows,
        ),
        f"small-cnn on digits, batch {BATCH_SIZE} and one core per rank. Both run in turn, in alternating "
        f"order. A process gives the median of its epochs without the first {WARM_UP}, a pair the ratio; "
        "the table has geometric means with t-intervals. Start-up (median) is from the launch to the first "
        "epoch; squashfuse unpacks what is imported from an image.",
        table(["environment", "made, venv", "made, image", "size, venv", "size, image"], described),
        "Seconds of the build that filled the cache, without the parent environment. Horovod's virtual "
        "environment uses the kept wheel if there is one.",
    )
