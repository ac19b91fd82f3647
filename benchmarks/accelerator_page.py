"""The page of `make accelerator-test`: its rows, what each may be at most, and its verdicts.

Pure functions of what was measured.
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
    """One check: what was looked at, what was found, what was expected, and the verdict."""

    check: str
    found: str
    expected: str
    verdict: str


def judged(check: str, found: str, expected: str, *, right: bool) -> Row:
    """A row that fails unless it is right."""
    return Row(check, found, expected, OK if right else FAILED)


def absent(check: str, why: str) -> Row:
    """A row of what this machine cannot tell."""
    return Row(check, why, "", ABSENT)


def failed(check: str, why: str) -> Row:
    """A row whose training, or what else it asked for, did not come to an end."""
    return Row(check, why, "comes to its end", FAILED)


def losses(
    precision: str,
    reference: Sequence[Mapping[str, float]],
    found: Sequence[Mapping[str, float]],
    check: str = "",
) -> Row:
    """The losses of two trainings, rows of epochs.csv, each epoch against the other's."""
    gaps = {
        (column, place): abs(theirs[column] - ours[column])
        for place, (theirs, ours) in enumerate(zip(reference, found, strict=True), 1)
        for column in ("train_loss", "validation_loss")
    }
    (column, epoch), largest = max(
        gaps.items(), key=lambda entry: math.inf if math.isnan(entry[1]) else entry[1]
    )
    most = TOLERANCES[precision]
    where = f" ({column.partition('_')[0]} loss, epoch {epoch})" if largest else ""
    wanted = f"at most {most:g}"
    return judged(check or f"losses in {precision}", f"{largest:.6f}{where}", wanted, right=largest <= most)


def same_batches(ours: Sequence[float], plain: Sequence[float]) -> Row:
    """The numbers that stand for batches (same_input.py), as the worker's input brought them, and as the
    plain way does.
    """
    wrong = [place for place, (mine, other) in enumerate(zip(ours, plain, strict=True), 1) if mine != other]
    found = (
        f"{len(wrong)} of {len(plain)} differ, the first is number {wrong[0]}"
        if wrong
        else f"{len(plain)} are the same"
    )
    return judged("batches on the device", found, "all are the same", right=not wrong)


def throughput(pairs: Sequence[tuple[float, float]], interval: str) -> list[Row]:
    """Pairs of images a second: the plain script's, the worker's.

    `interval` is that of their median ratio, in words.
    """
    plain, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(mine / theirs for theirs, mine in pairs)
    verdict = MET if ratio >= AIM else MISSED
    return [
        Row("plain script", f"{plain:,.0f} images/s", "", "told"),
        Row("Ringside", f"{ours:,.0f} images/s", "", "told"),
        Row(f"ratio, median of {len(pairs)}", f"{ratio:.3f} [{interval}]", f"{AIM} or more", verdict),
    ]


def clocks(epochs: Sequence[float], device: Sequence[float], by: str) -> Row:
    """The times of epochs as they were recorded, in seconds, against those that the clock `by` told."""
    gaps = [abs(ours - theirs) for ours, theirs in zip(epochs, device, strict=True)]
    over = [gap / (CLOCKS[0] * theirs + CLOCKS[1]) for gap, theirs in zip(gaps, device, strict=True)]
    worst = over.index(max(over))
    return judged(
        f"epoch time against {by}",
        f"{epochs[worst]:.4f} s against {device[worst]:.4f} s",
        f"within {CLOCKS[0]:.0%} + {1e3 * CLOCKS[1]:g} ms",
        right=over[worst] <= 1,
    )


def memory(peak_bytes: float | None, parameters: int, there_bytes: float | None, what: str) -> Row:
    """The recorded peak of a training of so many parameters, on what has so much memory."""
    check = f"memory peak of the {what}"
    if peak_bytes is None:
        return failed(check, "the record has none")
    least = BYTES_A_PARAMETER * parameters
    most = there_bytes if there_bytes is not None else float("inf")
    expected = f"{least / 1e9:.2f} to {most / 1e9:.1f} GB" if there_bytes else f"{least / 1e9:.2f} GB or more"
    return judged(check, f"{peak_bytes / 1e9:.2f} GB", expected, right=least <= peak_bytes <= most)


def powers(text: str) -> list[tuple[float, float]]:
    """What `nvidia-smi --query-gpu=timestamp,power.draw` said: seconds since 1970 (its times are local) and
    W, without cut lines.
    """
    found = []
    for line in text.splitlines():
        when, _, watts = line.partition(",")
        try:
            found.append((datetime.strptime(when.strip(), "%Y/%m/%d %H:%M:%S.%f").timestamp(), float(watts)))
        except ValueError:  # [N/A], or the line was cut
            continue
    return found


def energy(
    recorded: Sequence[float | None],
    windows: Sequence[Mapping[str, float]],
    samples: Sequence[tuple[float, float]],
) -> Row:
    """Recorded joules of epochs against the accelerator's mean power in each (`began_at` to `ended_at`) times
    its length.
    """
    check = "energy against mean power × time"
    if None in recorded:
        return absent(check, "the record has no energy of the accelerator: measured.meters of it says why")
    inside = [[watts for at, watts in samples if one["began_at"] <= at <= one["ended_at"]] for one in windows]
    whole = [number for number, watts in enumerate(inside) if len(watts) >= LEAST_SAMPLES]
    if not whole:
        return absent(check, "nvidia-smi told no power while it trained")
    energy_j = sum(recorded[number] or 0.0 for number in whole)
    power_j = sum(
        statistics.mean(inside[number]) * (windows[number]["ended_at"] - windows[number]["began_at"])
        for number in whole
    )
    gap = abs(energy_j - power_j)
    return judged(
        check,
        f"{energy_j:.0f} J against {power_j:.0f} J",
        f"within {ENERGY:.0%}",
        right=power_j > 0 and gap <= ENERGY * power_j,
    )


def share(check: str, shares: Sequence[float], most: float) -> Row:
    """The largest of several shares of the CPU time, against what the site allows."""
    found = max(shares)
    return judged(check, f"{found:.1%} of the CPU time", f"at most {most:.0%}", right=found <= most)


def device(site: str, kind: str, seen: Mapping[str, Any]) -> str:
    """The device that the page is of, by what the probe has seen of this machine."""
    if kind == "cpu":
        there = f" ({seen['name']} was left alone)" if seen["name"] else ""
        return f"Device: **the processor**, with smaller models; site {site} has device: cpu{there}"
    others = f", the first of {seen['devices']}" if seen["devices"] > 1 else ""
    return (
        f"Device: **{seen['name']}**, {seen['memory_bytes'] / 2**30:.0f} GiB{others}; site {site} has "
        f"device: {kind}"
    )


def software(seen: Mapping[str, Any]) -> str:
    """The PyTorch that trained."""
    return f"PyTorch {seen['torch']}" + (f" with CUDA or ROCm {seen['cuda']}" if seen["cuda"] else "")


def summary(rows: Sequence[Row]) -> str:
    """All verdicts in one sentence, and which checks failed."""
    held = [row for row in rows if row.verdict in (OK, FAILED)]
    wrong = [row.check for row in held if row.verdict == FAILED]
    unseen = sum(row.verdict == ABSENT for row in rows)
    said = (
        f"**{len(wrong)} of {len(held)} checks FAILED: {', '.join(wrong)}.**"
        if wrong
        else f"**All {len(held)} checks are ok.**"
    )
    return said + (f" {unseen} could not be made here." if unseen else "")


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table."""
    lines = ["| check | found | expected | verdict |", "| --- | --- | --- | --- |"]
    cells = [[row.check, row.found, row.expected, row.verdict] for row in rows]
    return "\n".join(lines + [f"| {' | '.join(_cell(text) for text in line)} |" for line in cells])


def page(title: str, told: Sequence[str], parts: Mapping[str, tuple[Sequence[Row], str]]) -> str:
    """The page: a title, facts, the summary, and parts, each with its rows and what they mean."""
    rows = [row for part, _ in parts.values() for row in part]
    sections = [f"## {name}\n\n{table(part)}\n\n{meaning}" for name, (part, meaning) in parts.items()]
    facts = "\n".join(f"* {fact}" for fact in told)
    return "\n\n".join([f"# {title}", summary(rows), facts, *sections]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
