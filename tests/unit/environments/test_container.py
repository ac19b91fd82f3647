"""How an image is opened: what a site says becomes options, each path one argument whatever is in it."""

import csv
import itertools
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from common.files import digest_file, file_signature
from common.shell import capture
from declared.site import Site, load_site
from environments import container
from environments.container import Bind, command_in_image, is_unchanged
from launchers.processes import pkill_command
from launchers.rank_command import in_image

READS, WRITES = Path("/checkout/workflow/scripts"), Path("/results/attempt-1")


@pytest.fixture
def site() -> Site:
    return load_site("local")


def mounts(command: list[str]) -> list[list[str]]:
    """The fields of all --mount options, as Apptainer reads them (CSV)."""
    values = [value for option, value in itertools.pairwise(command) if option == "--mount"]
    return list(csv.reader(values))


def opened(site: Site) -> list[str]:
    return in_image("/cache/image.sif", ["python", "-m", "x"], ["PYTHONPATH"], site, [READS], WRITES)


def test_it_is_isolated_and_what_it_sees_is_named(site: Site) -> None:
    command = opened(site)
    assert {"--cleanenv", "--no-eval", "--no-home", "tmp,cwd,hostfs"} <= set(command)
    assert mounts(command) == [
        ["type=bind", f"source={READS}", f"destination={READS}", "ro"],
        ["type=bind", f"source={WRITES}", f"destination={WRITES}"],
    ]
    assert command[-3:] == ["python", "-m", "x"] and "/cache/image.sif" in command
    assert not {"--nv", "--rocm"} & set(command)


def test_scratch_and_binds_are_the_sites(site: Site) -> None:
    site = replace(site, scratch=Path("/scratch"), binds=("/dev/infiniband", "/lustre/data:/data"))
    assert mounts(opened(site))[2:] == [
        ["type=bind", "source=/scratch", "destination=/scratch"],
        ["type=bind", "source=/dev/infiniband", "destination=/dev/infiniband"],
        ["type=bind", "source=/lustre/data", "destination=/data"],
    ]


@pytest.mark.parametrize("gpu", ["nv", "rocm"])
def test_the_drivers_are_the_sites(site: Site, gpu: str) -> None:
    assert f"--{gpu}" in opened(replace(site, device="cuda", images=replace(site.images, gpu=gpu)))


@pytest.mark.parametrize("path", ["/a b", "/a,b", '/a"b', "/a$(touch x)b", "/a'b;c", '/a, "b" c'])
def test_a_path_stays_one_whatever_is_in_it(path: str) -> None:
    assert mounts(command_in_image("/image.sif", ["true"], [Bind(path, writable=True)])) == [
        ["type=bind", f"source={path}", f"destination={path}"]
    ]


def test_replaced_image_is_not_the_recorded_one(tmp_path: Path) -> None:
    image, source = tmp_path / "image.sif", tmp_path / "brought.sif"
    for file in (image, source):
        file.write_text("the image")
    recorded = {"path": str(image), "sha256": digest_file(image), "written": file_signature(image)}
    recorded["source"] = {"path": str(source), "written": file_signature(source)}
    assert is_unchanged(recorded)
    os.utime(image, (1, 1))
    assert is_unchanged(recorded), "a date says nothing where the content is the same"
    source.write_text("another")
    assert not is_unchanged(recorded), "the site's file was replaced"
    source.unlink()
    assert is_unchanged(recorded), "it was copied"
    image.write_text("not it ..")
    assert not is_unchanged(recorded)
    image.unlink()
    assert not is_unchanged(recorded)


def test_the_ranks_of_an_image_are_found_by_their_command_line(site: Site) -> None:
    command = in_image(
        "/cache/image.sif", ["python", "-m", "ranks.worker", "/r/attempt-1"], [], site, [READS], WRITES
    )
    pattern = pkill_command(command)[-1]
    assert re.search(pattern, "/opt/ringside/venv/bin/python3 -m ranks.worker /r/attempt-1")
    assert not re.search(pattern, pattern) and not re.search(pattern, "python -m ranks.worker /r/attempt-2")


@pytest.mark.parametrize(("user", "namespace"), [(0, True), (1000, False)])
def test_root_enters_by_a_user_namespace(user: int, namespace: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container.os, "geteuid", lambda: user)
    assert ("--userns" in command_in_image("/image.sif", ["true"])) == namespace


@pytest.mark.parametrize("pmix", [True, False])
def test_a_rank_of_mpi_finds_its_server_from_within(tmp_path: Path, pmix: bool) -> None:
    """What srun --mpi=pmix or mpirun tells, its server's folder among it.

    Of other ranks' variables nothing is let in.
    """
    (tmp_path / "apptainer").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "apptainer").chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_PROCID": "1",
        "OMPI_MCA_ess": "^singleton",
    }
    variables |= {"APPTAINER_BIND": "/home", "SECRET": "x"}
    server = {"PMIX_RANK": "1", "PMIX_SERVER_TMPDIR": "/run/pmix.2.0/"} if pmix else {}
    done = capture(command_in_image("/image.sif", ["true"]), env=variables | server, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert seen.get("APPTAINER_BIND") == server.get("PMIX_SERVER_TMPDIR")
    let_in = {name.removeprefix("APPTAINERENV_") for name in seen if name.startswith("APPTAINERENV_")}
    assert let_in == ({*server, "SLURM_PROCID", "OMPI_MCA_ess"} if pmix else set())


def test_a_rank_sees_within_what_the_scheduler_leaves_visible(tmp_path: Path) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "apptainer").chmod(0o755)
    visible = {"CUDA_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "GPU-3"}
    done = capture(
        command_in_image("/image.sif", ["true"]),
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **visible},
        check=True,
    )
    assert {f"APPTAINERENV_{name}={value}" for name, value in visible.items()} <= set(done.stdout.split())
