"""The oldest supported software trains like the newest, in environments by pip (make versions-test)."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from declared.environments import Installed, Realization, read
from environments.build import build
from support.installed_site import SITE
from support.trainings import Trainings, assert_alike

pytestmark = pytest.mark.versions
OLDEST = {  # environment -> what its description supports, as pip gets it
    "pytorch": ["torch=={}.0", "numpy<2"],
    "tensorflow": ["tensorflow-cpu=={}.0"],
}
FRAMEWORKS = {
    "pytorch-single": {"batch_size": 64},
    "pytorch-ddp": {"batch_size": 32, "nodes": 2},
    "tensorflow-single": {"batch_size": 64},
    "tensorflow-multiworker": {"batch_size": 32, "nodes": 2},
}
TWENTY_STEPS = {"dataset": "synthetic-8x8x1-10-64", "epochs": 20, "momentum": 0.9, "learning_rate": 0.05}


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Environments of the oldest software, named as a site names installed software; kept in the cache."""
    folder = SITE.cache / "oldest"

    def build_oldest(name: str) -> dict[str, Any]:
        (version,) = read(name).supported.values()
        prefix = folder / f"{name}-{version}"
        if not (prefix / "whole").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", prefix], check=True)
            requirements = [requirement.format(version) for requirement in OLDEST[name]]
            subprocess.run(
                [prefix / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements], check=True
            )
            (prefix / "whole").touch()
        python = Installed(str(prefix / "bin" / "python"))
        return build(read(name), folder, realization=Realization(installed=((name, python),)))

    return build_oldest


@pytest.fixture(scope="module")
def old_and_new(
    tmp_path_factory: pytest.TempPathFactory, oldest: Callable[[str], dict[str, Any]], real: Any
) -> tuple[Trainings, Trainings]:
    """Trainings in the oldest and in the newest software."""
    names = ("old", "new")
    old, new = (
        Trainings(tmp_path_factory.mktemp(name), build_oldest)
        for name, build_oldest in zip(names, (oldest, real), strict=True)
    )
    return old, new


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_oldest_software_trains_like_the_newest(
    old_and_new: tuple[Trainings, Trainings], framework: str
) -> None:
    levels = {**FRAMEWORKS[framework], **TWENTY_STEPS}
    actual, expected = (trainings.losses(framework, **levels) for trainings in old_and_new)
    assert len(expected) == 20 and np.ptp(expected) > 0.02, "the steps differ from each other"
    np.testing.assert_allclose(actual, expected, atol=1e-3, rtol=0)
    assert_alike(*(trainings.train(framework, **levels) for trainings in old_and_new), 2e-4)


def test_the_versions_are_those_that_the_page_names(oldest: Callable[[str], dict[str, Any]]) -> None:
    for name in OLDEST:
        found_version = oldest(name)["selftest"]["framework"].partition("+")[0]
        ((library, version),) = read(name).supported.items()
        assert found_version == f"{library} {version}.0"
