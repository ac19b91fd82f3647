"""A real Slurm grants GPUs, which are device files without a driver, and ranks see the granted ones.

Ranks of the product's launcher, in jobs with the product's options, count device files instead of training.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from declared.site import Site, load_site
from plan.scheduling import allocation_options
from support.campaigns import study, wait_until
from support.checkout import CHECKOUT, Checkout
from support.sandbox import NOTHING_LEFT, Sandbox, down, up

GPUS = ["--nodes=2", "--cpu=6", "--gpus=a100:4"]
SITE = """\
description: nodes with GPUs without a driver
launcher: slurm
placement: virtual
device: cuda
devices_per_node: 4
deployment: venv
cores: 6
cpu_share: 6
nodes: 2
ranks_per_node: 4
interface: eth0
bandwidth_bytes_s: 125.0e+6
cache: ~/.cache/ringside
time_limit_s: 100
"""
# Like the wrappers of clusters that give each task one GPU.
ISOLATED = "export CUDA_VISIBLE_DEVICES=$(echo $CUDA_VISIBLE_DEVICES | cut -d, -f$((SLURM_LOCALID + 1)))"

# Starts the ranks of each run, one after the other, as a run's supervisor does.
JOB = """
import json, sys, time
from dataclasses import replace
from pathlib import Path
from declared.site import load_site
from launchers import launch
from common.program_sources import SCRIPTS

folder = Path(sys.argv[1])
for name, run in json.loads((folder / "runs.json").read_text()).items():
    site = load_site("gpus", folder)
    site = replace(site, setup=tuple(run["setup"]), scheduler=replace(site.scheduler, gpu_bind=run["gpu_bind"]))
    (folder / name).mkdir()
    launcher = launch.make_launcher(site, run["spec"])
    (folder / name / "rank_input.json").write_text(json.dumps({"spec": run["spec"], "hosts": launcher.hosts}))
    variables = {"PYTHONPATH": f"{SCRIPTS}:{folder}"}
    environment = {"python": {"executable": sys.executable}, "variables": variables}
    outcome = launch.run_ranks(launcher, environment, folder / name, run["spec"], site, program="rank")
    (folder / name / "outcome.txt").write_text(f"{outcome.status} {outcome.reason}")
while (folder.parent / "hold").exists():
    time.sleep(0.05)
"""
RANK = """
import errno, os
from pathlib import Path
from ranks.worker.context import from_environment
from ranks.worker.devices import device_indices, node_accelerators, rank_accelerators, visible_names
from ranks.worker.process import as_rank, leave_result

def is_granted(file):
    try:
        os.open(file, os.O_RDWR)
    except OSError as error:
        assert error.errno in (errno.ENXIO, errno.EPERM), error
        return error.errno == errno.ENXIO  # no driver, so the control group let it through

def run(folder):
    context = from_environment(folder)
    trains_on_gpu = context.local_rank in context.accelerators
    mine = {
        "host": os.uname().nodename,
        "visible": visible_names(),
        "step": os.environ["SLURM_STEP_GPUS"],
        "indices": device_indices(context, len(visible_names())) if trains_on_gpu else [],
        "own": rank_accelerators(context),
        "node": node_accelerators(context),
        "granted": [file.name for file in sorted(Path("/run/ringside-cluster/gpus").iterdir()) if is_granted(file)],
    }
    leave_result(context, {"ranks": context.group.all_gather(mine)})

as_rank(run)
"""
SNAKEMAKE = ["snakemake", "--profile", "slurm", "--seconds-between-status-checks", "1"]
NO_DRIVER = (
    "sees no accelerator, and no variable hides them all (CUDA_VISIBLE_DEVICES=0,1,2,3 "
    "ROCR_VISIBLE_DEVICES=0,1,2,3): check that their driver works on this node, and that the library is built "
    "for them"
)
Ranks = list[dict[str, Any]]
FILES = ["gpu0", "gpu1", "gpu2", "gpu3"]  # of a node


@dataclass
class Cluster:
    """A cluster of two nodes with four GPUs each, and whether programs can open only those granted to them."""

    corner: Sandbox
    is_constrained: bool


def spec(nodes: int, ranks_per_node: int, replicas_per_rank: int = 1) -> dict[str, Any]:
    """Return the part of a run's spec that ranks read if they do not train."""
    return {
        "run_id": "gpus", "nodes": nodes, "ranks": nodes * ranks_per_node, "ranks_per_node": ranks_per_node,
        "replicas_per_rank": replicas_per_rank, "device": "cuda", "cores": 6, "cores_per_rank": 1,
        "interface": "eth0", "bandwidth_bytes_s": None,
    }  # fmt: skip


def run_of(spec: dict[str, Any], gpu_bind: str | None = None, setup: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"spec": spec, "gpu_bind": gpu_bind, "setup": setup}


def gpu_site(folder: Path, **keys: Any) -> Site:
    """Write the site, and return it with other values of `keys`."""
    (folder / "gpus.yaml").write_text(SITE)
    return replace(load_site("gpus", folder), **keys)


def submit(cluster: Cluster, site: Site, folder: Path, runs: dict[str, Any], *left_out: str) -> None:
    """Submit a job with the product's options, except those `left_out`, that makes these runs in `folder`."""
    folder.mkdir()
    texts = {"gpus.yaml": SITE, "job.py": JOB, "rank.py": RANK, "runs.json": json.dumps(runs)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    nodes = max(run["spec"]["nodes"] for run in runs.values())
    options = [option for option in allocation_options(site, nodes) if option not in left_out]
    program = f"exec {sys.executable} {folder}/job.py {folder}"
    done = cluster.corner.run("sbatch", f"--output={folder}/log.txt", *options, f"--wrap={program}")
    assert done.returncode == 0, done.stderr


def ranks_of(folder: Path, name: str) -> Ranks:
    """Wait for a run to end, and return what its ranks saw."""
    outcome = folder / name / "outcome.txt"
    wait_until(outcome.exists, f"{name} ends")
    assert outcome.read_text() == "ok None", (folder / name / "log.txt").read_text()
    ranks: Ranks = json.loads((folder / name / "result.json").read_text())["ranks"]
    return ranks


def all_of(ranks: Ranks, field: str) -> list[Any]:
    return [rank[field] for rank in ranks]


def end(cluster: Cluster) -> None:
    """Stop the cluster, which leaves nothing behind.

    Groups for devices are the machine's, so that two constrained clusters at a time would disturb each other.
    """
    down(cluster.corner)
    assert cluster.corner.left() == NOTHING_LEFT
    assert not cluster.is_constrained or not list(Path("/sys/fs/cgroup/devices").glob("slurm_node*"))


@pytest.fixture(
    scope="module", params=[True, pytest.param(False, marks=pytest.mark.long)], ids=["constrained", "visible"]
)
def cluster(request: pytest.FixtureRequest, corners: Callable[[], Sandbox]) -> Iterator[Cluster]:
    """The cluster in a sandbox of its own."""
    corner = corners()
    up(corner, *GPUS, *(["--constrain-devices"] if request.param else []))
    started = Cluster(corner, request.param)
    yield started
    end(started)


def test_ranks_own_different_gpus(cluster: Cluster, shared_folder: Path) -> None:
    runs = {
        "all": run_of(spec(2, 4)),
        "closest": run_of(spec(2, 4), gpu_bind="closest"),
        "mirrored": run_of(spec(2, 1, replicas_per_rank=4), gpu_bind="closest"),
        "setup": run_of(spec(1, 4), setup=(ISOLATED,)),
        "two of four": run_of(spec(1, 2)),
        "pairs": run_of(spec(1, 2, replicas_per_rank=2), gpu_bind="closest"),
        "hybrid": run_of(
            {**spec(1, 5), "device": "hybrid", "rank_cores": [1, 1, 1, 1, 2]}, gpu_bind="closest"
        ),
    }
    folder = shared_folder / "job"
    submit(cluster, gpu_site(shared_folder), folder, runs)
    ranks = {name: ranks_of(folder, name) for name in runs}

    assert all_of(ranks["all"], "host") == ["node1"] * 4 + ["node2"] * 4
    assert all_of(ranks["all"], "visible") == [["0", "1", "2", "3"]] * 8
    assert all_of(ranks["all"], "indices") == [[0], [1], [2], [3]] * 2
    assert all_of(ranks["all"], "node") == [["0", "1", "2", "3"]] * 8
    assert all_of(ranks["all"], "granted") == [FILES] * 8

    one_each = [["0"], ["1"], ["2"], ["3"]]
    assert all_of(ranks["closest"], "indices") == [[0]] * 8
    if cluster.is_constrained:  # each rank calls its own GPU number 0
        assert all_of(ranks["closest"], "own") == [["0"]] * 8
        assert all_of(ranks["closest"], "granted") == [[file] for file in FILES] * 2
    else:
        assert all_of(ranks["closest"], "own") == one_each * 2
        assert all_of(ranks["closest"], "node") == [["0", "1", "2", "3"]] * 8

    assert all_of(ranks["mirrored"], "host") == ["node1", "node2"]
    assert all_of(ranks["mirrored"], "indices") == [[0, 1, 2, 3]] * 2

    assert all_of(ranks["setup"], "visible") == all_of(ranks["setup"], "own") == one_each
    assert all_of(ranks["setup"], "indices") == [[0]] * 4

    assert all_of(ranks["two of four"], "own") == [["0"], ["1"]]
    assert all_of(ranks["pairs"], "indices") == [[0, 1]] * 2
    if cluster.is_constrained:
        assert all_of(ranks["pairs"], "granted") == [FILES[:2], FILES[2:]]
    else:
        assert all_of(ranks["pairs"], "own") == [["0", "1"], ["2", "3"]]
    assert all_of(ranks["hybrid"], "own") == [*one_each, []], "the last rank trains on CPU cores"
    assert all_of(ranks["hybrid"], "indices") == [[0], [1], [2], [3], []]


def test_job_sees_no_more_than_it_requests(cluster: Cluster, shared_folder: Path) -> None:
    """Slurm gives an exclusive job all GPUs of its nodes, and its steps as many as it asked for."""
    site = gpu_site(shared_folder, devices_per_node=2, ranks_per_node=2)
    folder = shared_folder / "job"
    submit(cluster, site, folder, {"two": run_of(spec(2, 2))})
    ranks = ranks_of(folder, "two")
    assert all_of(ranks, "host") == ["node1"] * 2 + ["node2"] * 2
    assert all_of(ranks, "visible") == [["0", "1"]] * 4
    assert all_of(ranks, "indices") == [[0], [1]] * 2
    assert all_of(ranks, "granted") == [FILES[:2] if cluster.is_constrained else FILES] * 4


def test_jobs_that_share_a_node_get_different_gpus(cluster: Cluster, shared_folder: Path) -> None:
    """Ringside requests whole nodes; a job without --exclusive stands for the job of another user."""
    site = gpu_site(shared_folder, devices_per_node=2, ranks_per_node=2, cores=2)
    site = replace(site, scheduler=replace(site.scheduler, nodelist="node1"))
    folders = [shared_folder / "one", shared_folder / "other"]
    hold = shared_folder / "hold"
    hold.touch()
    for folder in folders:
        submit(cluster, site, folder, {"two": run_of(spec(1, 2))}, "--exclusive")
    first, second = (ranks_of(folder, "two") for folder in folders)
    hold.unlink()
    assert all_of(first, "host") == all_of(second, "host") == ["node1"] * 2
    assert all_of(first, "step") == ["0,1"] * 2 and all_of(second, "step") == ["2,3"] * 2
    assert all_of(first, "indices") == all_of(second, "indices") == [[0], [1]]
    if cluster.is_constrained:  # each job counts from 0
        assert all_of(first, "own") == all_of(second, "own") == [["0"], ["1"]]
        assert (first[0]["granted"], second[0]["granted"]) == (FILES[:2], FILES[2:])
    else:
        assert (first[0]["node"], second[0]["node"]) == (["0", "1"], ["2", "3"])


@pytest.mark.long
def test_closest_gpu_is_the_one_of_the_ranks_cores(
    corners: Callable[[], Sandbox], shared_folder: Path
) -> None:
    """In a node whose first GPU belongs to the second socket."""
    copy = Checkout(shared_folder / "checkout")
    configuration = "workflow/scripts/virtual_cluster/configuration.py"
    copy.edit(configuration, "socket_of_gpu = gpu *", "socket_of_gpu = (settings.gpus_per_node - 1 - gpu) *")
    copy.edit(configuration, "_devices else 'none'}", "_devices else 'affinity'}")
    corner = corners()
    options = ["--nodes=1", "--cpu=2", "--gpus=2"]
    done = corner.python("ringside", "cluster", "up", *options, folder=copy.folder)
    assert done.returncode == 0, done.stderr
    site = gpu_site(shared_folder, devices_per_node=2, ranks_per_node=2, cores=2, nodes=1)
    runs = {"all": run_of(spec(1, 2)), "closest": run_of(spec(1, 2), gpu_bind="closest")}
    cluster = Cluster(corner, is_constrained=False)
    submit(cluster, site, shared_folder / "job", runs)
    assert all_of(ranks_of(shared_folder / "job", "all"), "indices") == [[0], [1]]
    assert all_of(ranks_of(shared_folder / "job", "closest"), "own") == [["1"], ["0"]]
    end(cluster)


@pytest.mark.parametrize("cluster", [True], indirect=True, ids=["constrained"])
class TestWithoutADriver:
    """Messages of commands if Slurm grants GPUs whose driver does not answer."""

    @pytest.fixture
    def copy(self, shared_folder: Path) -> Checkout:
        """A checkout with the site `gpus` and a study of one run on it."""
        copy = Checkout(shared_folder / "checkout", study(nodes="2", epochs=2))
        if not copy.path(".venv").exists():
            copy.path(".venv").symlink_to(CHECKOUT / ".venv")
        copy.write("config/sites/gpus.yaml", SITE)
        return copy

    @pytest.fixture
    def with_pytorch(self, copy: Checkout, real: Callable[[str], Any]) -> Checkout:
        """The checkout, whose site has a PyTorch for CPUs: it finds no driver either."""
        executable = real("pytorch")["python"]["executable"]
        keys = "max_other_cpu_share: 1\nmax_steal_share: 1\nreference: false\n"
        installed = f"installed: {{pytorch: {{executable: {executable}}}}}\n"
        copy.write("config/sites/gpus.yaml", SITE + keys + installed)
        return copy

    def test_site_and_doctor_read_the_gpus_of_slurm(self, cluster: Cluster, copy: Checkout) -> None:
        done = cluster.corner.run("./ringside", "site", "mine", folder=copy.folder)
        site = load_site("mine", copy.path("config/sites"))
        assert (site.device, site.devices_per_node, site.ranks_per_node) == ("cuda", 4, 4)
        text = copy.path("config/sites/mine.yaml").read_text()
        assert "sinfo: gres gpu:a100:4; ASSUMED to be NVIDIA's" in text
        assert "ok    GPUs in Slurm: 4 or more (a100) on 2 nodes" in done.stdout, done.stdout + done.stderr
        granted = "nvidia-smi is not installed; CUDA_VISIBLE_DEVICES=0,1,2,3"
        assert f"FAIL  devices: node1, node2: has 0 ({granted})" in done.stdout

    def test_doctor_refuses_more_gpus_than_nodes_have(self, cluster: Cluster, copy: Checkout) -> None:
        copy.edit("config/sites/gpus.yaml", "devices_per_node: 4", "devices_per_node: 5")
        done = cluster.corner.run("./ringside", "doctor", "--site", "gpus", folder=copy.folder)
        failures = [line for line in done.stdout.splitlines() if line.startswith("FAIL  ")]
        assert [line[6:].partition(":")[0] for line in failures] == ["virtual cluster", "GPUs in Slurm"]
        assert "devices_per_node: is 5, but no node has more than 4" in failures[1]

    @pytest.mark.long
    def test_runs_say_that_no_driver_answers(self, cluster: Cluster, with_pytorch: Checkout) -> None:
        """Both ways of submission get their GPUs."""
        copy = with_pytorch
        by_run = [*SNAKEMAKE, "records", "--config", "site=gpus"]
        by_block = ["./ringside", "submit", "small", "--site", "gpus", "--wait"]
        for command in (by_run, by_block):
            shutil.rmtree(copy.results, ignore_errors=True)
            done = cluster.corner.run(*command, folder=copy.folder, timeout_s=300)
            (record,) = (
                json.loads(copy.path(f"results/small/{name}").read_text()) for name in copy.records()
            )
            assert record["status"] == "failed" and record["reason"].endswith(NO_DRIVER), (
                done.stdout + done.stderr
            )

    @pytest.mark.long
    def test_refusal_of_slurm_reaches_the_user(self, cluster: Cluster, with_pytorch: Checkout) -> None:
        """Jobs for more GPUs than nodes have are refused in both ways of submission."""
        copy = with_pytorch
        for old, new in {
            "devices_per_node: 4": "devices_per_node: 5",
            "placement: virtual": "placement: distinct-nodes",
            "cpu_share: 6\n": "",
        }.items():
            copy.edit("config/sites/gpus.yaml", old, new)
        refusal = "Requested node configuration is not available"
        done = cluster.corner.run("./ringside", "submit", "small", "--site", "gpus", folder=copy.folder)
        assert done.returncode == 2, done.stdout + done.stderr
        last = done.stderr.splitlines()[-1]
        assert refusal in last and last.endswith("[scheduler-refused]")
        done = cluster.corner.run(*SNAKEMAKE, "runs", "--config", "site=gpus", folder=copy.folder)
        assert done.returncode == 1
        assert [
            line for line in done.stdout.splitlines() if "Slurm refuses the job" in line and refusal in line
        ]
