"""The kept campaigns."""

import pytest

from common.files import CHECKOUT


@pytest.fixture(scope="session")
def campaigns():
    return CHECKOUT / "docs" / "campaigns"
