"""Files become a campaign whose tables fit their schemas, and an import.yaml that repeats the import."""

import json
import math
import os
import re
from pathlib import Path

import pytest
import yaml

from common.errors import InputError, InputErrors
from common.keys import load
from common.tables import read_table
from declared.imported import ImportKeys
from importers import campaign
from importers.campaign import import_measurements
from importers.statement import Options

FILES = Path(__file__).parent / "files"
LOGS = Path(__file__).parents[1] / "training_logs" / "logs"
OWN = Options(source="our site", licence="none")


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write into a folder of the test; the version is that of the real checkout."""
    monkeypatch.setattr(campaign, "_version", lambda: "0.0")
    monkeypatch.setattr(campaign, "CHECKOUT", tmp_path)
    monkeypatch.setattr(campaign, "STUDIES", tmp_path / "studies")
    (tmp_path / "studies").mkdir()
    return tmp_path


def options(**keys: object) -> Options:
    return Options(**{**vars(OWN), **keys})  # type: ignore[arg-type]


def test_table_and_collective_test_become_a_campaign(checkout: Path) -> None:
    names = [str(FILES / "dlperf_runs.csv"), str(FILES / "all_reduce.txt")]
    import_measurements(
        names, "theirs", options(column=["dataset="], bandwidth=100.0, inside_bandwidth=200.0)
    )
    folder = checkout / "results" / "theirs" / "imported"
    runs, epochs = read_table(folder / "runs.csv", "runs"), read_table(folder / "epochs.csv", "epochs")
    network = read_table(folder / "network.csv", "network")
    assert len(runs) == len(epochs) == 36 and set(runs["framework"]) == {"mindspore", "paddle"}
    assert set(runs["inside_bandwidth_bytes_s"]) == {25e9} and runs["block"].isna().all()
    assert set(network["framework"]) == {"mindspore", "paddle"} and len(network) == 12
    is_inside = network["nodes"] == 1
    assert set(network.loc[is_inside, "link_bytes_s"]) <= {25e9}
    assert set(network.loc[~is_inside, "link_bytes_s"]) <= {12.5e9} and network["link_bytes_s"].notna().all()
    written = load(ImportKeys, folder / "import.yaml")
    assert [(file.format, file.rows) for file in written.files] == [("runs", 36), ("nccl-tests", 1)]
    assert written.stated.bandwidth_bytes_s == 12.5e9 and written.reading.columns == {"dataset": ""}
    study = yaml.safe_load((checkout / "studies" / "theirs.yaml").read_text())
    assert study["imported"] == "results/theirs/imported" and set(study) == {"title", "question", "imported"}


def test_stated_costs_are_kept(checkout: Path) -> None:
    statement = checkout / "theirs.yaml"
    costs = {"price_per_node_hour": {"amount": 24.48, "currency": "USD"}, "grid_g_co2_per_kwh": 380}
    statement.write_text(yaml.safe_dump({"stated": {"source": "x", "licence": "none", "costs": costs}}))
    names = [str(FILES / "dlperf_runs.csv")]
    import_measurements(names, "theirs", Options(column=["dataset="]), statement=statement)
    written = yaml.safe_load((checkout / "results" / "theirs" / "imported" / "import.yaml").read_text())
    assert written["stated"]["costs"] == costs
    runs = read_table(checkout / "results" / "theirs" / "imported" / "runs.csv", "runs")
    assert set(runs["currency"]) == {"USD"} and set(runs["price_per_node_hour"]) == {24.48}


def test_import_repeats_from_its_import_yaml(checkout: Path) -> None:
    file = str(FILES / "mlperf_runs.csv")
    chosen = options(
        time="run", rows=["round=5.1"], accept=["lattice"], level=["dataset=c4"], factor=["org=org"]
    )
    import_measurements([file], "first", chosen)
    folder = checkout / "results" / "first" / "imported"
    import_measurements([file], "second", Options(), folder / "import.yaml")
    for name in ("runs.csv", "epochs.csv"):
        again = (checkout / "results" / "second" / "imported" / name).read_text()
        assert again.replace("second", "first") == (folder / name).read_text()
    changed = checkout / "mlperf_runs.csv"
    changed.write_text(Path(file).read_text().replace("569.008", "569.009"))
    with pytest.raises(InputErrors) as refused:
        import_measurements([str(changed)], "third", Options(), folder / "import.yaml")
    assert refused.value.code == "changed-file"


def test_logs_become_runs_with_values_of_their_names(checkout: Path) -> None:
    for nodes in (8, 16):
        log = checkout / "logs" / f"n{nodes}" / "tp4.log"
        log.parent.mkdir(parents=True)
        text = (LOGS / "megatron.log").read_text()
        text = text if nodes == 8 else re.sub(r".* (world|data_parallel)_size .*\n", "", text)
        log.write_text(text.replace("812.6", f"8{nodes}.6"))
    chosen = options(
        model="gpt", parameters=1.3e9, devices_per_node=8, names="n{nodes}/*.log", column=["devices="]
    )
    import_measurements([str(checkout / "logs")], "gpt", chosen)
    runs = read_table(checkout / "results" / "gpt" / "imported" / "runs.csv", "runs")
    assert runs["nodes"].tolist() == [16, 8] and set(runs["parallelism"]) == {"pipeline2-data-tensor4"}
    assert set(runs["precision"]) == {"amp"} and set(runs["parameters"]) == {1.3e9}
    assert runs["throughput_tokens_s"].notna().all()


def test_findings_end_the_import_unless_they_are_accepted(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(FILES / "mlperf_runs.csv")
    with pytest.raises(InputErrors) as refused:
        import_measurements([file], "theirs", options(time="run"), as_json=True)
    expected_codes = {error.code for error in refused.value.errors}
    assert expected_codes == {"same-run-twice", "mixed-cell"}
    listed = json.loads(capsys.readouterr().out)
    assert {finding["code"] for finding in listed["findings"]} == expected_codes and listed["written"] == []
    assert not (checkout / "results").exists()
    import_measurements([file], "theirs", options(time="run", accept=sorted(expected_codes)))
    folder = checkout / "results" / "theirs" / "imported"
    assert len(read_table(folder / "runs.csv", "runs")) == 10
    assert {entry.code for entry in load(ImportKeys, folder / "import.yaml").accepted} == expected_codes


def test_earlier_import_is_replaced_only_on_request(checkout: Path) -> None:
    names, chosen = [str(FILES / "llm_foundry.csv")], options(column=["dataset="])
    import_measurements(names, "mpt", chosen)
    study = checkout / "studies" / "mpt.yaml"
    study.write_text(study.read_text() + "target_accuracy: 0.9\n")
    with pytest.raises(InputError) as refused:
        import_measurements(names, "mpt", chosen)
    assert refused.value.code == "already-there"
    import_measurements(names, "mpt", chosen, overwrite=True)
    assert "target_accuracy" in study.read_text(), "a study that a person edited stays"
    study.write_text("title: t\n")
    with pytest.raises(InputError) as refused:
        import_measurements(names, "mpt", chosen, overwrite=True)
    assert refused.value.code == "already-there"


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"source": None}, "missing-argument"),
        ({"licence": None}, "missing-argument"),
        ({"column": ["seconds"]}, "bad-arguments"),
        ({"column": ["secs=t"]}, "unknown-name"),
        ({"level": ["datset=c4"]}, "unknown-name"),
        ({"format": "megatron-lm"}, "unknown-name"),
        ({"parameters": 1e9}, "missing-argument"),
        ({"precision": "fp8"}, "bad-value"),
        ({"rows": ["framework=nobody"]}, "missing-value"),
        ({"level": ["batch_size=8.5"]}, "wrong-type"),
        ({"level": ["sync_every=--3"]}, "wrong-type"),
        ({"level": ["batch_scope=all"]}, "not-one-of"),
        ({"level": ["nodes=2"]}, "conflicting-keys"),
        ({"level": ["parallelism=data-tensor2"]}, "conflicting-keys"),
        ({"level": ["batch_size=largest"]}, "wrong-type"),
        ({"level": ["batch_size=0"]}, "out-of-range"),
        ({"bandwidth": math.nan}, "out-of-range"),
        ({"inside_bandwidth": -1.0}, "out-of-range"),
        ({"parameters": math.inf, "model": "m"}, "out-of-range"),
        ({"source": " "}, "bad-pattern"),
        ({"factor": ["Tp=model"]}, "bad-pattern"),
        ({"names": "{Foo}.csv"}, "bad-pattern"),
    ],
)
def test_wrong_option_is_one_line(keys: dict[str, object], code: str) -> None:
    with pytest.raises(InputError) as refused:
        import_measurements([str(FILES / "dlperf_runs.csv")], "theirs", options(**keys))
    assert refused.value.code == code


def test_file_that_cannot_be_read_and_wrong_name_are_refused() -> None:
    with pytest.raises(InputError) as refused:
        import_measurements(["/dev/null"], "mpt", OWN)
    assert refused.value.file == "/dev/null"
    with pytest.raises(InputError) as refused:
        import_measurements([str(FILES / "llm_foundry.csv")], "../mpt", OWN)
    assert refused.value.file == "--as"


@pytest.mark.parametrize(
    ("level", "code"), [({"sync_every": "four"}, "wrong-type"), ({"nodes": 2}, "conflicting-keys")]
)
def test_levels_of_a_statement_are_checked(checkout: Path, level: dict[str, object], code: str) -> None:
    statement = checkout / "statement.yaml"
    statement.write_text(yaml.safe_dump({"stated": {"source": "s", "licence": "l", "levels": level}}))
    with pytest.raises(InputError) as refused:
        import_measurements([str(FILES / "llm_foundry.csv")], "mpt", Options(), statement)
    assert refused.value.code == code and refused.value.file == str(statement)


@pytest.mark.parametrize("n_tables", [0, 1])
def test_import_that_breaks_off_leaves_the_earlier_one(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, n_tables: int
) -> None:
    names, folder = [str(FILES / "llm_foundry.csv")], checkout / "results" / "mpt" / "imported"
    import_measurements(names, "mpt", OWN)
    earlier = {file.name: file.read_bytes() for file in folder.iterdir()}
    written: list[str] = []

    def write_some(rows: object, name: str, file: Path) -> None:
        if len(written) == n_tables:
            raise OSError(28, "No space left on device")
        written.append(name)
        file.write_text("other")

    monkeypatch.setattr(campaign, "write_table", write_some)
    with pytest.raises(OSError):
        import_measurements(names, "mpt", OWN, overwrite=True)
    assert len(written) == n_tables
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == earlier


def test_half_replaced_import_is_no_campaign(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, folder = [str(FILES / "llm_foundry.csv")], checkout / "results" / "mpt" / "imported"
    import_measurements(names, "mpt", OWN)
    replace, places = os.replace, []

    def replace_one(partial: Path, file: Path) -> None:
        if not Path(file).name.endswith(".partial"):
            if places:
                raise KeyboardInterrupt
            places.append(Path(file).name)
        replace(partial, file)

    monkeypatch.setattr(os, "replace", replace_one)
    with pytest.raises(KeyboardInterrupt):
        import_measurements(names, "mpt", OWN, overwrite=True)
    assert places == ["epochs.csv"]
    assert {file.name for file in folder.iterdir()} == {"runs.csv", "epochs.csv"}, "no import.yaml"


def test_collectives_of_several_devices_are_a_finding(checkout: Path) -> None:
    table = checkout / "nccl.csv"
    rows = "".join(
        f"{device},all_reduce,1,8,{2**power},{2**power / 1e10}\n" for device in "AB" for power in (20, 22)
    )
    table.write_text("device,collective,nodes,devices,bytes,seconds\n" + rows)
    names = [str(FILES / "dlperf_runs.csv"), str(table)]
    with pytest.raises(InputErrors) as refused:
        import_measurements(names, "theirs", options(column=["dataset="]))
    assert refused.value.code == "mixed-cell"


def test_dry_run_writes_nothing(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_measurements([str(FILES / "llm_foundry.csv")], "mpt", options(column=["dataset="]), dry_run=True)
    assert not (checkout / "results").exists() and list((checkout / "studies").iterdir()) == []
    assert "would write" in capsys.readouterr().out


def test_collective_tests_alone_are_no_campaign() -> None:
    with pytest.raises(InputError) as refused:
        import_measurements([str(FILES / "all_reduce.txt")], "theirs", OWN)
    assert refused.value.code == "missing-value"


def test_copy_of_a_table_is_refused(checkout: Path) -> None:
    copy = checkout / "copy.csv"
    copy.write_bytes((FILES / "llm_foundry.csv").read_bytes())
    with pytest.raises(InputError) as refused:
        import_measurements([str(FILES / "llm_foundry.csv"), str(copy)], "mpt", OWN)
    assert refused.value.code == "duplicate"
