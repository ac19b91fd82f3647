"""The page of `make accelerator-test`: what passes, what fails, what cannot be told.

And the whole of it, on a processor.
"""

import os
import re
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import accelerator_page as pages
from accelerator_page import ABSENT, FAILED, MET, MISSED, OK, Row
from common.files import CHECKOUT


def epochs(*losses: tuple[float, float]) -> list[dict[str, float]]:
    return [{"train_loss": trained, "validation_loss": validated} for trained, validated in losses]


# Measured with torch 2.13 on a processor, three epochs: the reference, and how far others were from it (to
# which side was not kept).
REFERENCE = epochs((1.1512, 0.3064), (0.2539, 0.1260), (0.1122, 0.0965))
OTHER_SUMS = epochs((1.1512, 0.3064), (0.2539, 0.1260), (0.1123, 0.0966))  # one core, other instructions
BFLOAT16 = epochs((1.1551, 0.3214), (0.2626, 0.1380), (0.1139, 0.0971))
OTHER_SEED = epochs((0.9312, 0.6664), (0.2475, 0.1660), (0.1282, 0.1325))


@pytest.mark.parametrize(
    ("losses", "passes"),
    [
        (OTHER_SUMS, {"fp32", "tf32", "amp"}),
        (BFLOAT16, {"amp"}),
        (OTHER_SEED, set()),
        (REFERENCE[:2] + epochs((float("nan"), 0.0965)), set()),
    ],
    ids=["other sums", "bfloat16", "other weights", "nan"],
)
def test_tolerances_separate_rounding_precision_other_weights(losses: Any, passes: set[str]) -> None:
    assert {
        name for name in pages.TOLERANCES if pages.losses(name, REFERENCE, losses).verdict == OK
    } == passes


def test_the_largest_difference_is_named() -> None:
    assert pages.losses("amp", REFERENCE, BFLOAT16).result == "0.015000 (validation loss, epoch 1)"


def test_the_ratio_is_told_and_fails_nothing() -> None:
    slow, fast = (
        pages.throughput([(100, samples_s), (200, 2 * samples_s), (100, 5)], "0.9 to 1")[-1]
        for samples_s in (90, 98)
    )
    assert (slow.result, slow.verdict, fast.verdict) == ("0.900 [0.9 to 1]", MISSED, MET)
    assert "FAILED" not in pages.summary([slow])


def test_a_batch_that_came_otherwise_is_named() -> None:
    assert pages.same_batches([1.0, 2.0], [1.0, 2.0]).verdict == OK
    row = pages.same_batches([1.0, 2.5, 3.0], [1.0, 2.0, 4.0])
    assert (row.result, row.verdict) == ("2 of 3 differ, the first is number 2", FAILED)


@pytest.mark.parametrize(("device_s", "verdict"), [(2.01, OK), (2.03, FAILED), (1.95, FAILED)])
def test_clocks_agree_within_a_share(device_s: float, verdict: str) -> None:
    row = pages.clocks([1.0, 2.0], [1.0, device_s], "CUDA events")
    assert row.verdict == verdict and f"{device_s:.4f}" in row.result


@pytest.mark.parametrize(
    ("peak", "total", "verdict"),
    [(3e9, 80e9, OK), (1e6, 80e9, FAILED), (90e9, 80e9, FAILED), (3e9, None, OK), (None, 80e9, FAILED)],
)
def test_memory_holds_the_weights_and_fits(peak: float | None, total: float | None, verdict: str) -> None:
    assert pages.memory(peak, 25_557_032, total, "accelerator").verdict == verdict


BEGAN = datetime(2026, 11, 24, 12, 0, 0)
SMI = "".join(
    f"2026/11/24 12:00:{at // 10:02}.{at % 10}00, {700 if at < 20 else 100}.00\n" for at in range(40)
)
WINDOW = {"began_at": BEGAN.timestamp(), "ended_at": BEGAN.timestamp() + 1.95}


def test_power_is_read_as_nvidia_smi_writes_it() -> None:
    assert pages.powers(SMI)[0] == (BEGAN.timestamp(), 700.0) and len(pages.powers(SMI)) == 40
    assert pages.powers("2026/11/24 12:00:00.000, [N/A]\n2026/11/2") == []


@pytest.mark.parametrize(
    ("recorded", "verdict"),
    [(1365, OK), (1665, FAILED), (1365e3, FAILED), (0, FAILED), (None, ABSENT)],
    ids=["same", "too much", "mJ", "nothing", "not told"],
)
def test_energy_is_power_times_time(recorded: float | None, verdict: str) -> None:
    assert pages.energy([recorded], [WINDOW], pages.powers(SMI)).verdict == verdict


def test_no_power_no_verdict() -> None:
    assert pages.energy([1365], [WINDOW], pages.powers(SMI)[:3]).verdict == ABSENT


def test_the_load_of_the_worst_training_counts() -> None:
    assert pages.share("CPU time of other processes", [0.01, 0.2], 0.05).verdict == FAILED
    assert pages.share("CPU time of other processes", [0.01, 0.02], 0.05).verdict == OK


def test_a_page_says_first_what_failed_and_of_what_it_is() -> None:
    seen = {
        "name": "NVIDIA H100 80GB HBM3",
        "devices": 2,
        "memory_bytes": 80 * 2**30,
        "torch": "2.6.0",
        "cuda": "12.4",
    }
    parts = {
        "Losses": (
            [Row("one", "1 | 2", "3", FAILED), Row("two", "", "", OK), pages.absent("three", "no")],
            "Why.",
        )
    }
    text = pages.page("Test", [pages.device("mine", "cuda", seen), pages.software(seen)], parts)
    assert text.startswith(
        "# Test\n"
        "\n"
        "**1 of 2 checks FAILED: one.** 1 could not be made here.\n"
        "\n"
        "* Device: **NVIDIA H100 80GB HBM3**, 80 GiB, the first of 2; site mine has device: cuda\n"
        "* PyTorch 2.6.0 with CUDA or ROCm 12.4\n"
        "\n"
    )
    assert "| one | 1 \\| 2 | 3 | FAILED |" in text
    assert "**the processor**" in pages.device("local", "cpu", seen)
    assert pages.summary(parts["Losses"][0][1:2]) == "**All 1 checks are ok.**"


@pytest.mark.every_framework
def test_the_whole_on_a_processor(tmp_path: Path) -> None:
    out = tmp_path / "page.md"
    arguments = f"--out={out} --pairs=1"
    done = subprocess.run(
        ["make", "accelerator-test", "SITE=local", f"ARGS={arguments}"], cwd=CHECKOUT, capture_output=True,
        text=True, check=False, env={**os.environ, "RINGSIDE_LOCK": str(tmp_path / "lock")},
    )  # fmt: skip
    assert out.exists(), done.stderr
    rows = [line.strip("| ").split(" | ") for line in out.read_text().splitlines() if line.startswith("| ")]
    verdicts = {row[0]: row[-1] for row in rows if row[-1] not in ("verdict", "---")}
    load = {name: verdicts.pop(name) for name in ("CPU time of other processes", "CPU steal")}
    assert FAILED not in verdicts.values()
    assert {name for name, verdict in verdicts.items() if verdict == OK} == {
        "losses in fp32", "losses in amp", "batches on the device", "2 ranks on one device, Gloo",
        "1 rank, gloo", "a strategy, 2 ranks on one device, Gloo", "epoch time against a clock around it",
        "memory peak of the rank",
    }  # fmt: skip
    assert "**the processor**" in out.read_text() and re.search(r"\d images/s", out.read_text())
    assert (done.returncode == 0) == (FAILED not in load.values())  # others may use this machine
