"""The kept campaigns."""

import pytest

from common.files import CHECKOUT


@pytest.fixture(scope="session")
def kept():
    return CHECKOUT / "docs" / "campaigns"
