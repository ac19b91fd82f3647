"""Tables, logs, names of files and texts of collective benchmarks become measurements."""

import json
from pathlib import Path

import pytest

from common.errors import InputError
from declared.imported import Reading
from importers.collective_tests import network_rows, read_collective_table, read_nccl_tests, read_osu
from importers.files import find_sources, recognize, values_of_name
from importers.log_runs import median_seconds, read_log_run, step_seconds
from importers.run_table import read_run_table
from training_logs.log import Step

FILES = Path(__file__).parent / "files"
LOGS = Path(__file__).parents[1] / "training_logs" / "logs"


def table(folder: Path, text: str) -> Path:
    file = folder / "runs.csv"
    file.write_text(text)
    return file


def test_columns_have_usual_names_and_units_at_their_ends(tmp_path: Path) -> None:
    file = table(
        tmp_path, "Library,GPUs,nodes,global_batch_size,step_time_ms,site\nOur Trainer 2.0,16,2,512,412.5,a\n"
    )
    (run,), unused = read_run_table(file, {}, {}, {})
    assert run.values == {
        "framework": "our-trainer-2-0",
        "devices": 16,
        "nodes": 2,
        "global_batch": 512,
        "seconds": pytest.approx(0.4125),
    }
    assert unused == ["site"] and run.other_columns == {"site": "a"}


@pytest.mark.parametrize(
    ("column", "unit", "seconds"),
    [
        ("t_ms", "s", 0.41), ("t(ms)", "s", 0.41), ("t [ms]", "s", 0.41), ("t-msec", "s", 0.41),
        ("t.us", "s", 0.41e-3), ("step_s", "ms", 410.0), ("t", "ms", 0.41), ("items", "s", 410.0),
    ],
)  # fmt: skip
def test_unit_is_that_which_ends_the_column(tmp_path: Path, column: str, unit: str, seconds: float) -> None:
    runs, _ = read_run_table(table(tmp_path, f"{column}\n410\n"), {"seconds": column}, {}, {}, unit)
    assert runs[0].values["seconds"] == pytest.approx(seconds)


def test_decimal_commas_and_empty_last_cells_are_read(tmp_path: Path) -> None:
    runs, _ = read_run_table(table(tmp_path, "framework;seconds\na;0,412;\nb;12,5;;\n"), {}, {}, {})
    assert [run.values["seconds"] for run in runs] == [0.412, 12.5]


def test_columns_are_mapped_and_rows_chosen(tmp_path: Path) -> None:
    file = table(tmp_path, "framework,t,mode,tp\na,412.5,train,2\na,7,eval,2\nb,300,train,4\n")
    runs, unused = read_run_table(
        file, {"seconds": "t", "framework": ""}, {"tp": "tp"}, {"mode": "train"}, "ms"
    )
    assert [run.values for run in runs] == [
        {"seconds": pytest.approx(0.4125)},
        {"seconds": pytest.approx(0.3)},
    ]
    assert [run.custom for run in runs] == [{"tp": 2}, {"tp": 4}]
    assert unused == ["framework"]


@pytest.mark.parametrize(
    ("text", "columns", "code"),
    [
        ("framework,nodes\na,1\n", {}, "missing-value"),
        ("framework,seconds\na,0\n", {}, "bad-value"),
        ("framework,seconds\na,fast\n", {}, "bad-value"),
        ("framework,seconds\na,1\n", {"seconds": "secs"}, "unknown-name"),
        ("framework,framework,seconds\na,a,1\n", {}, "broken-file"),
        ("", {}, "broken-file"),
        ("framework,seconds\n", {}, "missing-value"),
        ("framework,seconds\na,1\nb\n", {}, "broken-file"),
        ("framework,seconds\na,1,2\n", {}, "broken-file"),
        ('{"framework": "a", "seconds": 1}\n{"framework": "b", "sec\n', {}, "broken-file"),
        ('[{"framework": "a", "seconds": 1}, 2]', {}, "broken-file"),
        ('[{"framework": "a", "seconds": 1, "seconds": 2}]', {}, "broken-file"),
        ('{"framework": "a", "seconds": 1, "seconds": 2}\n', {}, "broken-file"),
        ('framework,throughput\na,"1,024"\n', {}, "bad-value"),
        ('framework,nodes,seconds\na,"1,024",2\n', {}, "bad-value"),
    ],
)
def test_wrong_table_is_refused(text: str, columns: dict[str, str], code: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_run_table(table(tmp_path, text), columns, {}, {})
    assert refused.value.code == code


def test_log_leaves_out_the_warm_up_that_it_shows() -> None:
    log = read_log_run(LOGS / "megatron.log", "megatron", Reading())
    assert log.warmup_steps == 10
    assert [step.index for step in log.run.steps] == [20, 30, 40, 50, 60, 70, 80]
    assert {note.code for note in log.notes} == {"warm-up", "damaged-lines", "restarts"}
    assert log.run.values["tensor_parallel"] == 4 and log.run.values["sync_every"] == 4
    stated = read_log_run(
        LOGS / "megatron.log", "megatron", Reading(columns={"sync_every": ""}, warmup_steps=0)
    )
    assert len(stated.run.steps) == 9 and "sync_every" not in stated.run.values
    with pytest.raises(InputError) as refused:
        read_log_run(LOGS / "megatron.log", "megatron", Reading(warmup_steps=1000))
    assert refused.value.code == "out-of-range"


def test_precision_that_is_no_level_is_named(tmp_path: Path) -> None:
    file = tmp_path / "log"
    text = (LOGS / "megatron.log").read_text()
    file.write_text(text.replace(" None", " hybrid"))
    with pytest.raises(InputError) as refused:
        read_log_run(file, "megatron", Reading())
    assert refused.value.code == "bad-value"
    assert "precision" not in read_log_run(file, "megatron", Reading(columns={"precision": ""})).run.values


def test_mean_of_a_whole_training_is_a_finding() -> None:
    (finding,) = read_log_run(LOGS / "trainer_state.json", "trainer", Reading()).findings
    assert finding.code == "warm-up"


def test_table_of_steps_has_columns_and_a_unit(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("it,took,n\n" + "".join(f"{n},{400 + n % 2},64\n" for n in range(1, 9)))
    reading = Reading(columns={"seconds": "took", "global_batch": "n", "step": "it"}, unit="ms")
    log = read_log_run(file, "steps", reading)
    assert log.run.values == {"global_batch": 64} and step_seconds(log.run.steps) == pytest.approx(0.4005)


def test_steps_of_a_batch_that_grows_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(
        (LOGS / "megatron.log").read_text().replace("global batch size:    64", "global batch size:    32", 2)
    )
    log = read_log_run(file, "megatron", Reading())
    assert [step.index for step in log.run.steps] == [40, 50, 60, 70, 80]
    assert log.run.values["global_batch"] == 64 and "batch-changes" in {note.code for note in log.notes}


def test_step_times_are_weighted_by_their_steps() -> None:
    steps = [Step(1, 4.0), Step(10, 1.0, n_steps=9), Step(20, 2.0, n_steps=10)]
    assert step_seconds(steps) == pytest.approx((4 + 9 + 20) / 20)
    assert median_seconds(steps) == 2.0


def test_description_of_mlperfs_system_is_read(tmp_path: Path) -> None:
    place = tmp_path / "Org" / "results" / "sys_n2" / "llama31_8b"
    place.mkdir(parents=True)
    (place / "result_0.txt").write_bytes((LOGS / "mllog.txt").read_bytes())
    # As in some of MLPerf's descriptions, a key stands twice.
    system = {"number_of_nodes": "2", "accelerators_per_node": "8", "accelerator_model_name": "Example B9",
              "framework": "Example NeMo 25.09", "host_processors_per_node": ""}  # fmt: skip
    (tmp_path / "Org" / "systems").mkdir()
    (tmp_path / "Org" / "systems" / "sys_n2.json").write_text(
        json.dumps(system)[:-1] + ', "framework": "Example NeMo 25.09"}'
    )
    values = read_log_run(place / "result_0.txt", "mllog", Reading()).run.values
    assert (values["nodes"], values["devices_per_node"], values["device"]) == (2, 8, "Example B9")
    assert (values["framework"], values["model"]) == ("example-nemo-25-09", "llama31-8b")


def test_nccl_tests_tell_nodes_ranks_and_both_times() -> None:
    (test,) = read_nccl_tests(FILES / "all_reduce.txt")
    place = (test.collective, test.nodes, test.ranks, test.device)
    assert place == ("all_reduce", 2, 4, "NVIDIA H100 80GB HBM3")
    rows = network_rows([test], "s", "f", {})
    assert [row["bytes"] for row in rows] == [1024, 1024, 2**20, 2**20, 2**26, 2**26]
    assert [row["repetition"] for row in rows] == [1, 2, 1, 2, 1, 2]
    assert rows[2]["seconds"] == pytest.approx(80e-6)
    assert rows[2]["bus_bandwidth_bytes_s"] == pytest.approx(19.66e9, rel=1e-3)


def test_collective_without_a_name_is_that_of_the_file(tmp_path: Path) -> None:
    text = (FILES / "all_reduce.txt").read_text().replace("# Collective test starting: all_reduce_perf\n", "")
    file = tmp_path / "all_gather.txt"
    file.write_text(text)
    assert read_nccl_tests(file)[0].collective == "all_gather"
    with pytest.raises(InputError) as refused:
        read_nccl_tests(file.rename(tmp_path / "log.txt"))
    assert refused.value.code == "unknown-collective"


def test_several_tables_are_rounds(tmp_path: Path) -> None:
    file = tmp_path / "all_reduce.txt"
    file.write_text((FILES / "all_reduce.txt").read_text() * 2)
    rows = network_rows(read_nccl_tests(file), "s", "f", {})
    assert [row["round"] for row in rows] == [1] * 6 + [2] * 6


def test_table_of_collectives_is_read(tmp_path: Path) -> None:
    file = tmp_path / "nccl.csv"
    file.write_text(
        "device,collective,nodes,devices,bytes,seconds\nA100,all_reduce out of place,1,8,1048576,5e-05\n"
        "A100,all_reduce in place,1,8,1048576,5.1e-05\nA100,all_reduce in place,1,4,1048576,4e-05\n"
    )
    assert recognize(file, {}) == "collectives"
    rows = network_rows(read_collective_table(file, {}), "s", "f", {})
    assert [(row["nodes"], row["ranks"], row["repetition"]) for row in rows] == [
        (1, 8, 1),
        (1, 8, 2),
        (1, 4, 1),
    ]
    assert len(read_collective_table(file, {"devices": "8", "absent": "a"})) == 1
    file.write_text("collective,nodes,devices,bytes,seconds\nbroadcast,1,8,1048576,5e-05\n")
    with pytest.raises(InputError) as refused:
        read_collective_table(file, {})
    assert refused.value.code == "unknown-collective"


def test_osu_counts_shares_of_all_ranks_and_needs_a_place() -> None:
    tests = read_osu(FILES / "osu_allgather.txt")
    with pytest.raises(InputError) as refused:
        network_rows(tests, "s", "f", {})
    assert refused.value.code == "missing-value"
    rows = network_rows(tests, "s", "f", {"nodes": 2, "devices_per_node": 2})
    assert [(row["bytes"], row["nodes"], row["ranks"]) for row in rows] == [(16, 2, 4), (2**22, 2, 4)]
    assert rows[1]["bus_bandwidth_bytes_s"] == pytest.approx(0.75 * 2**22 / 150e-6)


def test_files_are_recognized_and_folders_searched(tmp_path: Path) -> None:
    assert recognize(FILES / "all_reduce.txt", {}) == "nccl-tests"
    assert recognize(FILES / "osu_allgather.txt", {}) == "osu"
    assert recognize(FILES / "dlperf_runs.csv", {}) == "runs"
    assert recognize(LOGS / "torchtitan.log", {}) == "torchtitan"
    (tmp_path / "steps.csv").write_text("step,nodes,framework,seconds\n7,1,a,2\n")
    assert recognize(tmp_path / "steps.csv", {}) == "runs"
    (tmp_path / "steps.csv").write_text("it,took\n7,2\n")
    assert recognize(tmp_path / "steps.csv", {}) is None
    assert recognize(tmp_path / "steps.csv", {"seconds": "took"}) == "runs"
    assert recognize(tmp_path / "steps.csv", {"seconds": "took", "step": "it"}) == "steps"
    (tmp_path / "steps.csv").unlink()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.log").write_bytes((LOGS / "megatron.log").read_bytes())
    (tmp_path / "a" / "setup.cfg").write_text("[x]\n")
    sources, notes = find_sources([str(tmp_path)], None, {})
    assert [(source.name, source.format) for source in sources] == [("a/one.log", "megatron")]
    assert len(notes) == 1
    (source,), _ = find_sources([str(tmp_path / "*" / "*.log")], None, {})
    assert source.name == "a/one.log"
    for name, code in (
        (str(tmp_path / "none*"), "missing-file"),
        (str(tmp_path / "a/setup.cfg"), "unknown-format"),
    ):
        with pytest.raises(InputError) as refused:
            find_sources([name], None, {})
        assert refused.value.code == code


def test_names_of_files_tell_values_and_own_factors() -> None:
    values, levels = values_of_name("runs/n4/tp2-b16-r3.log", "n{nodes}/tp{tp}-b{local_batch}-*.log")
    assert values == {"nodes": 4, "local_batch": 16} and levels == {"tp": 2}
    for pattern in ("m{nodes}.log", "n{nodes}/tp{devices}-b*.txt", "{nodes}-{nodes}"):
        with pytest.raises(InputError) as refused:
            values_of_name("runs/n4/tp2-b16-r3.log", pattern)
        assert refused.value.code == "bad-value"


def test_objects_may_have_other_columns_than_the_first(tmp_path: Path) -> None:
    text = '[{"framework": "a", "seconds": 1}, {"framework": "a", "seconds": 2, "sync_every": 4}]'
    runs, _ = read_run_table(table(tmp_path, text), {}, {}, {})
    assert [run.values.get("sync_every") for run in runs] == [None, 4]


def test_slow_steps_are_said(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text("step,seconds\n" + "".join(f"{n},{3 if n == 7 else 1}\n" for n in range(1, 11)))
    assert {note.code for note in read_log_run(file, "steps", Reading()).notes} == {"slow-steps"}
