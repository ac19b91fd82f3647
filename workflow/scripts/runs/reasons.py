"""How the text of a reason begins, for reasons that later stages distinguish.

Records and runs.csv keep the text of a reason without its code, so writers and readers share these prefixes.
They must not change: published campaigns contain them.
"""

# Of runs with the status invalid.
DISTURBED_PREFIX = "disturbed: "  # other processes or the hypervisor took CPU time
MISPLACED_PREFIX = "misplaced: "
LOG_PREFIX = "log: "  # the log of a user-supplied command
NETWORK_PREFIX = "network: "
PAUSED_PREFIX = "a rank was paused"
# Of runs with the status missing, which an early version called absent.
NO_RECORD_PREFIX = "absent: "
OLD_RECORD_PREFIX = "old: "  # the record is of other software, code, data or settings
# Of missing runs that this site can execute. Reasons of the others say why the site cannot execute them.
EXECUTABLE_PREFIXES = (NO_RECORD_PREFIX, OLD_RECORD_PREFIX)


def is_disturbed(reason: str | None) -> bool:
    """Return whether a run with this reason was disturbed: others took too much CPU time."""
    return bool(reason and reason.startswith(DISTURBED_PREFIX))
