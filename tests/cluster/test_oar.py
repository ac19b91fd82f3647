"""A real OAR on a virtual cluster in a sandbox: up, down, a campaign, and faults (`make oar-test`).

After each fault no unfinished run counts as done, lost runs are retried, and finished runs are not repeated.
"""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.campaigns import Campaign, study, wait_until
from support.installed_site import INSTALLED
from support.sandbox import KILLED, NOTHING_LEFT, Sandbox
from virtual_cluster import control, oar

pytestmark = pytest.mark.oar
CONF = "/etc/oar/oar.conf"
MPI = ("openmpi-bin",)  # mpirun and the MPI library
# A rank that starts an MPI program, as an adapter does. The program adds up its ranks' numbers, then runs the
# statement in place of THEN.
MPI_RANK = """
import ctypes, json, os, signal, socket, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
if len(sys.argv) == 2:
    sys.exit(abs(subprocess.run([sys.executable, __file__, folder, "program"]).returncode))
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
world, integer, add = (ctypes.byref(ctypes.c_byte.in_dll(mpi, f"ompi_{name}")) for name in ("mpi_comm_world", "mpi_int", "mpi_op_sum"))
mpi.MPI_Init(None, None)
rank, total = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Allreduce(ctypes.byref(ctypes.c_int(rank.value + 1)), ctypes.byref(total), 1, integer, add, world)
names = ("RINGSIDE_RANK", "RINGSIDE_LOCAL_RANK", "TOLD")
found = {"mpi": rank.value, "total": total.value, "host": socket.gethostname(), **{name: os.environ[name] for name in names}}
(folder / f"rank{os.environ['RINGSIDE_RANK']}.json").write_text(json.dumps(found))
THEN
mpi.MPI_Finalize()
"""
# Runs in the job, like the supervisor of a run.
MPI_JOB = """
import dataclasses, json, sys
from pathlib import Path
from declared.site import load_site
from launchers import launch
from launchers.protocol import AttemptLost
folder = Path(sys.argv[1])
site = dataclasses.replace(load_site("virtual-oar"), time_limit_s=60.0)
spec = {"run_id": "a.b.r1", "nodes": 2, "ranks": 4, "ranks_per_node": 2, "cores": 1, "cores_per_rank": 1, "device": "cpu", "bandwidth_bytes_s": None}
environment = {"python": {"executable": sys.executable}, "variables": {"PYTHONPATH": str(folder), "TOLD": "a word; $(id)"}}
try:
    outcome = dataclasses.asdict(launch.run_ranks(launch.make_launcher(site, spec, mpi=True), environment, folder, spec, site, program="rank"))
except AttemptLost as lost:
    outcome = {"status": "lost", "reason": str(lost)}
(folder / "outcome.json").write_text(json.dumps(outcome))
"""


@pytest.fixture(scope="session")
def installed(root: None) -> None:
    """Install OAR from Debian's packages."""
    subprocess.run([control.INSTALL, *oar.PACKAGES], check=True)


def up(corner: Sandbox, *options: str) -> None:
    """Start a cluster in the sandbox."""
    done = corner.python("ringside", "cluster", "up", "--scheduler=oar", *options)
    assert done.returncode == 0, done.stderr


def down(corner: Sandbox) -> None:
    """Stop the cluster in the sandbox."""
    done = corner.python("ringside", "cluster", "down", "--force")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def cluster(corner: Sandbox) -> Iterator[Sandbox]:
    """A cluster of three nodes."""
    up(corner)
    yield corner
    down(corner)
    assert corner.left() == NOTHING_LEFT


class OarCampaign(Campaign):
    """A study at the site virtual-oar, in a checkout that all nodes can access."""

    site, profile = "virtual-oar", "oar"

    def __init__(self, corner: Sandbox, folder: Path, text: str) -> None:
        super().__init__(folder, text)
        self.corner = corner
        self.checkout.edit("config/oar.yaml", "site: grid5000", "site: virtual-oar")

    def entered(self, *command: str) -> list[str]:
        """Return the command that runs `command` in the sandbox."""
        return self.corner.entered(*command, folder=self.checkout.folder)

    def jobs(self) -> list[str]:
        """Return the numbers of the campaign's jobs in order."""
        folder = self.checkout.path(".snakemake/oar")
        return sorted({path.stem for path in folder.glob("*.txt")}, key=int) if folder.exists() else []


def submit(corner: Sandbox, folder: Path, script: str, nodes: int = 1) -> str:
    """Submit a job and return its number."""
    file = folder / "job.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    done = corner.run("oarsub", f"--resource=host={nodes},walltime=0:5:0", str(file), folder=folder)
    return done.stdout.rpartition("OAR_JOB_ID=")[2].strip()


def state(corner: Sandbox, job: str) -> str:
    """Return the state of a job as OAR reports it."""
    output = corner.run("oarstat", "-fj", job).stdout
    return next((line.split(" = ")[1] for line in output.splitlines() if line.startswith("    state = ")), "")


def kill(corner: Sandbox, node: str, program: str) -> int:
    """Kill the processes of a node whose command line matches, and return their number."""
    script = """
        for pid in $(cat /sys/fs/cgroup/memory/ringside/$1/cgroup.procs /sys/fs/cgroup/ringside/$1/cgroup.procs); do
            if tr '\\0' ' ' < /proc/$pid/cmdline | grep -q "$2" && kill -9 $pid; then echo $pid; fi
        done
    """
    return len(corner.run("sh", "-c", script, "sh", node, program).stdout.split())


def the_row(campaign: Campaign) -> dict[str, str]:
    (row,) = campaign.rows()
    return row


def test_start_killed_before_it_notes_a_daemon_leaves_none(corner: Sandbox) -> None:
    for program in ("postgres", "almighty", "sshd-node1"):
        corner.run(sys.executable, "-c", KILLED, program, "oar")
        left = corner.left()
        assert any(program.partition("-")[0] in process.lower() for process in left["processes"])
        assert {"/etc/oar", "/var/lib/oar"} <= set(left["files"])
        down(corner)
        assert corner.left() == NOTHING_LEFT


def test_another_oar_is_never_touched(corner: Sandbox) -> None:
    corner.run(
        "sh",
        "-c",
        f"sed s/^DB_BASE_PASSWD=.*/DB_BASE_PASSWD=real/ {CONF} > /run/real; mount --bind /run/real {CONF}",
    )
    try:
        done = corner.python("ringside", "cluster", "up", "--scheduler=oar")
        assert (done.returncode, done.stderr.count("\n")) == (
            2,
            1,
        ) and f"{CONF}: belongs to another OAR" in done.stderr
        down(corner)
        assert "DB_BASE_PASSWD=real" in corner.run("cat", CONF).stdout
    finally:
        corner.run("umount", CONF)


def test_job_has_its_cpu_share_and_ends_with_its_stray_processes(
    cluster: Sandbox, shared_folder: Path
) -> None:
    measured = (
        "import time\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end: pass\n"
        "print(time.process_time())"
    )
    (shared_folder / "busy.py").write_text(measured)
    stray = "oarsh node2 'setsid sleep 987 > /dev/null 2>&1 < /dev/null & setsid sleep 988'"
    job = submit(
        cluster, shared_folder, f"{sys.executable} busy.py > used; setsid sleep 986 & {stray}", nodes=2
    )
    wait_until(
        lambda: len(cluster.run("pgrep", "-f", "^sleep 98").stdout.split()) == 3, "all three are there"
    )
    assert 0.1 * 2 * 0.6 < float((shared_folder / "used").read_text()) < 1.15 * 2 * 0.6
    assert "jobs that wait or run" in cluster.python("ringside", "cluster", "down").stderr
    cluster.run("oardel", job)
    wait_until(lambda: state(cluster, job) == "Error", "the job is gone")
    assert not cluster.run("pgrep", "-f", "^sleep 98").stdout


def test_a_campaign_by_its_profile_from_submission_to_figures(cluster: Sandbox, shared_folder: Path) -> None:
    text = (
        study(nodes="[1, 2]", epochs=2, figure="{kind: by_factor, name: by_nodes, x: nodes}")
        + "  bandwidth: [0, 200]\n"
    )
    campaign = OarCampaign(cluster, shared_folder, text + "exclude: [{nodes: 1, bandwidth: 200}]\n")
    with campaign.running("figures") as snakemake:
        assert campaign.finish(snakemake, 600) == 0, campaign.output()
    rows = sorted(campaign.rows(), key=lambda row: row["run_id"])
    assert [row["status"] for row in rows] == ["ok"] * 3, [row["reason"] for row in rows]
    for row in rows:
        assert (
            row["hosts"] == " ".join(f"node{i}" for i in range(1, int(row["nodes"]) + 1))
            and row["placement"] == "virtual"
        )
        assert float(row["throttled_s"]) > 0 and int(row["node_memory_bytes"]) == 6 << 30, (
            "the node's own quotas"
        )
    assert len({row["job"] for row in rows}) == 3
    with open(campaign.results / "tables" / "network.csv", newline="") as table:
        achieved = {int(row["bandwidth"]): float(row["achieved_bytes_s"]) for row in csv.DictReader(table)}
    assert 0.1 * 25e6 < achieved[200] < 1.05 * 25e6 < achieved[0] < 1.05 * 125e6, (
        "links are as fast as they were made"
    )
    assert "virtual" in (campaign.results / "figures" / "by_nodes.caption.md").read_text().lower()
    jobs = campaign.jobs()
    with campaign.running("figures") as again:
        assert campaign.finish(again) == 0
    assert campaign.jobs() == jobs, "nothing was left to do"


@pytest.mark.skipif(
    "lbann" not in INSTALLED, reason="this site has no LBANN installed (make oar-test SITE=...)"
)
def test_lbann_trains_on_two_nodes(cluster: Sandbox, shared_folder: Path) -> None:
    campaign = OarCampaign(cluster, shared_folder, study("lbann", nodes="[1, 2]", epochs=2))
    lbann = INSTALLED["lbann"]
    site = campaign.checkout.path("config/sites/virtual-oar.yaml")
    installed = {"lbann": {"executable": lbann.executable, "variables": dict(lbann.variables)}}
    site.write_text(f"{site.read_text()}installed: {json.dumps(installed)}\n")
    with campaign.running() as snakemake:
        assert campaign.finish(snakemake, 400) == 0, campaign.output()
    rows = sorted(campaign.rows(), key=lambda row: int(row["nodes"]))
    assert [row["status"] for row in rows] == ["ok"] * 2, [row["reason"] for row in rows]
    assert [len(row["hosts"].split()) for row in rows] == [1, 2]
    assert rows[1]["transport"] == "mpi over tcp eth0" and "LBANN" in rows[1]["library_version"]
    assert float(rows[1]["sent_bytes"]) > 24 * 544_522 * 4 / 2, "gradients go through the links"
    assert float(rows[1]["train_loss"]) < 2


def sshd_of_the_second_node(cluster: Sandbox, job: str) -> Callable[[], object]:
    assert kill(cluster, "node2", "^sshd") > 1

    def mend() -> None:
        cluster.run(sys.executable, "-c", "from virtual_cluster import oar; oar.start_node('node2')")
        cluster.run("oarnodesetting", "-h", "node2", "-s", "Alive")

    return mend


def deletion(cluster: Sandbox, job: str) -> Callable[[], object]:
    cluster.run("oardel", job)
    return lambda: None


def link_of_the_first_node(cluster: Sandbox, job: str) -> Callable[[], object]:
    """Delete the job while the link is down: OAR cannot end it until the link is up again."""
    link = ["ip", "-n", "ringside-node1", "link", "set", "eth0"]
    cluster.run(*link, "down")
    cluster.run("oardel", job)
    wait_until(lambda: state(cluster, job) == "Running", "OAR has not noticed")
    cluster.run(*link, "up")
    return lambda: None


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (sshd_of_the_second_node, "lost: rank 1 on node2: Connection to node2 closed by remote host."),
        (deletion, "ended, cause unknown: it was killed, its node is gone, or its record cannot be read"),
        (
            link_of_the_first_node,
            "ended, cause unknown: it was killed, its node is gone, or its record cannot be read",
        ),
    ],
)
def test_what_is_lost_is_tried_again(
    cluster: Sandbox, shared_folder: Path, fault: Callable[[Sandbox, str], Callable[[], object]], reason: str
) -> None:
    campaign = OarCampaign(cluster, shared_folder, study(nodes="2", replicates=2, epochs=8))
    with campaign.running() as snakemake:
        wait_until(lambda: len(campaign.checkout.records()) == 1, "one run is done", 240)
        broken = campaign.wait_for_epoch()
        mend = fault(cluster, campaign.jobs()[-1])
        try:
            assert campaign.finish(snakemake, 400) == 0, campaign.output()
        finally:
            mend()
    rows = {row["attempt"]: row for row in campaign.rows()}
    assert set(rows) == {"1", "2"} and {row["status"] for row in rows.values()} == {"ok"}
    assert (
        rows["2"]["unfinished_attempts"].startswith(f"1: {reason}") and not rows["1"]["unfinished_attempts"]
    )
    assert not (broken / "record.json").exists()
    assert sorted(campaign.attempts()) == ["attempt-1", "attempt-1", "attempt-2"], (
        "what was finished was not repeated"
    )


def test_a_run_that_ends_while_its_node_is_out_of_sight_is_kept(
    cluster: Sandbox, shared_folder: Path
) -> None:
    campaign = OarCampaign(cluster, shared_folder, study(nodes="1", epochs=8))
    link = ["ip", "-n", "ringside-node1", "link", "set", "eth0"]
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        cluster.run(*link, "down")
        try:
            wait_until(campaign.checkout.records, "the record", 120)
            assert state(cluster, campaign.jobs()[-1]) == "Running"
        finally:
            cluster.run(*link, "up")
        assert campaign.finish(snakemake) == 0, campaign.output()
    assert the_row(campaign)["status"] == "ok" and campaign.attempts() == ["attempt-1"]


def test_a_rank_killed_by_sigkill_is_a_failed_row(cluster: Sandbox, shared_folder: Path) -> None:
    campaign = OarCampaign(cluster, shared_folder, study(nodes="2"))
    with campaign.running() as snakemake:
        campaign.wait_for_epoch()
        assert kill(cluster, "node2", "python.*ranks.worker")
        assert campaign.finish(snakemake) == 0, campaign.output()
    row = the_row(campaign)
    assert row["status"] == "failed" and row["reason"].startswith("rank 1 on node2 was killed"), row["reason"]
    assert campaign.attempts() == ["attempt-1"], (
        "a failure is data: that its neighbour lost it is no lost node"
    )


def mpi_run(cluster: Sandbox, folder: Path, then: str) -> tuple[str, Path]:
    """Submit a run of four MPI ranks on two nodes, whose program executes `then` after its all-reduce.

    Returns:
        The job, and the file to which it writes its outcome.
    """
    subprocess.run([control.INSTALL, *MPI], check=True)
    (folder / "rank.py").write_text(MPI_RANK.replace("THEN", then))
    (folder / "job.py").write_text(MPI_JOB)
    scripts = control.CHECKOUT / "workflow" / "scripts"
    command = f"cd {control.CHECKOUT} && PYTHONPATH={scripts} {sys.executable} {folder}/job.py {folder}"
    return submit(cluster, folder, command, nodes=2), folder / "outcome.json"


@pytest.mark.parametrize(
    ("then", "status", "reason"),
    [
        ("", "ok", None),
        (
            "sys.exit(3) if rank.value == 3 else time.sleep(50)",
            "failed",
            "rank 3 on NODE ended with status 3",
        ),
    ],
)
def test_mpi_programs_of_ranks_meet_by_mpirun_over_oarsh(
    cluster: Sandbox, shared_folder: Path, then: str, status: str, reason: str | None
) -> None:
    _, outcome_file = mpi_run(cluster, shared_folder, then)
    wait_until(outcome_file.exists, "the run is over", 120)
    outcome = json.loads(outcome_file.read_text())
    results = [json.loads((shared_folder / f"rank{rank}.json").read_text()) for rank in range(4)]
    assert [(result["mpi"], result["total"], result["RINGSIDE_LOCAL_RANK"]) for result in results] == [
        (0, 10, "0"), (1, 10, "1"), (2, 10, "0"), (3, 10, "1"),
    ]  # fmt: skip
    hosts = [result["host"] for result in results]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
    expected = (status, reason and reason.replace("NODE", hosts[3]))
    assert (outcome["status"], outcome["reason"]) == expected, (shared_folder / "log.txt").read_text()
    assert {result["TOLD"] for result in results} == {"a word; $(id)"}
    assert not cluster.run("pgrep", "-f", str(shared_folder / "rank.py")).stdout, "nothing of it is left"


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        ("^sshd", "lost", r"mpirun: Connection to NODE closed by remote host\."),
        ("orted", "lost", r"mpirun: ORTE has lost communication with a remote daemon\."),
        ("rank.py .* program", "failed", "rank [23] on NODE ended with status 9"),
    ],
)
def test_node_that_mpirun_loses_differs_from_a_killed_rank(
    cluster: Sandbox, shared_folder: Path, program: str, status: str, reason: str
) -> None:
    _, outcome_file = mpi_run(cluster, shared_folder, "time.sleep(50)")
    wait_until((shared_folder / "rank3.json").exists, "the ranks have met", 90)
    node = json.loads((shared_folder / "rank3.json").read_text())["host"]
    assert kill(cluster, node, program)
    try:
        wait_until(outcome_file.exists, "the run is over", 90)
        outcome, log = json.loads(outcome_file.read_text()), (shared_folder / "log.txt").read_text()
        assert outcome["status"] == status and re.fullmatch(
            reason.replace("NODE", node), outcome["reason"]
        ), f"{outcome}\n{log}"
    finally:
        if program == "^sshd":
            cluster.run(sys.executable, "-c", f"from virtual_cluster import oar; oar.start_node('{node}')")
            cluster.run("oarnodesetting", "-h", node, "-s", "Alive")
    wait_until(
        lambda: not cluster.run("pgrep", "-f", str(shared_folder / "rank.py")).stdout, "nothing of it is left"
    )
