"""Power samples are collected from the attempts that made the records, and from no other."""

import pytest

from common.errors import InputError
from common.tables import read_table
from records import power
from support.synthetic import campaign, write_frames

LINES = "t,host,scope,watt\n1760000000.500,a,package,41.5\n1760000001.500,a,package,43\n"


def attempt(folder, run, number=1, text=LINES):
    file = folder / "runs" / run["run_id"] / run["key"] / f"attempt-{number}" / "power.csv"
    file.parent.mkdir(parents=True)
    file.write_text(text)


def test_samples_of_successful_runs_are_in_one_table(tmp_path):
    runs_csv, _ = write_frames(tmp_path, *campaign())
    runs = read_table(runs_csv, "runs")
    ok, failed = (runs[runs["status"] == status].iloc[0] for status in ("ok", "failed"))
    attempt(tmp_path, ok)
    attempt(tmp_path, ok, number=2, text="what came of a later try")
    attempt(tmp_path, failed)
    power.main(runs=runs_csv, results=tmp_path, out=tmp_path / "power.csv")
    samples = read_table(tmp_path / "power.csv", "power")
    assert list(samples["run_id"]) == [ok["run_id"]] * 2 and list(samples["watt"]) == [41.5, 43.0]
    assert list(samples["t"]) == [1760000000.5, 1760000001.5] and set(samples["scope"]) == {"package"}


def test_without_meters_the_table_has_no_rows(tmp_path):
    runs_csv, _ = write_frames(tmp_path, *campaign())
    power.main(runs=runs_csv, results=tmp_path, out=tmp_path / "power.csv")
    assert read_table(tmp_path / "power.csv", "power").empty


@pytest.mark.parametrize(
    "text", ["", "t,host,scope,watt\n1,a,socket,1\n", "t,host,scope,watt\n1,a,node,much\n"]
)
def test_a_broken_file_of_power_is_refused(text, tmp_path):
    runs_csv, _ = write_frames(tmp_path, *campaign())
    runs = read_table(runs_csv, "runs")
    attempt(tmp_path, runs[runs["status"] == "ok"].iloc[0], text=text)
    with pytest.raises(InputError) as refused:
        power.main(runs=runs_csv, results=tmp_path, out=tmp_path / "power.csv")
    assert "power.csv" in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "power.csv").exists()
