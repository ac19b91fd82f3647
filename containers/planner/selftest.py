"""Check that numba compiles a sum (see environments.two_ranks)."""

import json
import os
from pathlib import Path

import numpy as np
from numba import njit


@njit
def total(values: np.ndarray) -> int:
    """Return the sum of integers."""
    found = 0
    for value in values:
        found += value
    return found


def main() -> None:
    """Sum 1 to 1,000, compiled, and write what that gives."""
    found = int(total(np.arange(1, 1001)))
    if found != 500_500 or not total.signatures:
        raise SystemExit(f"numba gives {found}, expected 500500 of a compiled function")
    result = {"framework": "planner", "found": found}
    (Path(os.environ["RINGSIDE_MEETING"]) / f"rank{os.environ['RINGSIDE_RANK']}.json").write_text(
        json.dumps(result)
    )


if __name__ == "__main__":
    main()
