"""What XLA reads of its environment when it meets its devices; imported before it is."""

from ranks.worker.context import Context


def variables(context: Context) -> dict[str, str]:
    """As many threads as the rank has cores; of a device's memory no more than is needed; no log lines below errors."""
    return {
        "NPROC": str(context.cores),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
