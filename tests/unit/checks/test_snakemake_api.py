"""Uses of Snakemake that its next version may break are found."""

import pytest

from checks import snakemake_api


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("from snakemake.dag import DAG", ["import"]),
        ("import snakemake", ["import"]),
        ("from snakemake.utils import min_version", []),
        ("from snakemake_interface_logger_plugins.common import LogEvent", []),
        ("workflow.scheduler._user_kill = None", ["private", "assignment"]),
        ("if workflow.scheduler._user_kill: x = 1", ["private"]),
        ("self._workflow.dag.max_checksum_file_size = 1", ["assignment"]),
        ("self._workflow = workflow", []),
        ("dag.forced |= {1}", ["assignment"]),
        ("setattr(job.rule, 'name', 1)", ["assignment"]),
        ("report(job.rule, 'name')", []),
        ("jobs = [job.rule.name for job in workflow.dag.needrun_jobs()]", []),
        ("call(workflow=1, dag=2)", []),
        ("if job.rule.name == 'x': pass", []),
        ("job.__class__", []),
    ],
)
def test_refused_uses_are_found(line: str, kinds: list[str]) -> None:
    findings = list(snakemake_api.find(f"onstart:\n    {line}\n"))
    assert [finding.kind for finding in findings] == kinds and all(finding.line == 2 for finding in findings)
