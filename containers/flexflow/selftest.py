"""Check that FlexFlow's Python front end is installed. It trains only on accelerators, which a build lacks.

environments.two_ranks starts two of these programs.
"""

import importlib.util
import json
import os
from pathlib import Path


def main() -> None:
    """Look for FlexFlow without starting Legion, and write what was found."""
    found = importlib.util.find_spec("flexflow")
    if found is None or importlib.util.find_spec("flexflow.core") is None:
        raise SystemExit(
            "python3 of this image has no flexflow.core; a site's image must have FlexFlow's training release"
        )
    result = {"framework": "flexflow", "found": str(found.origin)}
    (Path(os.environ["RINGSIDE_MEETING"]) / f"rank{os.environ['RINGSIDE_RANK']}.json").write_text(
        json.dumps(result)
    )


if __name__ == "__main__":
    main()
