"""Colours of the dark page have contrast, and light ones stay lighter than dark ones."""

import itertools

import pytest

from figures.style import FRAMEWORK_STYLES, MUTED, TREATMENT_STYLES
from report.dark import PAPER, contrast, dark_colour

COLOURS = sorted({style.colour for style in (*FRAMEWORK_STYLES.values(), *TREATMENT_STYLES)} | {MUTED})
MIN_CONTRAST = 3.0  # of graphical objects, WCAG 2.2, success criterion 1.4.11


@pytest.mark.parametrize("colour", COLOURS)
def test_contrast_suffices(colour: str) -> None:
    assert contrast(dark_colour(colour), PAPER) >= MIN_CONTRAST


def test_colours_stay_distinct() -> None:
    for first, second in itertools.combinations(map(dark_colour, COLOURS), 2):
        assert first != second


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
