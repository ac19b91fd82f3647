"""A study of measurements made elsewhere has the cells of runs.csv, and names that Ringside does not have."""

from pathlib import Path

import pytest
import yaml

from common.errors import InputError
from declared.datasets import find_dataset
from declared.frameworks import describe_framework, has_own_algorithm, is_registered
from declared.imported import campaign_folder, campaign_name
from declared.models import find_graph
from declared.study import load_study
from support.figure_specs import figure_specs
from support.measured_elsewhere import DLPERF, MLPERF, STUDIES, copy_of, imported_study
from support.refusals import assert_refusal


def study_of(folder: Path, tables: Path, **keys: object) -> InputError:
    written = {"title": "t", "question": "q", "imported": str(tables), **keys}
    (folder / "s.yaml").write_text(yaml.safe_dump(written))
    with pytest.raises(InputError) as refused:
        load_study("s", folder)
    return refused.value


def test_cells_of_an_imported_study_are_those_of_its_table() -> None:
    study = imported_study("measured-dlperf")
    sizes = {(cell["nodes"], cell["devices_per_node"]) for cell in study.cells()}
    assert sizes == {(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)}
    assert len(study.cells()) == 23, "one framework was not measured on two devices"
    assert study.varied == ["framework", "n_devices"], "nodes and devices of a node grow in turn"
    assert study.factors["framework"] == ["mindspore", "mxnet-horovod", "pytorch-ddp", "tensorflow2"]
    assert (study.replicates.at_least, study.replicates.at_most) == (5, 10) and not study.replicates.adaptive
    assert study.traits().step_times and not study.token_sequences


def test_unregistered_names_are_described_as_unknown() -> None:
    described = describe_framework("mindspore")
    assert not is_registered("mindspore") and not described.communication and not described.libraries
    assert (
        described.algorithm == "own" and described.title == "mindspore" and not has_own_algorithm("mindspore")
    )
    assert describe_framework("pytorch-ddp").communication
    assert find_graph("resnet-50", "imagenet") is None and find_graph("small-cnn", "nowhere") is None
    assert find_graph("small-cnn", "digits") and find_dataset("imagenet") is None


@pytest.mark.parametrize("surplus", [{"replicates": 3}, {"factors": {"nodes": 1}}, {"seed": 1}])
def test_nothing_is_planned_of_an_imported_study(tmp_path: Path, surplus: dict[str, object]) -> None:
    (key,) = surplus
    assert_refusal(study_of(tmp_path, DLPERF, **surplus), "unknown-key", key)


def test_factor_of_an_answer_has_to_vary_in_the_table(tmp_path: Path) -> None:
    assert_refusal(study_of(tmp_path, MLPERF, answer="framework"), "factor-does-not-vary", "answer")


def test_folder_without_tables_is_refused(tmp_path: Path) -> None:
    assert_refusal(study_of(tmp_path, tmp_path / "none"), "missing-file", "imported")


def test_statement_without_a_licence_is_refused(tmp_path: Path) -> None:
    folder = copy_of(MLPERF, tmp_path / "tables")
    content = yaml.safe_load((folder / "import.yaml").read_text())
    del content["stated"]["licence"]
    (folder / "import.yaml").write_text(yaml.safe_dump(content))
    assert_refusal(study_of(tmp_path, folder), "missing-key", "stated.licence")


@pytest.mark.parametrize(
    ("table", "code"), [("run_id,cell\n", "missing-value"), ("run_id,cell\nr,c\n", "missing-value")]
)
def test_table_without_levels_is_refused(tmp_path: Path, table: str, code: str) -> None:
    folder = copy_of(MLPERF, tmp_path / "tables")
    (folder / "runs.csv").write_text(table)
    assert_refusal(study_of(tmp_path, folder), code, "framework" if "r,c" in table else "")


def test_figures_over_nodes_and_devices_are_over_both(tmp_path: Path) -> None:
    figures = [
        {"kind": "by_factor", "x": "nodes"},
        {"kind": "interaction", "x": "framework", "colour": "devices_per_node", "name": "i"},
        {"kind": "scaling", "filter": {"nodes": [2, 4]}},
    ]
    written = {"title": "t", "question": "q", "imported": str(DLPERF), "answer": "nodes", "figures": figures}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(written))
    study = load_study("s", tmp_path)
    by_factor, interaction, scaling = figure_specs(study)
    assert study.answer_factors == ("n_devices",) and by_factor.x == "n_devices"
    assert interaction.colour == ("n_devices",) and scaling.filter == {"n_devices": [16, 32]}


def test_imported_study_has_only_figures_that_it_has_numbers_for() -> None:
    names = {name: {figure.kind for figure in figure_specs(imported_study(name))} for name in STUDIES}
    absent = {"timeline", "accuracy", "energy"}
    assert all(kinds.isdisjoint(absent) for kinds in names.values())
    assert {"overview", "by_factor", "scaling", "shares"} <= names["measured-dlperf"]
    assert "shares" not in names["measured-mlperf"], "nothing was measured on one device"
    assert "scaling" in names["measured-mlperf"]


def test_response_of_an_imported_study_needs_its_column(tmp_path: Path) -> None:
    assert_refusal(study_of(tmp_path, DLPERF, response="token_throughput"), "not-possible-here", "response")


def test_a_study_of_measurements_made_elsewhere_names_its_folder() -> None:
    assert campaign_folder("public-dlperf") == Path("docs/campaigns/public/public-dlperf")
    assert campaign_folder("no-such-study") == Path("no-such-study")
    assert campaign_name("results/own/imported") == "own"
