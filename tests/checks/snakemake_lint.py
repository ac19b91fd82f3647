"""Run `snakemake --lint` in the checkout.

ACCEPTED lists findings that are not defects, with reasons.
"""

import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Accepted:
    """A finding that may occur, in these rules or, without rules, in all of them."""

    title: str
    reason: str
    rules: tuple[str, ...] = ()


ACCEPTED = (
    Accepted(
        "Specify a conda environment or container for each rule.",
        "every rule runs in the controller's locked environment; what trains brings its own (containers/)",
    ),
    Accepted(
        "Param results is a prefix of input or output file but hardcoded",
        "results/<study> is the same for every run",
        ("power",),
    ),
    Accepted(
        "Param figure_folder is a prefix of input or output file but hardcoded",
        "it names the folder of all figures, of which a study can have none",
        ("report", "paper_parts"),
    ),
    Accepted(
        "Shell command directly uses variable PREFORKED from outside of the rule",
        "rules/common.smk declares once how programs start; another way rebuilds no output",
    ),
    Accepted(
        "No log directive defined",
        "each attempt has its own log.txt, which nothing deletes",
        ("run", "collective_benchmark"),
    ),
    Accepted("No log directive defined", "prints for the user, and writes nothing", ("plan",)),
    Accepted("No log directive defined", "copies one file", ("paper_main",)),
)


@dataclass(frozen=True)
class Finding:
    """A finding of snakemake --lint about a rule or a file."""

    place: str
    title: str

    @property
    def rule(self) -> str:
        """The name of the rule, or "" for a finding about a file."""
        words = self.place.split()
        return words[1] if words[0] == "rule" else ""


def parse_findings(report: str) -> list[Finding]:
    """Return the findings in what snakemake --lint prints."""
    findings, place = [], "?"
    for line in report.splitlines():
        if line.startswith("Lints for "):
            place = line.removeprefix("Lints for ").rstrip(":")
        elif line.startswith("    * "):
            findings.append(Finding(place, line.removeprefix("    * ")))
    return findings


def is_accepted(finding: Finding) -> bool:
    """Return whether ACCEPTED has a finding."""
    return any(
        finding.title.startswith(entry.title) and (not entry.rules or finding.rule in entry.rules)
        for entry in ACCEPTED
    )


def stale(findings: list[Finding]) -> list[str]:
    """Return the entries of ACCEPTED, or their rules, that no longer have a finding."""
    unused = []
    for entry in ACCEPTED:
        rules = {finding.rule for finding in findings if finding.title.startswith(entry.title)}
        if not rules or not set(entry.rules) <= rules:
            unused.append(f"{entry.title} {', '.join(sorted(set(entry.rules) - rules))}".strip())
    return unused


def main() -> int:
    """Return 1 for a finding that is not accepted, and for an accepted one that no longer occurs."""
    done = subprocess.run(["snakemake", "--lint"], capture_output=True, text=True, check=False)
    findings = parse_findings(done.stderr)
    if done.returncode and not findings:
        print(done.stdout, done.stderr, file=sys.stderr)
        return 1
    unknown = [finding for finding in findings if not is_accepted(finding)]
    for finding in unknown:
        print(f"{finding.place}: {finding.title}", file=sys.stderr)
    for title in stale(findings):
        print(f"tests/checks/snakemake_lint.py: accepted, but no longer found: {title}", file=sys.stderr)
    print(f"snakemake --lint: {len(findings)} findings, {len(findings) - len(unknown)} of them accepted")
    return 1 if unknown or stale(findings) else 0


if __name__ == "__main__":
    sys.exit(main())
