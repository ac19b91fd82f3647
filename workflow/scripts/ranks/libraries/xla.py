"""Environment variables that XLA reads when it is imported, or first compiles."""

import os

from ranks.worker.context import Context


def variables(context: Context) -> dict[str, str]:
    """Return variables that give XLA the rank's cores and only the device memory it needs, and limit logs."""
    return {
        "NPROC": str(context.cores),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **(without_autotuning() if context.levels.get("autotune") == "none" else {}),
    }


def without_autotuning() -> dict[str, str]:
    """Return variables with which XLA does not time algorithms of convolutions and matrix products.

    XLA has one flag for both. Other flags of the site are kept.
    """
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip()}
