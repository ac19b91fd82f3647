"""Trainings that the tests of this folder share."""

from typing import Any

import pytest

from support.trainings import Trainings
from support.workers import shared_folder


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory, real: Any) -> Trainings:
    """Trainings on demand; pytest's workers share their results."""
    return Trainings(shared_folder(tmp_path_factory) / "trainings", real)
