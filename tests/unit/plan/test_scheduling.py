"""Options of jobs for each scheduler, made from the settings of a site."""

import shlex
from dataclasses import replace
from typing import Any

import pytest
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra

from declared.site import Scheduler, Site, load_site
from plan.geometry import Geometry
from plan.scheduling import allocation_options, build_resources, concurrent_share, run_resources

UNSET: dict[str, Any] = {
    "partition": None, "account": None, "constraint": None, "nodelist": None, "exclude": None,
    "memory_mb": None, "options": (), "concurrent_runs": 1, "build_on": "login", "block_limit_s": 28800,
}  # fmt: skip
ALL: dict[str, Any] = {
    "partition": "gpu", "account": "project-7", "constraint": "a100&ib", "nodelist": "node[01-04]",
    "exclude": "node09", "memory_mb": 64000, "options": ("--qos=long", "--reservation=for us"),
}  # fmt: skip


def site(launcher: str = "slurm", **scheduler: Any) -> Site:
    return replace(
        load_site("virtual"), launcher=launcher, placement="distinct-nodes", cpu_share=None, cores=16,
        nodes=4, ranks_per_node=2, time_limit_s=600.0, scheduler=Scheduler(**{**UNSET, **scheduler}),
    )  # fmt: skip


def geometry(nodes: int, ranks: int) -> Geometry:
    return Geometry(
        nodes=nodes, ranks=ranks, ranks_per_node=ranks // nodes, replicas=ranks, replicas_per_rank=1,
        local_batch=1, effective_batch=1, steps=1, samples_per_epoch=1,
    )  # fmt: skip


def options(resources: dict[str, Any]) -> list[str]:
    return shlex.split(resources["slurm_extra"])


def test_this_machine_is_asked_for_nothing() -> None:
    local = load_site("local")
    assert run_resources(local, geometry(2, 2)) == build_resources(local) == {}


def test_a_slurm_job_has_the_geometry_of_its_run() -> None:
    resources = run_resources(site(), geometry(3, 6))
    assert (resources["nodes"], resources["tasks"], resources["cpus_per_task"], resources["mpi"]) == (
        3,
        6,
        8,
        "srun",
    )
    assert resources["runtime"] == 13, "minutes: the run's 600 s and 180 s for what is around it"
    assert run_resources(replace(site(), wait_for_quiet=300), geometry(3, 6))["runtime"] == 18, (
        "and what it may wait"
    )
    assert resources["mem_mb"] == 0, "no guess of Snakemake's"
    assert options(resources) == ["--ntasks-per-node=2", "--exclusive"]
    assert not {"slurm_partition", "slurm_account", "constraint", "qos"} & set(resources)


def test_one_rank_is_started_without_a_second_srun_around_it() -> None:
    resources = run_resources(site(), geometry(1, 1))
    assert (resources["nodes"], resources["tasks"], resources["mpi"]) == (1, 1, "")
    assert options(resources) == ["--ntasks-per-node=1", "--exclusive"]


def test_a_slurm_job_asks_for_all_that_the_site_says() -> None:
    resources = run_resources(replace(site(**ALL), device="cuda", devices_per_node=2), geometry(2, 4))
    assert (resources["slurm_partition"], resources["slurm_account"], resources["constraint"]) == (
        "gpu",
        "project-7",
        "a100&ib",
    )
    assert (resources["mem_mb"], resources["qos"]) == (64000, "long")
    assert options(resources) == [
        "--ntasks-per-node=2", "--exclusive", "--nodelist=node01,node02", "--exclude=node09",
        "--gpus-per-node=2", "--reservation=for us",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "requested", [run_resources(site(**ALL), geometry(2, 4)), build_resources(site(**ALL))]
)
def test_snakemakes_executor_accepts_the_options(requested: dict[str, Any]) -> None:
    class Job:
        """What the executor looks at."""

        class resources:  # noqa: N801
            slurm_extra = requested["slurm_extra"]

    validate_slurm_extra(Job)


def test_a_build_takes_one_node_and_is_not_alone_there() -> None:
    resources = build_resources(site(**ALL))
    assert (resources["nodes"], resources["cpus_per_task"], resources["mem_mb"]) == (1, 16, 64000)
    assert options(resources) == ["--nodelist=node01", "--exclude=node09", "--reservation=for us"]


def test_block_gets_its_signal_in_time_for_the_current_run() -> None:
    assert allocation_options(site(**ALL), 4) == [
        "--nodes=4", "--ntasks-per-node=2", "--cpus-per-task=8", "--time=480", "--signal=B:TERM@780",
        "--exclusive", "--no-requeue", "--partition=gpu", "--account=project-7", "--constraint=a100&ib",
        "--qos=long", "--mem=64000", "--nodelist=node01,node02,node03,node04", "--exclude=node09",
        "--reservation=for us",
    ]  # fmt: skip
    short = allocation_options(site(block_limit_s=600), 2)
    assert {"--time=10", "--signal=B:TERM@300"} <= set(short), "half of a block is left to work in"


@pytest.mark.parametrize(("runs", "share"), [(1, 100), (2, 50), (3, 33), (100, 1)])
def test_runs_share_the_machine_that_serializes_them(runs: int, share: int) -> None:
    assert concurrent_share(site(concurrent_runs=runs)) == share


def test_oar_job_takes_whole_nodes_for_the_time_limit_of_a_run() -> None:
    assert run_resources(site("oar"), geometry(3, 6)) == {
        "oar": "--resource=host=3,walltime=0:13:00", "runtime": 13
    }  # fmt: skip
    assert build_resources(site("oar"))["oar"] == "--resource=host=1,walltime=2:00:00"


def test_an_oar_job_asks_for_all_that_the_site_says() -> None:
    requested = {
        "partition": "production",
        "constraint": "cluster='gros' or gpu_count > 0",
        "options": ("--type=exotic",),
    }
    line = run_resources(site("oar", **{**ALL, **requested}), geometry(2, 4))["oar"]
    assert shlex.split(line) == [
        "--resource=host=2,walltime=0:13:00",
        "--queue=production",
        "--project=project-7",
        "--property=(cluster='gros' or gpu_count > 0) and host in ('node01', 'node02', 'node03', 'node04') "
        "and host not in ('node09')",
        "--type=exotic",
    ]


def test_a_pbs_job_takes_whole_nodes_in_chunks_that_say_all() -> None:
    assert run_resources(site("pbs"), geometry(3, 6)) == {
        "pbs": "-l select=3:ncpus=16:mpiprocs=2 -l place=scatter:excl -l walltime=0:13:00", "runtime": 13
    }  # fmt: skip
    requested = {
        **ALL,
        "exclude": None,
        "constraint": "gpu_type=a100:ib=true",
        "options": ("-l filesystems=home:eagle",),
    }
    pbs_site = replace(site("pbs", **requested), devices_per_node=2)
    chunk = "ncpus=16:mpiprocs=2:ngpus=2:mem=64000mb:gpu_type=a100:ib=true"
    assert shlex.split(run_resources(pbs_site, geometry(2, 4))["pbs"]) == [
        "-l", f"select=1:host=node01:{chunk}+1:host=node02:{chunk}", "-l", "place=scatter:excl", "-l",
        "walltime=0:13:00", "-q", "gpu", "-A", "project-7", "-l", "filesystems=home:eagle",
    ]  # fmt: skip


def test_a_flux_job_asks_for_all_that_the_site_says() -> None:
    assert run_resources(site("flux"), geometry(3, 6))["flux"] == "--nodes=3 --exclusive --time-limit=780s"
    requested = {**ALL, "memory_mb": None, "constraint": "a100|h100", "options": ("--urgency=20",)}
    line = run_resources(replace(site("flux", **requested), devices_per_node=2), geometry(2, 4))["flux"]
    assert shlex.split(line) == [
        "--nodes=2", "--exclusive", "--gpus-per-node=2", "--time-limit=780s", "--queue=gpu",
        "--bank=project-7", "--requires=(a100|h100) and host:node[01-04] and -host:node09", "--urgency=20",
    ]  # fmt: skip
