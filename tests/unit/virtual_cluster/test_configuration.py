"""The schedulers of the virtual cluster get their configuration."""

from pathlib import Path

import pytest

from common.errors import InputError
from declared.virtual import Settings
from virtual_cluster.configuration import MARK, gres_conf, job_manager, oar_conf, slurm_conf

PACKAGED = """\
# DB_HOSTNAME="in a comment"
DB_HOSTNAME="127.0.0.1"
DB_PORT="5432"
DB_BASE_PASSWD=""
DB_BASE_PASSWD_RO=""
SERVER_HOSTNAME="localhost"
LOG_FILE="/var/log/oar.log"
#SCHEDULER_MIN_TIME_BETWEEN_2_CALLS=5
CPUSET_PATH="/oar"
"""


def test_oars_configuration_is_the_packages_with_what_differs() -> None:
    first, *lines = oar_conf(PACKAGED, Path("/state"), "secret").splitlines()
    assert first == MARK
    assert lines == [
        '# DB_HOSTNAME="in a comment"',
        'DB_HOSTNAME="10.213.77.254"',
        'DB_PORT="54326"',
        'DB_BASE_PASSWD="secret"',
        'DB_BASE_PASSWD_RO="secret"',
        'SERVER_HOSTNAME="10.213.77.254"',
        'LOG_FILE="/state/oar.log"',
        'SCHEDULER_MIN_TIME_BETWEEN_2_CALLS="1"',
        'CPUSET_PATH="/oar"',
    ]


def test_every_node_has_the_cores_of_its_share() -> None:
    lines = slurm_conf(
        Settings(3, None, None, 2**30, cpu_shares=(1.5, 0.6, 2.0)), Path("/state")
    ).splitlines()
    nodes = [line.split() for line in lines if line.startswith("NodeName=")]
    assert [node[2] for node in nodes] == ["CPUs=2", "CPUs=1", "CPUs=2"]


def test_gpus_belong_to_the_sockets_of_their_node() -> None:
    settings = Settings(2, None, None, 2**30, cpu_shares=(4.0, 1.0), gpus_per_node=4, gpu_type="a100")
    lines = slurm_conf(settings, Path("/state")).splitlines()
    nodes = [line.split() for line in lines if line.startswith("NodeName=")]
    assert [node[2:6] for node in nodes] == [
        ["CPUs=4", "Sockets=2", "CoresPerSocket=2", "Gres=gpu:a100:4"],
        ["CPUs=1", "Sockets=1", "CoresPerSocket=1", "Gres=gpu:a100:4"],
    ]
    assert {"GresTypes=gpu", "TaskPlugin=task/none"} <= set(lines)
    assert [line.split()[0::3] for line in gres_conf(settings, Path("/state")).splitlines()[2:]] == [
        ["NodeName=node1", f"File=/state/gpus/gpu{gpu}"] for gpu in range(4)
    ] + [["NodeName=node2", f"File=/state/gpus/gpu{gpu}"] for gpu in range(4)]
    cores = [line.rpartition("=")[2] for line in gres_conf(settings, Path("/state")).splitlines()[2:]]
    assert cores == ["0-1", "0-1", "2-3", "2-3", "0-0", "0-0", "0-0", "0-0"]
    untyped = Settings(1, None, 4.0, 2**30, gpus_per_node=2, constrain_devices=True)
    assert "Gres=gpu:2 " in slurm_conf(untyped, Path("/state"))
    assert {"GresTypes=gpu", "TaskPlugin=task/cgroup"} <= set(
        slurm_conf(untyped, Path("/state")).splitlines()
    )
    assert "Type=" not in gres_conf(untyped, Path("/state"))


def test_an_oar_that_is_configured_in_other_words_is_refused() -> None:
    with pytest.raises(InputError) as refused:
        oar_conf(PACKAGED.replace("DB_PORT", "PORT"), Path("/state"), "secret")
    error = refused.value
    assert (error.code, error.file, error.got) == ("missing-key", "oar.conf", "DB_PORT")
    assert str(error) == "oar.conf: the Debian package's has no DB_PORT; expected that of OAR 2.5"
    with pytest.raises(InputError) as refused:
        job_manager("my $Log_level;\n", groups=True)
    assert refused.value.code == "missing-key" and str(refused.value.got).startswith("@Tmp_dir_to_clear")


def test_what_a_job_left_in_folders_of_the_machine_stays() -> None:
    written = "my $a = 1;\nmy @Tmp_dir_to_clear = ('/tmp/.','/dev/shm/.','/var/tmp/.');\nmy $b = 2;\n"
    assert job_manager(written, groups=True) == "my $a = 1;\nmy @Tmp_dir_to_clear = ();\nmy $b = 2;\n"
