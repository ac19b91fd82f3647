"""Build the page of `make accelerator-test`: rows, limits and verdicts.

All functions are pure functions of measurements.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

OK, FAILED, MET, MISSED, ABSENT = "ok", "FAILED", "met", "missed", "not here"
# Largest difference between the losses of an accelerator and of a processor in fp32, from the same weights,
# in any epoch.
TOLERANCES = {"fp32": 0.002, "tf32": 0.01, "amp": 0.04}
AIM = 0.98  # of the plain script's images a second
CLOCKS = 0.01, 0.002  # two clocks of an epoch may differ by this share of it, and by so many seconds more
ENERGY = 0.15  # energy and mean power x time may differ by this share
LEAST_SAMPLES = 5  # of the power in an epoch
BYTES_A_PARAMETER = 12  # weight, gradient and momentum in fp32


@dataclass(frozen=True)
class Row:
    """One check: its name, result, expected result and verdict."""

    check: str
    result: str
    expected: str
    verdict: str


def judged(check: str, result: str, expected: str, *, right: bool) -> Row:
    """Return a row that is ok if `right`, else failed."""
    return Row(check, result, expected, OK if right else FAILED)


def absent(check: str, why: str) -> Row:
    """Return a row of a check that is not possible on this machine."""
    return Row(check, why, "", ABSENT)


def failed(check: str, why: str) -> Row:
    """Return a row whose training or command did not end."""
    return Row(check, why, "comes to its end", FAILED)


def losses(
    precision: str,
    reference: Sequence[Mapping[str, float]],
    trained: Sequence[Mapping[str, float]],
    check: str = "",
) -> Row:
    """Compare the losses of two trainings, rows of epochs.csv, epoch by epoch."""
    gaps = {
        (column, place): abs(expected[column] - actual[column])
        for place, (expected, actual) in enumerate(zip(reference, trained, strict=True), 1)
        for column in ("train_loss", "validation_loss")
    }
    (column, epoch), largest = max(
        gaps.items(), key=lambda entry: math.inf if math.isnan(entry[1]) else entry[1]
    )
    tolerance = TOLERANCES[precision]
    location = f" ({column.partition('_')[0]} loss, epoch {epoch})" if largest else ""
    limit = f"at most {tolerance:g}"
    return judged(
        check or f"losses in {precision}", f"{largest:.6f}{location}", limit, right=largest <= tolerance
    )


def same_batches(worker: Sequence[float], plain: Sequence[float]) -> Row:
    """Compare checksums of batches (same_input.py) from the worker's input with those of plain copies."""
    differing = [
        place
        for place, (number, plain_number) in enumerate(zip(worker, plain, strict=True), 1)
        if number != plain_number
    ]
    result = (
        f"{len(differing)} of {len(plain)} differ, the first is number {differing[0]}"
        if differing
        else f"{len(plain)} are the same"
    )
    return judged("batches on the device", result, "all are the same", right=not differing)


def throughput(pairs: Sequence[tuple[float, float]], interval: str) -> list[Row]:
    """Return rows for pairs of images per second of the plain script and the worker.

    `interval` is the interval of their median ratio as text.
    """
    plain, worker = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(worker_rate / plain_rate for plain_rate, worker_rate in pairs)
    verdict = MET if ratio >= AIM else MISSED
    return [
        Row("plain script", f"{plain:,.0f} images/s", "", "told"),
        Row("Ringside", f"{worker:,.0f} images/s", "", "told"),
        Row(f"ratio, median of {len(pairs)}", f"{ratio:.3f} [{interval}]", f"{AIM} or more", verdict),
    ]


def clocks(epochs: Sequence[float], device: Sequence[float], by: str) -> Row:
    """Compare recorded epoch times in s with those of the clock `by`."""
    gaps = [abs(recorded - clocked) for recorded, clocked in zip(epochs, device, strict=True)]
    over = [gap / (CLOCKS[0] * clocked + CLOCKS[1]) for gap, clocked in zip(gaps, device, strict=True)]
    worst = over.index(max(over))
    return judged(
        f"epoch time against {by}",
        f"{epochs[worst]:.4f} s against {device[worst]:.4f} s",
        f"within {CLOCKS[0]:.0%} + {1e3 * CLOCKS[1]:g} ms",
        right=over[worst] <= 1,
    )


def memory(peak_bytes: float | None, parameters: int, total_bytes: float | None, owner: str) -> Row:
    """Check that a recorded memory peak holds the parameters and fits into the memory of its owner."""
    check = f"memory peak of the {owner}"
    if peak_bytes is None:
        return failed(check, "the record has none")
    min_bytes = BYTES_A_PARAMETER * parameters
    max_bytes = total_bytes if total_bytes is not None else float("inf")
    expected = (
        f"{min_bytes / 1e9:.2f} to {max_bytes / 1e9:.1f} GB"
        if total_bytes
        else f"{min_bytes / 1e9:.2f} GB or more"
    )
    return judged(check, f"{peak_bytes / 1e9:.2f} GB", expected, right=min_bytes <= peak_bytes <= max_bytes)


def powers(text: str) -> list[tuple[float, float]]:
    """Parse `nvidia-smi --query-gpu=timestamp,power.draw` into seconds since 1970 and W.

    Its times are local. Truncated lines are skipped.
    """
    samples = []
    for line in text.splitlines():
        timestamp, _, watts = line.partition(",")
        try:
            samples.append(
                (datetime.strptime(timestamp.strip(), "%Y/%m/%d %H:%M:%S.%f").timestamp(), float(watts))
            )
        except ValueError:  # [N/A], or the line was cut
            continue
    return samples


def energy(
    recorded: Sequence[float | None],
    windows: Sequence[Mapping[str, float]],
    samples: Sequence[tuple[float, float]],
) -> Row:
    """Compare recorded joules of epochs with mean power times duration (`began_at` to `ended_at`)."""
    check = "energy against mean power × time"
    if None in recorded:
        return absent(check, "the record has no energy of the accelerator: measured.meters of it says why")
    inside = [
        [watts for at, watts in samples if window["began_at"] <= at <= window["ended_at"]]
        for window in windows
    ]
    sampled = [number for number, watts in enumerate(inside) if len(watts) >= LEAST_SAMPLES]
    if not sampled:
        return absent(check, "nvidia-smi told no power while it trained")
    energy_j = sum(recorded[number] or 0.0 for number in sampled)
    power_j = sum(
        statistics.mean(inside[number]) * (windows[number]["ended_at"] - windows[number]["began_at"])
        for number in sampled
    )
    gap = abs(energy_j - power_j)
    return judged(
        check,
        f"{energy_j:.0f} J against {power_j:.0f} J",
        f"within {ENERGY:.0%}",
        right=power_j > 0 and gap <= ENERGY * power_j,
    )


def share(check: str, shares: Sequence[float], limit: float) -> Row:
    """Compare the largest of several shares of CPU time with the site's limit."""
    largest = max(shares)
    return judged(check, f"{largest:.1%} of the CPU time", f"at most {limit:.0%}", right=largest <= limit)


def device(site: str, kind: str, seen: Mapping[str, Any]) -> str:
    """Return the line about the tested device."""
    if kind == "cpu":
        note = f" ({seen['name']} was left alone)" if seen["name"] else ""
        return f"Device: **the processor**, with smaller models; site {site} has device: cpu{note}"
    note_on_count = f", the first of {seen['devices']}" if seen["devices"] > 1 else ""
    return (
        f"Device: **{seen['name']}**, {seen['memory_bytes'] / 2**30:.0f} GiB{note_on_count}; site {site} has "
        f"device: {kind}"
    )


def software(seen: Mapping[str, Any]) -> str:
    """Return the version of PyTorch, with its CUDA or ROCm."""
    return f"PyTorch {seen['torch']}" + (f" with CUDA or ROCm {seen['cuda']}" if seen["cuda"] else "")


def summary(rows: Sequence[Row]) -> str:
    """Return a sentence with the number of checks and the names of failed ones."""
    judged_rows = [row for row in rows if row.verdict in (OK, FAILED)]
    failures = [row.check for row in judged_rows if row.verdict == FAILED]
    unseen = sum(row.verdict == ABSENT for row in rows)
    text = (
        f"**{len(failures)} of {len(judged_rows)} checks FAILED: {', '.join(failures)}.**"
        if failures
        else f"**All {len(judged_rows)} checks are ok.**"
    )
    return text + (f" {unseen} could not be made here." if unseen else "")


def table(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table."""
    lines = ["| check | found | expected | verdict |", "| --- | --- | --- | --- |"]
    cells = [[row.check, row.result, row.expected, row.verdict] for row in rows]
    return "\n".join(lines + [f"| {' | '.join(_cell(text) for text in line)} |" for line in cells])


def page(title: str, facts: Sequence[str], parts: Mapping[str, tuple[Sequence[Row], str]]) -> str:
    """Return the page: title, summary, facts, and parts, each with its rows and their meaning."""
    rows = [row for part, _ in parts.values() for row in part]
    sections = [f"## {name}\n\n{table(part)}\n\n{meaning}" for name, (part, meaning) in parts.items()]
    bullets = "\n".join(f"* {fact}" for fact in facts)
    return "\n\n".join([f"# {title}", summary(rows), bullets, *sections]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
