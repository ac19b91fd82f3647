"""Extra-P in its own environment: what it is given, and what it makes of it."""

from pathlib import Path

import pytest

from prediction.methods import _run_extra_p


@pytest.fixture(scope="module")
def python(real):
    return Path(real("extrap")["python"]["executable"])


def test_it_finds_what_points_were_made_from(python):
    places = [[p, b] for p in (2, 4, 8, 16, 32) for b in (8, 16, 32, 64, 128)]
    jobs = [
        {"parameters": ["p"], "points": [[[p], [3 + 2 * p]] for p in (2, 4, 8, 16, 32)], "wanted": [[64]]},
        {
            "parameters": ["p", "b"],
            "points": [[at, [5 + at[0] * at[1]]] for at in places],
            "wanted": [[64, 256]],
        },
        {"parameters": ["p"], "points": [[[p], [640 / p]] for p in (2, 4, 8, 16, 32)], "wanted": [[64]]},
    ]
    item, two, shrinking = _run_extra_p(python, jobs)
    assert item["predicted"] == [pytest.approx(131)]
    assert two["predicted"] == [pytest.approx(5 + 64 * 256, rel=1e-3)]
    assert shrinking["predicted"] == [pytest.approx(10, rel=1e-3)]  # the exponents for strong scaling
    assert not item["warnings"]


def test_it_says_what_it_asks_for(python):
    (answer,) = _run_extra_p(
        python, [{"parameters": ["p"], "points": [[[1], [3]], [[2], [4]]], "wanted": [[4]]}]
    )
    assert any("at least 5" in text for text in answer["warnings"])
