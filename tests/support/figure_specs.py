"""Figures that a study draws at a site that provides everything."""

from typing import Any

from declared.figure_specs import FigureSpec
from declared.study import Study


def figure_specs(study: Study, **of_campaign: Any) -> list[FigureSpec]:
    """Return the figures to draw, given traits of the campaign."""
    return study.figure_specs(study.traits(**of_campaign))
