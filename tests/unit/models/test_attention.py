"""Attention at the level of the operator: fused and unfused kernels give the same outputs and gradients."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from support.programs import printed

TOLERANCE = 1e-5  # of float32, relative to the largest gradient
PROGRAM, LOWERED = (Path(__file__).with_name(name) for name in ("attended.py", "lowered_attention.py"))
# Output, queries, weights, and the other sequence.
N_ARRAYS = {"causal": 10, "all": 10, "cross": 11, "grouped": 6}


def test_kernels_of_attention_agree_with_the_formula(real: Any, tmp_path: Path) -> None:
    """Attention of other libraries is compared by whole models (test_libraries.py)."""
    printed(real("pytorch"), PROGRAM, tmp_path / "out.npz")
    arrays = dict(np.load(tmp_path / "out.npz"))
    for case, n_arrays in N_ARRAYS.items():
        own = [name for name in arrays if name.startswith(f"{case}.") and ".formula." not in name]
        assert {name.split(".")[1] for name in own} == {"flash attention", "unfused"}
        assert len(own) == 2 * n_arrays
        # Gradients of the keys' biases are 0 but for rounding.
        atol = TOLERANCE * max(np.abs(arrays[name]).max() for name in own)
        exact = arrays[f"{case}.formula.output"]
        np.testing.assert_allclose(arrays[f"{case}.unfused.output"], exact, atol=atol, rtol=0)
        for name in own:
            expected = arrays[f"{case}.unfused.{name.rpartition('.')[2]}"]
            np.testing.assert_allclose(arrays[name], expected, atol=atol, rtol=0, err_msg=name)


def test_jax_compiles_cudnn_attention_for_gpus(real: Any) -> None:
    """Also where heads are partitioned, for which the kernel's own partitioning fails."""
    lowered = json.loads(printed(real("jax"), str(LOWERED)))
    kernels = ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"]
    assert lowered["calls"] == {"data": kernels, "data, tensor": kernels}
    causes = (
        "unfused",
        "float32",
        "processor",
        "AMD",
        "Volta",
        "head of 12",
        "head of 136",
        "heads over 3 ranks",
    )
    assert lowered["fused"] == {"default": True, **dict.fromkeys(causes, False)}
