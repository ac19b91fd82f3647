"""A call of Snakemake is checked before the campaign is loaded."""

import pytest

from common.errors import InputError
from invocation.call import check_snakemake


def test_snakemake_of_another_major_version_is_refused() -> None:
    check_snakemake("9.99.1")
    with pytest.raises(InputError) as error:
        check_snakemake("10.0.0")
    assert (error.value.code, error.value.file) == ("unsupported-version", "snakemake")
