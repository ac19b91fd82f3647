"""The virtual cluster itself, in a sandbox: up, down, resources of nodes, and refusals."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.campaigns import wait_until
from support.sandbox import KILLED, NOTHING_LEFT, Sandbox, down, up

fault = pytest.mark.fault  # make fault-test
UP_WITHIN_S = 30
RATE_MBIT, SHARE = 100, 0.5
FOREIGN = "ClusterName=real\n"
CONF = "/etc/slurm/slurm.conf"

# Task 0 receives from task 1 and prints the rate in Mbit/s. The first half second does not count, because saved
# tokens let it through.
TRANSFER = """
import os, socket, time
if os.environ["SLURM_PROCID"] == "0":
    listening = socket.create_server(("", 5999))
    connection, _ = listening.accept()
    count, started, end = 0, None, time.monotonic() + 3
    buffer = bytearray(1 << 16)
    while (now := time.monotonic()) < end:
        got = connection.recv_into(buffer)
        if started is None and now > end - 2.5:
            started = now
        elif started is not None:
            count += got
    print(count * 8e-6 / (time.monotonic() - started))
else:
    for attempt in range(50):
        try:
            connection = socket.create_connection((os.environ["TAKER"], 5999), 1)
            break
        except OSError:
            time.sleep(0.1)
    try:
        while True:
            connection.sendall(bytes(1 << 16))
    except OSError:
        pass
"""

BUSY = """
import time
end = time.monotonic() + 2
while time.monotonic() < end:
    pass
print(time.process_time())
"""

SELF = """
import json, os, socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
    asked.connect(("10.213.77.254", 9))
    address = asked.getsockname()[0]
print(json.dumps([socket.gethostname(), address, os.listdir("/tmp")]))
open("/tmp/" + socket.gethostname(), "w").close()
"""


def refusal(corner: Sandbox, *arguments: str) -> str:
    """Return the one line of a refused command."""
    done = corner.python("ringside", "cluster", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture
def cluster(corner: Sandbox) -> Iterator[Sandbox]:
    """A cluster of two slow nodes."""
    up(corner, "--nodes=2", f"--bandwidth={RATE_MBIT}mbit", f"--cpu={SHARE}")
    yield corner
    down(corner)


def test_it_comes_up_quickly_and_leaves_nothing_twice_in_a_row(corner: Sandbox) -> None:
    for _ in range(2):
        assert up(corner, "--nodes=3") < UP_WITHIN_S
        done = corner.run("srun", "--nodes=3", "hostname")
        assert sorted(done.stdout.split()) == ["node1", "node2", "node3"], done.stderr
        assert all(corner.left().values())  # `left` has to see something, or the next line tests nothing
        down(corner)
        assert corner.left() == NOTHING_LEFT


def test_down_without_a_cluster_says_so(corner: Sandbox) -> None:
    done = corner.python("ringside", "cluster", "down")
    assert (done.returncode, done.stdout) == (0, "virtual cluster: there was none\n")


@pytest.mark.parametrize("after_s", [pytest.param(0.3, marks=fault), 0.6])
def test_an_interrupted_start_leaves_nothing(corner: Sandbox, after_s: float) -> None:
    done = corner.run(
        "timeout",
        "--signal=TERM",
        str(after_s),
        sys.executable,
        "-m",
        "ringside",
        "cluster",
        "up",
        "--nodes=40",
    )
    assert done.returncode == 124, done.stderr
    assert corner.left() == NOTHING_LEFT


@pytest.mark.parametrize(
    "reached",
    [
        pytest.param("cluster.json", marks=fault),
        pytest.param("munged.out", marks=fault),
        "slurmctld.out",
        "slurmd-node3.out",
    ],
    ids=lambda file: file.partition(".")[0],
)
def test_what_a_killed_start_left_is_no_obstacle(corner: Sandbox, reached: str) -> None:
    """The start is killed as soon as it has written the file `reached`."""
    kills = (
        f"{sys.executable} -m ringside cluster up --nodes=40 & until [ -e /run/ringside-cluster/{reached} ]; "
        "do :; done; kill -9 $!"
    )
    corner.run("sh", "-c", kills)
    assert corner.left() != NOTHING_LEFT
    up(corner, "--nodes=1")
    down(corner)
    assert corner.left() == NOTHING_LEFT


@pytest.mark.parametrize(
    "program", [pytest.param("munged", marks=fault), "slurmctld", pytest.param("slurmd-node1", marks=fault)]
)
def test_start_killed_before_it_notes_a_daemon_leaves_none(corner: Sandbox, program: str) -> None:
    corner.run(sys.executable, "-c", KILLED, program, "slurm")
    assert any(process.startswith(program.partition("-")[0]) for process in corner.left()["processes"])
    down(corner)
    assert corner.left() == NOTHING_LEFT


@pytest.mark.parametrize("killed", ["slurmctld", "munged|slurmctld|slurmd"])
def test_a_cluster_whose_programs_were_killed_is_not_up(corner: Sandbox, killed: str) -> None:
    up(corner, "--nodes=2")
    assert corner.run("pkill", "--signal=KILL", "--exact", killed).returncode == 0
    up(corner, "--nodes=2")
    assert corner.run("srun", "--nodes=2", "true").returncode == 0
    down(corner)
    assert corner.left() == NOTHING_LEFT


def test_up_twice_is_refused(cluster: Sandbox) -> None:
    assert "already up" in refusal(cluster, "up")
    assert cluster.run("srun", "--nodes=2", "true").returncode == 0


def test_each_node_has_its_own_name_address_and_tmp(cluster: Sandbox) -> None:
    for _ in range(2):
        done = cluster.run("srun", "--nodes=2", sys.executable, "-c", SELF)
        answers = sorted(json.loads(line) for line in done.stdout.splitlines())
        assert [name for name, _, _ in answers] == ["node1", "node2"], done.stderr
        assert [address for _, address, _ in answers] == ["10.213.77.1", "10.213.77.2"]
    assert [files for _, _, files in answers] == [["node1"], ["node2"]]
    assert not Path("/tmp/node1").exists()  # noqa: S108


@pytest.mark.parametrize("taker", ["node1", "node2"])
def test_links_carry_their_rate_and_not_more(cluster: Sandbox, taker: str) -> None:
    giver = {"node1": "node2", "node2": "node1"}[taker]
    cluster.run("sh", "-c", f"echo {taker} > /run/hosts; echo {giver} >> /run/hosts")  # in the order of tasks
    srun = ["srun", "--ntasks=2", "--distribution=arbitrary", "--time=1", sys.executable, "-c", TRANSFER]
    done = cluster.run("env", "SLURM_HOSTFILE=/run/hosts", f"TAKER={taker}", *srun)
    assert 0.1 * RATE_MBIT < float(done.stdout) < 1.05 * RATE_MBIT, done.stderr


def test_a_node_has_its_share_of_the_processor(cluster: Sandbox) -> None:
    done = cluster.run("srun", "--nodes=1", sys.executable, "-c", BUSY)
    assert 0.1 * 2 * SHARE < float(done.stdout) < 1.15 * 2 * SHARE, done.stderr


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("--nodes=0", "--nodes: '0'"),
        ("--nodes=-1", "--nodes: '-1'"),
        ("--nodes=many", "--nodes: 'many'"),
        ("--nodes=100000", "--nodes: '100000'"),
        ("--bandwidth=fast", "--bandwidth: 'fast'"),
        ("--bandwidth=0gbit", "--bandwidth: '0gbit'"),
        ("--bandwidth=", "--bandwidth: ''"),
        ("--cpu=0", "--cpu: '0'"),
        ("--cpu=nan", "--cpu: 'nan'"),
        ("--cpu=-2", "--cpu: '-2'"),
        ("--memory=much", "--memory: 'much'"),
        ("--memory=4", "--memory: '4'"),
    ],
)
def test_bad_settings_are_refused(corner: Sandbox, option: str, key: str) -> None:
    line = refusal(corner, "up", option)
    assert line.startswith(f"ringside: {key} ") and line.endswith("[out-of-range]")
    assert corner.left() == NOTHING_LEFT


def test_another_slurm_is_never_touched(corner: Sandbox) -> None:
    corner.run("sh", "-c", f"printf '{FOREIGN}' > {CONF}")
    try:
        assert CONF in refusal(corner, "up")
        down(corner)
        assert corner.run("cat", CONF).stdout == FOREIGN
    finally:
        corner.run("rm", CONF)


def test_without_root_it_says_so(corner: Sandbox) -> None:
    done = corner.run("unshare", "--user", sys.executable, "-m", "ringside", "cluster", "up")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "needs root" in done.stderr


def test_accounting_lists_jobs_and_refuses_unknown_accounts(corner: Sandbox) -> None:
    assert up(corner, "--nodes=2", "--accounting") < UP_WITHIN_S
    assert corner.run("srun", "--nodes=2", "--job-name=ringside-a.b1.r1", "hostname").returncode == 0
    listed = ("sacct", "-X", "--noheader", "--parsable2", "--format=JobIDRaw,JobName")
    wait_until(lambda: "ringside-a.b1.r1" in corner.run(*listed).stdout, "sacct lists the job", 15)
    number = corner.run(*listed).stdout.partition("|")[0]
    program = "import sys; from launchers import slurm; print(slurm.step_energy(*sys.argv[1:]))"
    energies = [
        corner.run(
            "srun", sys.executable, "-c", program, number, name
        ).stdout.strip()  # as a run's supervisor does
        for name in ("ringside-a.b1.r1", "ringside-other")
    ]
    assert energies == [
        "(None, 'sacct reports 0 energy: this cluster has no energy plugin (AcctGatherEnergyType)')",
        f"(None, 'sacct has no step ringside-other of job {number}')",
    ]
    assert corner.run("srun", "--account=rehearsal", "true").returncode == 0
    done = corner.run("srun", "--account=nobodys", "true")
    assert done.returncode != 0
    assert "Invalid account" in done.stderr
    down(corner)
    assert corner.left() == NOTHING_LEFT
