"""The list of long tests is made of pytest's own reports."""

from pathlib import Path

import pytest
import yaml

from support import long_tests

REPORT = """\
<testsuites><testsuite>
<testcase classname="tests.unit.runs.test_a" name="test_slow[x-1]" time="12.34"/>
<testcase classname="tests.unit.runs.test_a" name="test_quick" time="0.1"/>
<testcase classname="tests.unit.runs.test_a.TestGroup" name="test_inside" time="5.0"/>
<testcase classname="tests.unit.runs.test_a" name="test_kept" time="9.0"/>
<testcase classname="tests.workflow.test_whole" name="test_one" time="3.0"/>
<testcase classname="tests.workflow.test_whole" name="test_two" time="4.5"/>
</testsuite></testsuites>
"""


def test_reports_become_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tests, "FILE", tmp_path / "long.yaml")
    always = ["tests/unit/runs/test_a.py::test_kept"]
    monkeypatch.setattr(
        long_tests, "load_long_tests", lambda: {"always": always, "long": {"tests/workflow/test_whole.py": 1}}
    )
    (tmp_path / "report.xml").write_text(REPORT)
    long_tests.write([tmp_path / "report.xml"])
    assert yaml.safe_load((tmp_path / "long.yaml").read_text()) == {
        "always": always,
        "long": {
            "tests/unit/runs/test_a.py": {"TestGroup::test_inside": 5.0, "test_slow[x-1]": 12.3},
            "tests/workflow/test_whole.py": 8,
        },
    }
