"""Whether this machine is what a site says."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from declared.site import load_site
from plan.machine import check_folder, check_machine


@pytest.mark.parametrize("driver", ["nvidia0", "kfd", "dxg"])
def test_a_site_with_accelerators_is_a_machine_that_has_one(tmp_path: Path, driver: str) -> None:
    accelerated = replace(load_site("local"), device="cuda")
    (tmp_path / "nvidia-caps").touch()
    with pytest.raises(InputError) as refused:
        check_machine(accelerated, tmp_path)
    assert (refused.value.code, refused.value.file, refused.value.key) == (
        "missing-device",
        "config/sites/local.yaml",
        "device",
    )
    (tmp_path / driver).touch()
    check_machine(accelerated, tmp_path)


@contextmanager
def dummy_interface(name: str) -> Iterator[None]:
    """A network interface without an address."""
    subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", name], check=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes an interface or a mount, which needs root")


@needs_root
def test_an_interface_needs_an_address() -> None:
    with dummy_interface("rsx0"), pytest.raises(InputError) as refused:
        check_machine(replace(load_site("local"), interface="rsx0"))
    assert (refused.value.code, refused.value.key) == ("no-address", "interface")


def test_every_listed_interface_is_on_this_machine() -> None:
    with pytest.raises(InputError) as refused:
        check_machine(replace(load_site("local"), interface="lo,nope0"))
    assert (refused.value.code, refused.value.got) == ("unknown-name", "nope0")


@needs_root
@pytest.mark.parametrize("deployment", ["venv", "apptainer"])
def test_environments_need_a_cache_that_executes(tmp_path: Path, deployment: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", str(tmp_path)], check=True)
    try:
        site = replace(load_site("local"), cache=tmp_path / "cache" / "here", deployment=deployment)
        if deployment == "apptainer":  # an image is not executed from there
            check_machine(site)
            return
        with pytest.raises(InputError) as refused:
            check_machine(site)
        assert refused.value.code == "not-executable"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("files", "variables", "environment", "ranks", "refusal"),
    [
        (2, {}, {}, 3, ("too-few", "ranks_per_node")),
        (4, {}, {"CUDA_VISIBLE_DEVICES": "1,3"}, 2, None),
        (4, {}, {"CUDA_VISIBLE_DEVICES": "1"}, 2, ("too-few", "ranks_per_node")),
        (4, {"CUDA_VISIBLE_DEVICES": "2"}, {}, 2, ("too-few", "ranks_per_node")),
    ],
)  # fmt: skip
def test_every_rank_needs_a_visible_accelerator(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    variables: dict[str, str],
    environment: dict[str, str],
    ranks: int,
    refusal: tuple[str, str] | None,
) -> None:
    for number in range(files):
        (tmp_path / f"nvidia{number}").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    site = replace(
        load_site("local"), device="cuda", ranks_per_node=ranks, variables=tuple(variables.items())
    )
    if refusal is None:
        check_machine(site, tmp_path)
        return
    with pytest.raises(InputError) as refused:
        check_machine(site, tmp_path)
    assert (refused.value.code, refused.value.key) == refusal


def test_folder_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for folder in ("file", "file/below", "dangling", "dangling/below"):
        with pytest.raises(InputError) as refused:
            check_folder(tmp_path / folder, "advice")
        assert refused.value.code == "not-a-folder"
        assert refused.value.file == str(tmp_path / folder.removesuffix("/below"))
    (tmp_path / "linked").symlink_to(tmp_path)
    for folder in ("linked", "linked/below", "none/below"):
        check_folder(tmp_path / folder, "advice")
