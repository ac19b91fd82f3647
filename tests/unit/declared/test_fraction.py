"""Two-level fractions have the sizes of published ones, and list the effects that they confound."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from common.errors import InputError
from declared.fraction import Fraction, smallest_fraction
from declared.site import load_site
from declared.study import load_study
from plan.design import plan_design, to_csv
from support.refusals import assert_refusal

NAMES = [chr(ord("A") + place) for place in range(15)]
# NIST/SEMATECH e-Handbook of Statistical Methods, 5.3.3.4.7 (after Box, Hunter & Hunter): factors, resolution
# asked for -> its smallest design: number of generators, resolution.
NIST = {
    (3, 3): (1, 3), (4, 4): (1, 4), (5, 5): (1, 5), (5, 3): (2, 3), (6, 5): (1, 6), (6, 4): (2, 4),
    (6, 3): (3, 3),
    (7, 5): (1, 7), (7, 4): (3, 4), (7, 3): (4, 3), (8, 5): (2, 5), (8, 4): (4, 4), (9, 5): (2, 6),
    (9, 4): (4, 4),
    (9, 3): (5, 3), (10, 5): (3, 5), (10, 4): (5, 4), (10, 3): (6, 3), (11, 5): (4, 5), (11, 4): (6, 4),
    (11, 3): (7, 3),
    (15, 3): (11, 3),
}  # fmt: skip
GOOD = {
    "title": "t",
    "question": "q",
    "seed": 1,
    "design": "fractional",
    "resolution": 3,
    "replicates": 2,
    "factors": {
        "framework": ["pytorch-ddp", "horovod-pytorch"],
        "model": "small-cnn",
        "dataset": "digits",
        "nodes": [1, 2],
        "batch_size": [16, 32],
        "sync_every": [1, 4],
        "augmentation": ["none", "flip"],
        "optimizer": ["sgd", "adam"],
        "learning_rate": [0.01, 0.05],
    },
}


@pytest.mark.parametrize(("design", "published"), NIST.items())
def test_fractions_are_as_small_as_the_published_ones(
    design: tuple[int, int], published: tuple[int, int]
) -> None:
    count, resolution = design
    fraction = smallest_fraction(NAMES[:count], resolution)
    assert (count - fraction.basic, fraction.resolution) == published


def test_the_columns_are_balanced_and_orthogonal() -> None:
    cells = pd.DataFrame(list(smallest_fraction(NAMES[:9], 4).signs())) * 2 - 1
    assert (cells.T @ cells == len(cells) * np.eye(9)).all(axis=None)
    assert (cells.sum() == 0).all()


def test_jains_274_design() -> None:
    # Jain 1991, chapter 19: D = AB, E = AC, F = BC, G = ABC
    fraction = smallest_fraction(NAMES[:7], 3)
    cells = pd.DataFrame(list(fraction.signs())) * 2 - 1
    assert len(cells) == 8
    for generated, factors in {"D": "AB", "E": "AC", "F": "BC", "G": "ABC"}.items():
        assert (cells[generated] == cells[list(factors)].prod(axis=1)).all()
    assert fraction_like(fraction)[0] == "A = B x D = C x E = F x G"


def fraction_like(fraction: Fraction) -> list[str]:
    return [" = ".join(" x ".join(names) for names in effects) for effects in fraction.aliases()]


def written(folder: Path, **changes: object) -> Path:
    study = {**GOOD, **changes}
    (folder / "s.yaml").write_text(
        yaml.safe_dump({key: value for key, value in study.items() if value is not None})
    )
    return folder


def test_the_design_has_the_cells_of_the_fraction_in_every_block(tmp_path: Path) -> None:
    study, site = load_study("s", written(tmp_path)), load_site("local")
    runs = plan_design(study, site)
    assert len(runs) == 8 * 2 and len({run.cell for run in runs}) == 8
    assert to_csv(runs).count("\n") == 17
    levels = pd.DataFrame([run.levels for run in runs])
    for name, (first, _) in {
        name: levels for name, levels in study.factors.items() if len(levels) > 1
    }.items():
        assert (levels[name] == first).sum() == 8, name


def test_a_run_of_a_fraction_is_the_run_of_the_full_design(tmp_path: Path) -> None:
    fractional, site = load_study("s", written(tmp_path)), load_site("local")
    every = {run.run_id: run for run in plan_design(replace(fractional, fraction=None), site)}
    assert len(every) == 2**7 * 2
    assert all(every[run.run_id] == run for run in plan_design(fractional, site))


@pytest.mark.parametrize(
    ("changes", "code", "key", "facts"),
    [
        ({"exclude": [{"nodes": 2}]}, "conflicting-keys", "exclude", {}),
        ({"factors": {**GOOD["factors"], "batch_size": [16, 32, 64]}}, "too-many", "factors.batch_size",
         {"got": 3}),
        ({"resolution": 6}, "not-one-of", "resolution", {"got": 6, "expected": [3, 4, 5]}),
        ({"design": "full"}, "conflicting-keys", "resolution", {}),
        ({"factors": {**GOOD["factors"], "optimizer": "sgd", "learning_rate": 0.05, "augmentation": "none",
                      "sync_every": 1}, "resolution": 4}, "no-such-fraction", "design",
                      {"mentions": [3, "IV"]}),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_file_and_key(
    tmp_path: Path, changes: dict[str, object], code: str, key: str, facts: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as refused:
        load_study("s", written(tmp_path, **changes))
    assert_refusal(refused.value, code, key, file=str(tmp_path / "s.yaml"), **facts)


def test_infeasible_cell_of_a_fraction_is_not_to_be_excluded(tmp_path: Path) -> None:
    single = {**GOOD["factors"], "framework": ["pytorch-single", "pytorch-ddp"]}  # type: ignore[dict-item]
    study = load_study("s", written(tmp_path, factors=single))
    with pytest.raises(InputError) as refused:
        plan_design(study, load_site("local"))
    assert str(tmp_path / "s.yaml") in str(refused.value) and "exclude" not in str(refused.value)
