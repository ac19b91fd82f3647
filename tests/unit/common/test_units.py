"""Quantities are written in units that need no exponent."""

import math

import pytest

from common.units import DATA_RATES, ENERGIES, LINK_RATES, TIMES, choose_unit, in_one_unit


@pytest.mark.parametrize(
    ("values", "units", "text"),
    [
        ([125e6], LINK_RATES, "125 MB/s"),
        ([31.25e6, 125e6], LINK_RATES, "31.25 to 125 MB/s"),
        ([400e9], LINK_RATES, "3200 Gbit/s"),
        ([12.5e9, 50e9], LINK_RATES, "100 to 400 Gbit/s"),
        ([400e9], DATA_RATES, "400 GB/s"),
        ([999e6, 999e6], DATA_RATES, "999 MB/s"),
        ([23e6, 181e9], DATA_RATES, "0.023 to 181 GB/s"),
        ([4.4e-5], TIMES, "44 µs"),
        ([4.4e-5, 0.012], TIMES, "0.044 to 12 ms"),
        ([36_000.0], TIMES, "36000 s"),
    ],
)
def test_values_are_in_one_unit_without_exponent(values, units, text):
    assert in_one_unit(values, units) == text


def test_few_digits_keep_the_integer_part():
    assert in_one_unit([400e9], LINK_RATES, digits=3) == "3200 Gbit/s"
    assert in_one_unit([31.25e6], LINK_RATES, digits=3) == "31.2 MB/s"


def test_the_largest_value_decides_on_the_unit():
    assert choose_unit([0.2, 5.0, math.nan], ENERGIES).name == "J"
    assert choose_unit([2e-9], ENERGIES).name == "µJ"
    assert choose_unit([math.nan], DATA_RATES).name == choose_unit([], DATA_RATES).name == "MB/s"
