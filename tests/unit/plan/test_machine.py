"""Whether this machine is what a site says."""

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from declared.site import load_site
from plan.machine import check_machine


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
