"""`python -m ringside VERB ...`, which `./ringside` becomes once `.venv` is there."""

import sys

from ringside.app import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
