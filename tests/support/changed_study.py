"""A shipped study with other levels."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from declared.replicates import Replicates
from declared.study import Study, load_study


def changed_study(name: str, *levels: Mapping[str, list[Any]]) -> Study:
    """Return a study with other levels of some factors, one replicate of each cell, and no exclusions."""
    plain = load_study(name)
    factors = dict(plain.factors)
    for changes in levels:
        factors |= changes
    return replace(plain, factors=factors, exclude=(), replicates=Replicates(1, 1))
