"""How the text of a reason begins, for reasons that later stages distinguish.

Records and runs.csv keep the text of a reason without its code. Those that write and those that read such a
reason therefore share these prefixes. Kept campaigns have them, too, so they stay as they are.
"""

# Of runs with the status invalid.
DISTURBED_PREFIX = "disturbed: "  # other processes or the hypervisor took CPU time
MISPLACED_PREFIX = "misplaced: "
LOG_PREFIX = "log: "  # the log of a user-supplied command
NETWORK_PREFIX = "network: "
PAUSED_PREFIX = "a rank was paused"
# Of runs with the status missing.
NO_RECORD_PREFIX = "absent: "
OLD_RECORD_PREFIX = "old: "  # the record is of other software, code, data or settings
# Missing runs that this site can execute, whether or not they were begun. The reasons of other missing runs
# say why the site cannot execute them.
TO_RUN_PREFIXES = (NO_RECORD_PREFIX, OLD_RECORD_PREFIX)


def is_disturbed(reason: str | None) -> bool:
    """Return whether a run with this reason was disturbed: others took too much CPU time."""
    return bool(reason and reason.startswith(DISTURBED_PREFIX))
