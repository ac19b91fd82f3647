"""Given a cluster with OAR, when `snakemake --profile oar` is called, then each run is a job of its own and
becomes a row.

oarsub, oarstat and oarsh are small scripts that emulate OAR: a job runs in a fresh environment, in a session
of its own, with its nodes in a file.
"""

import csv
import os
import shlex
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ranks.worker.node import processor
from support.checkout import Checkout

STUDY = """\
title: one run of two ranks
question: does a run go through OAR?
seed: 3
design: full
replicates: 1
factors: {framework: pytorch-ddp, model: small-cnn, dataset: digits, nodes: 1, batch_size: 64, sync_every: 1, epochs: 2}
"""
SITE = """\
description: one node of a cluster with OAR
launcher: oar
placement: distinct-nodes
device: cpu
deployment: venv
cores: 2
nodes: 1
ranks_per_node: 2
interface: lo
cache: ~/.cache/ringside
torch_index: {torch_index}
time_limit_s: 300
max_other_cpu_share: 1
max_steal_share: 1
scheduler: {{partition: production, account: my-project, constraint: "cluster='gros'", options: [--type=exotic]}}
"""
OARSUB = """\
#!/usr/bin/env bash
set -euo pipefail
oar={oar}
printf '%s\\0' "$@" >> "$oar/asked"
for option in "$@"; do
    case $option in --stdout=*) output=${{option#--stdout=}} ;; esac
done
number=$((1000 + $(find "$oar" -name '*.state' | wc -l)))
hostname > "$oar/$number.nodes"
hostname >> "$oar/$number.nodes"
echo Running > "$oar/$number.state"
echo "[ADMISSION RULE] Modify resource description with type constraints"
echo "OAR_JOB_ID=$number"
(
    cd "$PWD"
    code=0
    env -i HOME="$HOME" USER="${{USER:-user}}" PATH={fresh_path} OAR_JOB_ID="$number" OAR_NODEFILE="$oar/$number.nodes" \\
        setsid --wait bash -c "${{@: -1}}" > "${{output//%jobid%/$number}}" 2>&1 < /dev/null || code=$?
    echo "$((code * 256)) ($code,0,0)" > "$oar/$number.code"
    echo Terminated > "$oar/$number.state"
) > /dev/null 2>&1 &
"""
OARSTAT = """\
#!/usr/bin/env bash
# oarstat -fj NUMBER
number=$2
[[ $1 == -fj && -f {oar}/$number.state ]] || {{ echo "No job $number"; exit 1; }}
echo "Job_Id: $number"
echo "    job_array_id = $number"
echo "    state = $(cat {oar}/"$number".state)"
echo "    wanted_resources = -l \\"{{type = 'default'}}/host=1,walltime=0:8:0\\""
if [[ -f {oar}/$number.code ]]; then echo "    exit_code = $(cat {oar}/"$number".code)"; fi
"""
OARSH = """\
#!/bin/sh
shift
exec setsid --wait sh -c "$*"
"""


@pytest.fixture
def oar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder to which the emulated OAR writes its calls and states of jobs."""
    programs, written = tmp_path / "programs", tmp_path / "oar"
    programs.mkdir()
    written.mkdir()
    words = {
        "oar": shlex.quote(str(written)),
        "fresh_path": shlex.quote(f"{programs}:/usr/local/bin:/usr/bin:/bin"),
    }
    for name, text in (
        ("oarsub", OARSUB.format(**words)),
        ("oarstat", OARSTAT.format(**words)),
        ("oarsh", OARSH),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return written


@pytest.fixture
def cluster(fresh: Callable[..., Checkout]) -> Checkout:
    """A checkout with one run at a site with OAR."""
    checkout = fresh(STUDY)
    index = next(
        line
        for line in checkout.path("config/sites/local.yaml").read_text().splitlines()
        if "torch_index" in line
    )
    checkout.write("config/sites/gros.yaml", SITE.format(torch_index=index.split(": ", 1)[1]))
    checkout.write("config/oar.yaml", "site: gros\n")
    return checkout


def oarsub_arguments(oar: Path) -> list[str]:
    """Return the arguments of all calls of oarsub."""
    return (oar / "asked").read_text().split("\0")[:-1]


def test_a_run_goes_through_oar_from_submission_to_row(cluster: Checkout, oar: Path) -> None:
    assert cluster.snakemake("environments", "datasets").status == 0, "built here, as the site says"
    done = cluster.snakemake(
        "records", "--profile", "oar", "--seconds-between-status-checks", "1", "--latency-wait", "5"
    )
    assert done.status == 0, done.output + "".join(
        log.read_text() for log in cluster.folder.glob(".snakemake/oar/*")
    )
    *options, command = oarsub_arguments(oar)
    assert options == [
        "--stdout=.snakemake/oar/%jobid%.txt",
        "--stderr=.snakemake/oar/%jobid%.txt",
        "--resource=host=1,walltime=0:08:00",
        "--queue=production",
        "--project=my-project",
        "--property=(cluster='gros')",
        "--type=exotic",
    ]
    words = shlex.split(command.partition(";")[0])
    words = words[words.index("&&") + 1 :]  # first the job looks what its node sees
    assert words[0] == "env" and Path(words[-1]).is_absolute() and Path(words[-1]).suffix == ".sh"
    assert any(word.startswith("RINGSIDE_SESSION=") for word in words), (
        "a job knows the session that it belongs to"
    )
    with open(cluster.results / "runs.csv") as file:
        (row,) = csv.DictReader(file)
    assert row["status"] == "ok", row["reason"]
    assert (row["job"], row["site"], row["placement"]) == ("1000", "gros", "distinct-nodes")
    assert all(float(row[f"reference_{end}s"]) > 0 for end in ("", "before_", "after_")), "in the job, too"
    assert (row["hosts"], row["devices"], row["ranks"]) == (socket.gethostname(), processor(), "2")
    assert (
        row["systems"].endswith(f"Linux {os.uname().release}")
        and 2**30 < int(row["node_memory_bytes"]) < 2**45
    )
    assert f"RINGSIDE_SESSION={row['session']}" in words
    assert "1 not ok" not in done.output and "all runs done" in done.output, done.output
    assert cluster.snakemake("records", "--profile", "oar").jobs == {}, "nothing is left to do"
    assert len(oarsub_arguments(oar)) == len(options) + 1, "one job was submitted"


def test_a_job_that_fails_is_tried_again_and_then_told(cluster: Checkout, oar: Path) -> None:
    assert cluster.snakemake("environments", "datasets").status == 0
    (oar.parent / "programs" / "oarsh").write_text(
        "#!/bin/sh\necho 'ssh: connect to host gros-1: No route to host' >&2\nexit 255\n"
    )
    done = cluster.snakemake(
        "records",
        "--profile",
        "oar",
        "--seconds-between-status-checks",
        "1",
        "--latency-wait",
        "1",
        "--retries",
        "1",
    )
    assert done.status != 0
    assert oarsub_arguments(oar).count("--queue=production") == 2, "lost infrastructure is tried again"
    assert [Path(name).name for name in cluster.attempts()] == ["attempt-1", "attempt-2"]
    notes = [path.read_text() for path in sorted(cluster.results.glob("runs/*/*/attempt-*/unfinished.txt"))]
    assert len(notes) == 2 and all("lost: rank 0 on" in note and "No route to host" in note for note in notes)


def test_a_submission_that_oar_refuses_says_why(cluster: Checkout, oar: Path) -> None:
    assert cluster.snakemake("environments", "datasets").status == 0
    refusal = (
        "#!/bin/sh\necho 'There are not enough resources for your request'\necho 'OAR_JOB_ID=-5' \nexit 5\n"
    )
    (oar.parent / "programs" / "oarsub").write_text(refusal)
    done = cluster.snakemake(
        "records", "--profile", "oar", "--seconds-between-status-checks", "1", "--retries", "0"
    )
    assert done.status != 0 and "There are not enough resources for your request" in done.output
    assert not cluster.attempts()


@pytest.mark.parametrize(
    ("state", "code", "own", "expected"),
    [
        ("Waiting", None, None, "running"), ("Launching", None, None, "running"),
        ("Running", None, None, "running"),
        ("Finishing", None, "0", "running"), ("Terminated", "0 (0,0,0)", "0", "success"),
        ("Terminated", None, "0", "success"),
        ("Terminated", "256 (1,0,0)", "1", "failed"), ("Terminated", "256 (1,0,0)", None, "failed"),
        ("Terminated", "0 (0,0,0)", "75", "failed"), ("Error", None, None, "failed"),
        ("Error", None, "0", "failed"),
    ],
)  # fmt: skip
def test_oars_states_are_put_in_snakemakes_words(
    fresh: Callable[..., Checkout], oar: Path, state: str, code: str | None, own: str | None, expected: str
) -> None:
    checkout = fresh(STUDY)
    (oar / "7.state").write_text(f"{state}\n")
    if code:
        (oar / "7.code").write_text(f"{code}\n")
    if own:
        checkout.path(".snakemake/oar").mkdir(parents=True)
        checkout.write(".snakemake/oar/7.status", f"{own}\n")
    assert status(checkout, "7") == (expected, "")


def test_a_job_that_oar_lost_sight_of_is_no_success(fresh: Callable[..., Checkout], oar: Path) -> None:
    """OAR calls it Terminated with exit code 0, but only the job itself can report success."""
    checkout = fresh(STUDY)
    (oar / "9.state").write_text("Terminated\n")
    (oar / "9.code").write_text("0 (0,0,0)\n")
    assert [status(checkout, "9")[0] for _ in range(2)] == ["running"] * 2, "its word may come late"
    answer, complaint = status(checkout, "9")
    assert (
        answer == "failed"
        and "job 9: OAR calls it Terminated, with exit code 0, but it left no exit status" in complaint
    )
    checkout.write(".snakemake/oar/9.status", "0\n")
    assert status(checkout, "9") == ("success", "")


def test_what_another_oars_job_of_this_number_said_is_forgotten(
    fresh: Callable[..., Checkout], oar: Path
) -> None:
    checkout = fresh(STUDY)
    checkout.path(".snakemake/oar").mkdir(parents=True)
    checkout.write(".snakemake/oar/1000.status", "0\n")
    checkout.write("job.sh", "#!/bin/sh\nexec sleep 60 > sleeps\n")
    checkout.path("job.sh").chmod(0o755)
    done = subprocess.run(
        ["profiles/oar/submit", "job.sh"],
        cwd=checkout.folder,
        env=checkout.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "1000\n", done.stderr
    assert not checkout.path(".snakemake/oar/1000.status").exists()


def test_a_job_that_oar_does_not_know_is_given_time_and_then_up(
    fresh: Callable[..., Checkout], oar: Path
) -> None:
    checkout = fresh(STUDY)
    answer, complaint = status(checkout, "8")
    assert answer == "running" and "oarstat does not describe job 8: No job 8" in complaint
    (oar / "8.state").write_text("Running\n")
    assert status(checkout, "8") == ("running", ""), "it had only been busy"
    (oar / "8.state").unlink()
    unknown = checkout.path(".snakemake/oar/8.unknown")
    assert not unknown.exists()
    unknown.write_text("No job 8\n" * 99)
    assert status(checkout, "8")[0] == "failed"


def status(checkout: Checkout, job: str) -> tuple[str, str]:
    """Return standard output and standard error of the profile's status command."""
    done = subprocess.run(
        ["profiles/oar/status", job],
        cwd=checkout.folder,
        env=checkout.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()
