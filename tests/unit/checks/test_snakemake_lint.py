"""Findings of snakemake --lint are accepted rule by rule."""

import pytest

from checks import snakemake_lint

REPORT = """\
Lints for snakefile rules/common.smk:
    * Environment variable PATH used but not asserted with envvars directive in line 15.:
      Asserting existence of environment variables ...
Lints for rule {rule} (line 25, rules/runs.smk):
    * No log directive defined:
      Without a log directive, all output will be printed to the terminal.
"""


@pytest.mark.parametrize(("rule", "accepted"), [("run", True), ("sweep", True), ("figure", False)])
def test_missing_log_is_accepted_of_named_rules_only(rule: str, accepted: bool) -> None:
    path, log = snakemake_lint.parse_findings(REPORT.format(rule=rule))
    assert (path.rule, log.rule) == ("", rule)
    assert snakemake_lint.is_accepted(path)
    assert snakemake_lint.is_accepted(log) is accepted


def test_accepted_rule_without_finding_is_stale() -> None:
    unused = snakemake_lint.stale(snakemake_lint.parse_findings(REPORT.format(rule="run")))
    assert "No log directive defined sweep" in unused
    assert not any("PATH used" in title and "PYTHON" not in title for title in unused)
