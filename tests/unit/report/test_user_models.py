"""The section on methods says how a user-supplied PyTorch module is built."""

from pathlib import Path

from analysis.records import read_runs
from common.notes import codes
from declared.study import load_study
from report.facts import Facts
from report.methods import _workload
from support.measured_elsewhere import DLPERF
from support.user_models import user_models_in


def test_methods_say_how_user_models_are_built(tmp_path: Path) -> None:
    runs = read_runs(DLPERF / "runs.csv")
    own = runs.assign(model="ours")
    with user_models_in(tmp_path, ours={}):
        registered, only_own = (
            set(codes(_workload(Facts(load_study("quickstart"), None, table, None, None))))
            for table in (runs, own)
        )
    assert {"one-graph", "same-samples"} <= registered and "one-module" not in registered
    assert {"one-module", "same-samples"} <= only_own and "one-graph" not in only_own
