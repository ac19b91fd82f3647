"""Environment variables that XLA reads when it is imported."""

from ranks.worker.context import Context


def variables(context: Context) -> dict[str, str]:
    """Return variables that give XLA the rank's cores and only the device memory it needs, and limit logs."""
    return {
        "NPROC": str(context.cores),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
