"""Given a campaign, when one of its runs is traced, then the trace has a folder of its own.

Nothing else changes.
"""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import otf2
import pandas as pd

from support.checkout import Checkout, wait_for
from traces.otf2_read import read

STUDY = """\
title: one run on two nodes
question: where does its time go?
seed: 3
design: full
replicates: 1
factors: {framework: pytorch-ddp, model: small-cnn, dataset: digits, nodes: 2, batch_size: 64, sync_every: 1, epochs: 2}
figures: [{kind: residuals}]
"""
RUN = "pytorch-ddp.small-cnn.digits.b64.n2.s1.epochs=2.r1"


def test_a_run_is_traced_beside_the_campaign(fresh: Callable[..., Checkout]) -> None:
    checkout = fresh(STUDY)
    command = ["./ringside", "trace", RUN]
    checkout.path(".venv").symlink_to(Path(__file__).resolve().parents[2] / ".venv")
    killed = subprocess.Popen(
        command, cwd=checkout.folder, env=checkout.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    runs = checkout.results / "traces" / "runs" / RUN
    wait_for(lambda: bool(list(runs.glob("*/attempt-1/log.txt"))), 600)
    subprocess.run(["kill", f"-{signal.SIGKILL}", "--", f"-{killed.pid}"], check=True)
    killed.communicate()

    traced = checkout.ringside("trace", RUN)
    assert traced.returncode == 0, traced.stdout + traced.stderr
    folder = checkout.results / "traces" / RUN
    lines = [line.partition(": ") for line in traced.stdout.splitlines() if f"traces/{RUN}/" in line]
    files = [checkout.folder / name for name, _, _ in lines]
    assert files == [folder / "trace.json", folder / "otf2" / "trace.otf2", folder / "phases.csv"], (
        traced.stdout
    )
    assert "ui.perfetto.dev" in lines[0][2] and "Vampir" in lines[1][2]

    phases = pd.read_csv(files[2])
    assert set(phases["rank"]) == {0, 1} and {"forward", "backward", "communication", "wait"} <= set(
        phases["phase"]
    )
    events = [event for event in json.loads(files[0].read_text())["traceEvents"] if event["ph"] == "X"]
    assert len([event for event in events if event["cat"] != "step"]) == len(phases)
    assert len(read(files[1]).intervals) == len(phases)
    with otf2.reader.open(str(files[1])) as archive:
        assert archive.definitions.clock_properties.timer_resolution == 10**9

    attempts = [path.name for path in runs.glob("*/attempt-*")]
    assert sorted(attempts) == ["attempt-1", "attempt-2"], "the killed one is kept, and was begun anew"
    again = checkout.ringside("trace", RUN)
    assert again.returncode == 0 and len(list(runs.glob("*/attempt-*"))) == 2, "it is not trained again"
    assert not checkout.records() and not (checkout.results / "campaign.json").exists(), (
        "the campaign has not begun"
    )
