"""Mixtures of experts: the formula against PyTorch, sizes, and the reported share of dropped tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.graph import Builder
from models.named import graph
from support.programs import printed


@pytest.fixture(scope="module")
def routed(real: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    out = tmp_path_factory.mktemp("experts") / "out.npz"
    printed(real("pytorch"), Path(__file__).with_name("routed.py"), out)
    return dict(np.load(out))


def test_experts_compute_the_formula_and_drop(routed: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(routed["actual_output"], routed["expected_output"], atol=1e-4)
    np.testing.assert_allclose(routed["evaluated"], routed["actual_output"], atol=1e-6)
    np.testing.assert_allclose(routed["actual_load"], routed["expected_load"], atol=1e-6)
    assert 0 < routed["expected_load"][-1] < 0.5


def test_auxiliary_loss_has_the_gradient_of_the_formula(routed: dict[str, np.ndarray]) -> None:
    np.testing.assert_allclose(routed["actual_slope"], routed["expected_slope"], atol=1e-6)
    assert np.abs(routed["expected_slope"]).max() > 0.01


def test_mixtral_has_its_published_sizes() -> None:
    """Jiang et al., arXiv:2401.04088, table 1 and section 1: 46.7 billion, of which a token uses 12.9."""
    mixtral = graph("mixtral-8x7b", (4096,), 32_000, 32_000, "next")
    assert (mixtral.parameters, mixtral.active_parameters) == (46_702_792_704, 12_879_925_248)
    experts = mixtral.by_name["block1_experts"]
    assert experts["capacity"] == 1280  # 1.25 x 4096 x 2 / 8
    assert experts.macs == 4096 * (4096 * 8 + 2 * 3 * 4096 * 14_336)
    assert (
        graph("llama-3-8b", (64,), 100, 100, "next").active_parameters
        == graph("llama-3-8b", (64,), 100, 100, "next").parameters
    )


def test_position_chooses_no_more_experts_than_there_are() -> None:
    builder = Builder("routed", (7,), "glorot", 5)
    x = builder.embedding(builder.input, 6)
    with pytest.raises(ValueError, match="3 of 2 experts"):
        builder.experts(x, 2, 8, top=3)
