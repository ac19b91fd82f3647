"""Colours of a dark page: each framework keeps its hue, and light ones stay lighter than dark ones."""

import itertools

import numpy as np
import pytest

from figures.style import FRAMEWORK_STYLES, MUTED, TREATMENT_STYLES
from report.dark import PAPER, contrast, dark_colour, to_oklab

COLOURS = sorted({style.colour for style in (*FRAMEWORK_STYLES.values(), *TREATMENT_STYLES)} | {MUTED})
MIN_CONTRAST = 3.0  # of graphical objects, WCAG 2.2, success criterion 1.4.11
MAX_TURN_DEG = 3.0


@pytest.mark.parametrize("colour", COLOURS)
def test_hue_stays_and_contrast_suffices(colour: str) -> None:
    dark = dark_colour(colour)
    assert contrast(dark, PAPER) >= MIN_CONTRAST
    printed, shown_dark = (complex(*to_oklab(shade)[1:]) for shade in (colour, dark))
    if abs(printed) > 0.01:  # greys have no hue
        assert abs(np.degrees(np.angle(shown_dark / printed))) < MAX_TURN_DEG


def test_light_colours_stay_lighter() -> None:
    lightness = {colour: (to_oklab(colour)[0], to_oklab(dark_colour(colour))[0]) for colour in COLOURS}
    for first, second in itertools.combinations(lightness.values(), 2):
        if abs(first[0] - second[0]) > 0.02:
            assert (first[0] > second[0]) == (first[1] > second[1])


def test_the_two_blues_differ() -> None:
    dark, light = (
        to_oklab(dark_colour(FRAMEWORK_STYLES[name].colour))
        for name in ("tensorflow-multiworker", "horovod-tensorflow")
    )
    assert light[0] - dark[0] > 0.15
    assert np.linalg.norm(light - dark) > 0.15


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
