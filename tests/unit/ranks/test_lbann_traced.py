"""A traced run of LBANN's adapter, with a program that prints a real run's log and writes a timeline."""

import json
import os
import sys
from pathlib import Path

import pandas as pd
import pytest

from datasets.prepare import prepare
from declared.frameworks import load_framework
from launchers import launch
from ranks.worker.phases import WINDOW_STEPS
from runs.phases import damage_reason, merge_phases
from runs.rank_input import rank_input
from support.installed_site import SITE
from support.one_run import one_run

LOG = (
    Path(__file__).with_name("lbann_output") / "validation.log"
)  # five epochs of digits, 26 steps each, on one rank
EPOCHS, STEPS, STEP_S = 5, 26, 0.001
PROGRAM = f"""#!{sys.executable}
import re, time
from pathlib import Path
folder = re.search('timeline {{\\n *directory: "(.*)"', Path("experiment.prototext").read_text())[1]
began, ended = time.monotonic(), []
for line in Path({str(LOG)!r}).read_text().splitlines():
    if "training epoch" in line and "objective function" in line:
        time.sleep({STEPS * STEP_S})
        ended.append(time.monotonic() - began)
    print(line, flush=True)
with open(f"{{folder}}/timeline.m0.0.txt", "w") as file:
    for part, first, last in (("fp-conv1", 0, 0.4), ("bp-conv1", 0.4, 0.8), ("opt-conv1.kernel", 0.8, 1)):
        for end in ended:
            for left in reversed(range({STEPS})):
                begin = end - (left + 1) * {STEP_S}
                print(part, f"{{begin + first * {STEP_S}:.6g}}", f"{{begin + last * {STEP_S}:.6g}}", sep=":", file=file)
"""


def test_lbanns_layers_become_phases_and_operators(tmp_path: Path) -> None:
    run, spec = one_run(
        SITE, framework="lbann", model="small-cnn", dataset="digits", nodes=1, batch_size=61, sync_every=1,
        epochs=EPOCHS, warmup_epochs=0, trace="full",
    )  # fmt: skip
    data, folder, program = tmp_path / "digits", tmp_path / "attempt", tmp_path / "lbann"
    prepare("digits", data)
    folder.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    environment = {"python": {"executable": sys.executable}, "variables": {"RINGSIDE_PROGRAM": str(program)}}
    ranks = launch.make_launcher(SITE, spec)
    contents = rank_input(spec, load_framework("lbann"), environment, run.graph.to_json(), data, ranks.hosts)
    (folder / "rank_input.json").write_text(json.dumps(contents))
    outcome = launch.run_ranks(ranks, environment, folder, spec, SITE)
    assert outcome.status == "ok", (folder / "log.txt").read_text()[-2000:]
    merge_phases(folder)
    assert damage_reason(folder, ranks=1, epochs=EPOCHS, steps=STEPS) is None
    phases = pd.read_csv(folder / "phases.csv")
    steps = phases[phases["step"] > 0]
    assert steps.groupby("epoch")["step"].nunique().to_dict() == dict.fromkeys(range(1, EPOCHS + 1), STEPS)
    assert set(steps["phase"]) == {"data", "forward", "backward", "metrics", "optimizer"}
    trained = steps.groupby(["epoch", "step"])["end"].max() - steps.groupby(["epoch", "step"])["start"].min()
    assert trained.median() == pytest.approx(STEP_S, rel=0.05)
    assert steps["start"].min() > phases[phases["step"] == 0]["end"].max() - 0.1, "training follows the start"
    events = json.loads((folder / "operators-0.json").read_text())["traceEvents"]
    last = steps[(steps["epoch"] == EPOCHS) & (steps["step"] <= WINDOW_STEPS) & (steps["phase"] == "forward")]
    layers = [event["ts"] / 1e6 for event in events if event.get("name") == "conv1" and event["tid"] == 0]
    assert layers == pytest.approx(last["start"].to_list(), abs=1e-5)
    assert not list(folder.glob("timeline*")) and os.path.exists(folder / "experiment.prototext")
