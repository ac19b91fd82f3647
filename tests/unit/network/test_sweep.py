"""Real ranks sweep on this machine's loopback; a sweep that fails is data."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from common.errors import InputError
from common.tables import read_table
from declared.frameworks import load_framework
from declared.site import load_site
from declared.study import load_study
from network import gather
from network import measure as measuring
from network import sweep as ranks
from network.measure import find, measure, read
from plan import cost
from plan import design as designing
from plan.campaign import load_campaign
from plan.design import design
from plan.sweeps import planned
from trainings import DISTRIBUTED

# A framework without a library: sums by our own group of ranks.
ADAPTER = """
import os, time
import numpy as np
from runs.worker.reducer import Reducer

def environment(context):
    return {}

class Grouped(Reducer):
    transport = "group"

    def __init__(self, context):
        self.context = context

    def load(self, values):
        self.values = values

    def reduce(self):
        #
        gathered = self.context.group.all_gather(self.values.tolist())
        self.values = np.sum(np.array(gathered, np.float32), axis=0)

    def result(self):
        return self.values

def all_reducer(context):
    return Grouped(context)
"""


@pytest.fixture
def study():
    return load_study("quickstart")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGSIDE_LOCK", str(tmp_path / "machine.lock"))
    return replace(
        load_site("local"), cores=2, sweep_max_bytes=65536, max_foreign_cpu_share=1, max_steal_share=1, time_limit_s=120
    )


def sweep_of(framework, study, site):
    study = replace(study, factors={**study.factors, "framework": sorted({*study.factors["framework"], framework})})
    return next(sweep for sweep in planned(design(study, site), site) if sweep.framework == framework)


def swept(framework, study, site, folder):
    sweep = sweep_of(framework, study, site)
    return measure(study, site, sweep, folder)


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=[pytest.mark.every_framework] * (name in ("pytorch-fsdp", "deepspeed")))
        for name in DISTRIBUTED
    ],
)
def test_every_framework_sweeps_by_its_own_library(framework, study, site, tmp_path, real):
    real(load_framework(framework).environment)
    record = swept(framework, study, site, tmp_path)
    assert (record["status"], record["reason"]) == ("ok", None)
    assert (
        record["transport"] == ("ring over grpc" if framework == "tensorflow-multiworker" else "gloo") + " over tcp lo"
    )
    assert [size["bytes"] for size in record["sizes"]] == [1024, 4096, 16384, 65536]
    for size in record["sizes"]:
        assert len(size["rounds"]) == ranks.ROUNDS
        assert len({len(times) for times in size["rounds"]}) == 1, "every round has as many repetitions"
        assert all(0 < seconds < 5 for times in size["rounds"] for seconds in times)
    # Two ranks exchange n bytes each per sum at least, and on loopback both are counted.
    timed = sum(size["bytes"] * sum(map(len, size["rounds"])) for size in record["sizes"])
    assert record["sent_bytes"] > timed
    assert record["ranks"] == 2 and record["placement"] == "emulated" and record["interface"] == "lo"


@pytest.fixture
def fake(tmp_path, monkeypatch, site):
    """A maker of frameworks: sweeps with an adapter of which one line is changed, in the controller's environment."""
    monkeypatch.setattr(
        measuring, "read_made", lambda stamp: {"python": {"executable": sys.executable}, "variables": {}}
    )

    def made(old="", new=""):
        folder = tmp_path / "framework"
        folder.mkdir()
        assert old in ADAPTER
        (folder / "adapter.py").write_text(ADAPTER.replace(old, new, 1) if old else ADAPTER)
        described = replace(load_framework("pytorch-ddp"), file=folder / "framework.yaml", modules=("numpy",))
        monkeypatch.setattr(
            designing, "load_framework", lambda name: described if name == described.name else load_framework(name)
        )
        return replace(site, sweep_max_bytes=4096)

    return made


def test_a_sweep_by_a_framework_that_works(fake, study, tmp_path):
    record = swept("pytorch-ddp", study, fake(), tmp_path)
    assert (record["status"], record["transport"]) == ("ok", "group over tcp lo")
    assert record["library_version"].startswith("numpy ")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "#",
            "self.values[5] += self.context.rank",
            "all-reduce of 1024 bytes over 2 ranks is wrong in 1 of 256 elements",
        ),
        ("#", "raise OSError('no such device')", "ended with status 1: OSError: no such device"),
        ("def all_reducer(", "def other(", "module 'adapter' has no attribute 'all_reducer'"),
        ("#", "self.context.rank and os._exit(7)", "rank 1 ended with status 7"),
    ],
)
def test_a_failing_sweep_is_data(fake, study, tmp_path, old, new, reason):
    record = swept("pytorch-ddp", study, fake(old, new), tmp_path)
    assert record["status"] == "failed" and reason in record["reason"]
    assert record["sizes"] == [] and record["transport"] is None


def test_a_sweep_that_hangs_is_ended(fake, study, tmp_path):
    site = replace(fake("#", "time.sleep(60)"), time_limit_s=3)
    record = swept("pytorch-ddp", study, site, tmp_path)
    assert (record["status"], record["reason"]) == ("timeout", "not finished after the time limit of 3 s")
    assert record["wall_s"] < 30


def test_a_disturbed_sweep_is_invalid(fake, study, tmp_path):
    record = swept("pytorch-ddp", study, replace(fake(), max_foreign_cpu_share=-1), tmp_path)
    assert record["status"] == "invalid" and record["reason"].startswith("disturbed: ")


def test_a_successful_attempt_is_published_again_and_a_failed_one_repeated(fake, study, tmp_path):
    site = fake("#", "raise OSError('once')")
    sweep = sweep_of("pytorch-ddp", study, site)
    out = gather.output(tmp_path, site, sweep)
    assert measure(study, site, sweep, tmp_path)["status"] == "failed"
    (tmp_path / "framework" / "adapter.py").write_text(ADAPTER)
    out.unlink()
    assert measure(study, site, sweep, tmp_path)["attempt"] == 2
    before = read(out)
    out.unlink()
    assert measure(study, site, sweep, tmp_path) == before
    assert sorted(path.name for path in out.parent.glob("attempt-*")) == ["attempt-1", "attempt-2"]


def test_a_size_that_would_take_too_long_is_left_out(fake, study, tmp_path):
    site = fake("#", "time.sleep(len(self.values) / 256 * 0.8)")  # 0.8 s for 1 KiB, 3.2 s for 4 KiB
    record = swept("pytorch-ddp", study, replace(site, sweep_max_bytes=16384), tmp_path)
    assert [size["bytes"] for size in record["sizes"]] == [1024]


def test_the_command_refuses_an_old_key_and_what_the_study_lacks(study, capsys):
    for name, said in (
        ("pytorch-ddp.n2", "files have changed since it was planned"),
        ("pytorch-ddp.n7", "has no sweep pytorch-ddp.n7"),
    ):
        given = {
            "--study": "quickstart",
            "--site": "local",
            "--key": "000000000000",
            "--out": "sweep.json",
            "--sweep": name,
        }
        with pytest.raises(InputError, match=said):
            measuring.main([part for pair in given.items() for part in pair])


def test_sweeps_of_other_links_are_told_apart(study):
    study = replace(
        study, factors=study.factors | {"framework": ["pytorch-ddp"], "nodes": [2], "bandwidth": [200, 0]}, exclude=()
    )
    names = [sweep.name for sweep in planned(design(study, load_site("virtual")), load_site("virtual"))]
    assert names == ["pytorch-ddp.n2", "pytorch-ddp.n2.bandwidth=200"]
    assert [find(study, load_site("virtual"), name).name for name in names] == names


def test_a_broken_sweep_is_one_line(tmp_path, fake, study):
    record = swept("pytorch-ddp", study, fake(), tmp_path)
    file = tmp_path / "sweep.json"
    for text, said in (
        ("{", "is broken"),
        (json.dumps({**record, "status": "fine"}), "status: 'fine' is not one of ok, failed"),
        (
            json.dumps({**record, "sizes": [{"bytes": 1024, "rounds": [[-1.0]]}]}),
            "sizes.0.rounds.0: -1.0 is too small; expected more than 0",
        ),
        (json.dumps({name: value for name, value in record.items() if name != "transport"}), "'transport' is missing"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=said) as caught:
            read(file)
        assert "\n" not in str(caught.value)


def test_sweeps_are_gathered_whether_or_not_they_succeeded(fake, study, tmp_path, monkeypatch):
    site = fake()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plan.campaign.load_site", lambda name: site)
    campaign = load_campaign({"study": "quickstart", "site": "local", "records": "available"})
    sweep = sweep_of("pytorch-ddp", study, site)
    measure(study, site, sweep, campaign.results)
    old = campaign.results / "network" / "horovod-pytorch.n2" / "000000000000" / "sweep.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    gather.main(["--study", "quickstart", "--site", "local", "--out", "network.csv"])
    rows = read_table(tmp_path / "network.csv", "network")
    ok = rows[rows["status"] == "ok"]
    assert set(ok["framework"]) == {"pytorch-ddp"} and sorted(set(ok["bytes"])) == [1024, 4096]
    assert ok.groupby(["bytes", "round"])["repetition"].max().min() >= 1
    first = ok.iloc[0]
    assert first["bus_bandwidth_bytes_s"] == pytest.approx(first["bytes"] / first["seconds"])
    reasons = dict(zip(rows["framework"], rows["reason"], strict=True))
    assert reasons["horovod-pytorch"].startswith("old: ")
    assert reasons["tensorflow-multiworker"] == "absent: has not been measured"


def test_the_sums_that_are_checked_are_exact():
    for n in (2, 3, 64):
        ranks.check_sum(np.sum([ranks.summands(1000, rank) for rank in range(n)], axis=0, dtype=np.float32), n)
    with pytest.raises(ArithmeticError, match="element 0 is 0, expected 3"):
        ranks.check_sum(np.zeros(1000, np.float32), 2)


def test_small_messages_are_repeated_more_often_and_large_ones_five_times_at_least():
    assert ranks.repetitions(1e-4) == ranks.MOST_REPETITIONS
    assert ranks.repetitions(0.7) == 1
    assert ranks.ROUNDS * ranks.repetitions(0.1) * 0.1 <= ranks.BUDGET_S == cost.SWEEP_S
