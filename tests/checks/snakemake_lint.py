"""`snakemake --lint`, with the findings that we accept listed here and why. Run in the checkout."""

import subprocess
import sys

ACCEPTED = {
    "Specify a conda environment or container for each rule.": (
        "every rule runs in the controller's locked environment; what trains brings its own (containers/)"
    ),
    "Environment variable PYTHONPATH used but not asserted with envvars directive": "set by us, not asked of the user",
    "Environment variable PATH used but not asserted with envvars directive": "extended by us, not asked of the user",
    "Param results is a prefix of input or output file but hardcoded": "results/<study> is the same for every run",
    "Param peek is a prefix of input or output file but hardcoded": "results/<study>/peek, of rule preview, likewise",
    "Shell command directly uses variable WARM from outside of the rule": (
        "how a program is started is said once, in rules/common.smk; another way makes no output anew"
    ),
    "No log directive defined": "rule run: each attempt has its own log.txt, which nothing deletes",
}


def findings(report: str) -> list[tuple[str, str]]:
    """(where, title) of every finding in what snakemake --lint prints."""
    found, where = [], "?"
    for line in report.splitlines():
        if line.startswith("Lints for "):
            where = line.removeprefix("Lints for ").rstrip(":")
        elif line.startswith("    * "):
            found.append((where, line.removeprefix("    * ")))
    return found


def main() -> int:
    """Exit status 1 when there is a finding that is not accepted, or an accepted one that no longer occurs."""
    done = subprocess.run(["snakemake", "--lint"], capture_output=True, text=True, check=False)
    found = findings(done.stderr)
    if done.returncode and not found:
        print(done.stdout, done.stderr, file=sys.stderr)
        return 1
    unknown = [(where, title) for where, title in found if not title.startswith(tuple(ACCEPTED))]
    gone = [title for title in ACCEPTED if not any(found_title.startswith(title) for _, found_title in found)]
    for where, title in unknown:
        print(f"{where}: {title}", file=sys.stderr)
    for title in gone:
        print(f"tests/checks/snakemake_lint.py: accepted, but no longer found: {title}", file=sys.stderr)
    print(f"snakemake --lint: {len(found)} findings, {len(found) - len(unknown)} of them accepted")
    return 1 if unknown or gone else 0


if __name__ == "__main__":
    sys.exit(main())
