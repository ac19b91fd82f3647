"""Checks of this machine against a site."""

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


def test_every_listed_interface_is_on_this_machine() -> None:
    with pytest.raises(InputError) as refused:
        check_machine(replace(load_site("local"), interface="lo,nope0"))
    assert (refused.value.code, refused.value.got) == ("unknown-name", "nope0")


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
