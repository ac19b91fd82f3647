"""How reasons begin that later stages distinguish.

Records and runs.csv keep the text of a reason without its code. Writers of a reason and its readers therefore
take its beginning from here.
"""

# Reasons of the status invalid.
DISTURBED = "disturbed: "  # other processes or the hypervisor took CPU time
MISPLACED = "misplaced: "
LOG = "log: "  # the log of a user-supplied command
NETWORK = "network: "
PAUSED = "a rank was paused"
# Reasons of the status missing.
ABSENT = "absent: "
OLD = "old: "
RUNNABLE = (ABSENT, OLD)  # all other missing runs cannot be executed at the site


def is_disturbed(reason: str | None) -> bool:
    """Return whether a run with this reason lost too much CPU time."""
    return bool(reason and reason.startswith(DISTURBED))
