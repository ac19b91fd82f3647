"""Plan every shipped study with every profile: `snakemake -n` must succeed for all of them. Run in the checkout."""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Exit status 1 when one of the plans fails."""
    failed = 0
    profiles = sorted(path.parent for path in Path("profiles").glob("*/config.yaml") if path.parent.name != "default")
    for study in sorted(path.stem for path in Path("config/studies").glob("*.yaml")):
        for profile in profiles:
            command = ["snakemake", "-n", "figures", "--profile", str(profile), "--config", f"study={study}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            ok = done.returncode == 0
            planned = [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("total ")]
            jobs = f"{planned[0]} jobs" if planned else "nothing to do"
            print(f"dry-run {study} with {profile}: {jobs if ok else 'FAILED'}")
            if not ok:
                failed += 1
                print(done.stdout + done.stderr, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
