"""Findings of snakemake --lint are accepted rule by rule."""

import pytest

from checks import snakemake_lint

REPORT = """\
Lints for rule analysis (line 5, rules/analysis.smk):
    * Shell command directly uses variable PREFORKED from outside of the rule:
      It is recommended to pass all files as input and output, and non-file parameters ...
Lints for rule {rule} (line 25, rules/runs.smk):
    * No log directive defined:
      Without a log directive, all output will be printed to the terminal.
"""


@pytest.mark.parametrize(
    ("rule", "accepted"), [("run", True), ("collective_benchmark", True), ("figure", False)]
)
def test_missing_log_is_accepted_of_named_rules_only(rule: str, accepted: bool) -> None:
    variable, log = snakemake_lint.parse_findings(REPORT.format(rule=rule))
    assert (variable.rule, log.rule) == ("analysis", rule)
    assert snakemake_lint.is_accepted(variable)
    assert snakemake_lint.is_accepted(log) is accepted


def test_accepted_rule_without_finding_is_stale() -> None:
    unused = snakemake_lint.stale(snakemake_lint.parse_findings(REPORT.format(rule="run")))
    assert "No log directive defined collective_benchmark" in unused
    assert not any("PREFORKED" in title for title in unused)
