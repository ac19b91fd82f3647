"""Utilization of devices against published values, what refuses it, and traffic of collectives."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import efficiency, strategies
from analysis.records import read_runs
from analysis.responses import response_notes, with_response
from common.errors import InputError
from common.files import CHECKOUT
from common.notes import codes, find_note
from declared.models import model_graph
from declared.responses import RESPONSES
from support.measured_elsewhere import MLPERF
from support.synthetic import campaign, write_frames

MPT = CHECKOUT / "docs" / "campaigns" / "public" / "public-mpt-fsdp" / "runs.csv"
# Published MFU and HFU (%) on 64 A100, with the layers and units whose attention they count and ours do not.
PUBLISHED_MPT = {
    "mpt-125m": (39.27, 39.27, 12, 768),
    "mpt-1b": (55.44, 55.44, 24, 2048),
    "mpt-7b": (50.73, 67.64, 32, 4096),
    "mpt-13b": (52.04, 69.39, 40, 5120),
}
N_TOKENS = 2048


@pytest.fixture(scope="module")
def mpt() -> pd.DataFrame:
    return read_runs(MPT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return read_runs(write_frames(tmp_path_factory.mktemp("efficiency"), *campaign(failures={}))[0])


@pytest.mark.parametrize("model", PUBLISHED_MPT)
def test_utilization_is_the_published_one(mpt: pd.DataFrame, model: str) -> None:
    mfu, hfu, layers, units = PUBLISHED_MPT[model]
    row = mpt[(mpt["model"] == model) & (mpt["nodes"] == 8) & (mpt["devices"] == "A100 40GB")]
    (values,) = efficiency.model_flop_utilization(row).to_dict("records")
    attention = 12 * layers * units * N_TOKENS
    with_attention = 1 + attention / (6 * float(row["parameters"].iloc[0]))
    assert 100 * values["mfu"] * with_attention == pytest.approx(mfu, rel=2e-3)
    assert 100 * values["hfu"] * with_attention == pytest.approx(hfu, rel=2e-3)
    assert values["operations_source"] == efficiency.FROM_PARAMETERS and values["peak_device"] == "A100"


def test_names_that_leave_the_device_open_are_refused(mpt: pd.DataFrame) -> None:
    values = efficiency.model_flop_utilization(mpt)
    is_open = mpt["devices"] == "H100 80GB"
    assert values.loc[is_open, "mfu"].isna().all() and values.loc[~is_open, "mfu"].notna().all()
    assert values["device_flops_s"].notna().all()
    stated = mpt.assign(peak_flops_s=989.5e12).loc[is_open]
    assert efficiency.model_flop_utilization(stated)["mfu"].between(0.25, 0.5).all()
    refusal = find_note(efficiency.notes(values), "without-mfu")
    assert refusal.facts["runs"] == is_open.sum() and "H100 80GB" in refusal.facts["reason"]


def test_unregistered_model_without_tokens_has_no_operations() -> None:
    mlperf = read_runs(MLPERF / "runs.csv").assign(parameters=45e6)
    values = efficiency.model_flop_utilization(mlperf)
    assert values["sample_flops"].isna().all() and (values["without_mfu"] != "").all()
    stated = efficiency.model_flop_utilization(mlperf.assign(sample_flops=3e12))
    assert set(stated["operations_source"]) == {efficiency.STATED} and set(stated["sample_flops"]) == {3e12}
    to_target = mlperf.assign(sample_flops=3e12, samples_per_epoch=None, devices="NVIDIA H200")
    assert set(efficiency.model_flop_utilization(to_target)["without_mfu"]) == {efficiency.WITHOUT_SAMPLES}


@pytest.mark.parametrize(
    ("devices", "device", "precision"),
    [
        ("NVIDIA A100-SXM4-40GB; NVIDIA H200", "cuda", "amp"),
        ("NVIDIA A100-SXM4-40GB", "hybrid", "amp"),
        ("Tesla V100-SXM2-16GB", "cuda", "tf32"),
        ("AMD EPYC", "cpu", "fp32"),
        ("", "cuda", "fp32"),
    ],
)
def test_peak_is_refused_with_a_reason(devices: str, device: str, precision: str) -> None:
    peak = efficiency.find_peak(devices, device, precision)
    assert peak.reason and not peak.source and pd.isna(peak.flops_s)


def test_more_than_the_peak_is_an_error(runs: pd.DataFrame, tmp_path: Path) -> None:
    values = efficiency.model_flop_utilization(runs)
    too_low = runs.assign(peak_flops_s=values["device_flops_s"].max() / 1.52)
    for response in efficiency.SHARES:
        with pytest.raises(InputError) as refused:
            with_response(too_low, RESPONSES[response], lambda: runs)
        assert refused.value.code == "above-peak" and refused.value.got == pytest.approx(1.52)
    with pytest.raises(InputError):
        efficiency.table(too_low)


def test_recomputation_above_the_peak_is_an_error(mpt: pd.DataFrame) -> None:
    recomputed = mpt[mpt["custom_checkpointing"] == "on"]
    rates = efficiency.model_flop_utilization(recomputed)["device_flops_s"]
    with pytest.raises(InputError) as refused:
        efficiency.table(recomputed.assign(peak_flops_s=rates.max() / 0.8))
    assert refused.value.code == "above-peak" and refused.value.got == pytest.approx(0.8 * 4 / 3)


def test_share_follows_from_time_operations_and_peak(runs: pd.DataFrame) -> None:
    measured = with_response(runs.assign(peak_flops_s=1e12), RESPONSES["mfu"], lambda: runs)
    row = measured.iloc[-1]
    samples_s = row["samples_per_epoch"] / row["epoch_time_s"]
    values = efficiency.model_flop_utilization(runs)
    (operations,) = set(values["sample_flops"])
    assert row["mfu"] == pytest.approx(samples_s * operations / row["n_devices"] / 1e12)
    notes = response_notes(measured, RESPONSES["mfu"])
    assert codes(notes) == ["response", "operations", "peak"]
    assert find_note(notes, "peak").facts["flops_s"] == [1e12]
    assert find_note(notes, "operations").facts["flops"] == [operations]
    assert codes(efficiency.notes(values, efficiency.DEVICE_FLOPS)) == ["operations"]
    assert efficiency.notes(values, efficiency.COLLECTIVE_RATE) == []


def test_traffic_is_that_of_the_table_of_strategies(runs: pd.DataFrame, mpt: pd.DataFrame) -> None:
    counted = runs.assign(n_allreduces=10.0, samples_trained=runs["samples_per_epoch"])
    row = counted[counted["nodes"] == 2].iloc[[-1]]
    (rate,) = efficiency.model_flop_utilization(row)["collective_bytes_s_device"]
    levels = {**row.iloc[0], "microbatches": 1}
    requirements = strategies.cell_requirements(levels, row.iloc[0])
    assert requirements is not None
    assert rate == pytest.approx(10 * requirements["all_reduce_bytes"] / row["epoch_time_s"].iloc[0])
    alone = counted[counted["nodes"] == 1]
    assert efficiency.model_flop_utilization(alone)["collective_bytes_s_device"].isna().all()
    sharded = mpt[(mpt["model"] == "mpt-125m") & (mpt["nodes"] == 2)].iloc[0]
    (rate,) = efficiency.model_flop_utilization(mpt.loc[[sharded.name]])["collective_bytes_s_device"]
    gathered_twice_and_scattered = 3 * 15 / 16 * sharded["gradient_bytes"]
    assert rate == pytest.approx(gathered_twice_and_scattered / sharded["step_time_median_s"], rel=1e-6)
    without_size = mpt.loc[[sharded.name]].assign(gradient_bytes=None)
    (rate_of_fp32,) = efficiency.model_flop_utilization(without_size)["collective_bytes_s_device"]
    assert rate_of_fp32 == pytest.approx(rate * 4 * sharded["parameters"] / sharded["gradient_bytes"])
    for level in ("data8-tensor2", "pipeline2-data8", "dense"):
        divided = mpt.loc[[sharded.name]].assign(parallelism=level)
        assert efficiency.model_flop_utilization(divided)["collective_bytes_s_device"].isna().all(), level


def test_table_has_recomputation_only_where_there_is_some(mpt: pd.DataFrame, runs: pd.DataFrame) -> None:
    result = efficiency.table(mpt)
    row = result.data.set_index("cell").loc[mpt.loc[mpt["custom_checkpointing"] == "on", "cell"].iloc[0]]
    assert row["recomputed_flops"] == pytest.approx(row["sample_flops"] / 3)
    stated = efficiency.model_flop_utilization(mpt.assign(sample_flops=3e12))
    assert set(stated["recomputed_flops"]) == {0, 1e12}
    mfu = efficiency.MFU
    percentages = [float(text.split()[0]) for text in result.display[mfu.label] if text[0].isdigit()]
    assert percentages == pytest.approx((100 * result.data["mfu"].dropna()).tolist(), rel=6e-3)
    assert any("hardware" in heading for heading in result.display)
    plain = efficiency.table(runs.assign(peak_flops_s=1e12))
    assert not any("hardware" in heading for heading in plain.display) and plain.data["mfu"].notna().all()
    unclear = efficiency.model_flop_utilization(mpt.assign(custom_checkpointing="selective"))
    assert unclear["hfu"].isna().all() and unclear["mfu"].notna().any()


def test_blocks_computed_again_count_as_executed_not_as_needed(runs: pd.DataFrame) -> None:
    """gpt-nano's head is in no block, so that it is computed once."""
    tokens = runs.assign(model="gpt-nano", dataset="synthetic-tokens-32-16-256", peak_flops_s=1e12)
    stored, selective, recomputed = (
        efficiency.model_flop_utilization(tokens.assign(checkpointing=level)).iloc[0]
        for level in ("none", "selective", "blocks")
    )
    assert selective["recomputed_flops"] == 0, "products are kept"
    graph = model_graph("gpt-nano", "synthetic-tokens-32-16-256")
    head = graph.operators[-1].macs
    assert stored["recomputed_flops"] == 0 and recomputed["recomputed_flops"] == 2 * (graph.macs - head) > 0
    assert recomputed["mfu"] == stored["mfu"] == stored["hfu"] < recomputed["hfu"]


def test_campaign_without_success_has_no_rows(runs: pd.DataFrame) -> None:
    assert efficiency.table(runs.assign(status="failed")).data.empty


def test_failed_first_runs_keep_the_traffic_of_cells(mpt: pd.DataFrame) -> None:
    again = pd.concat(
        [mpt.assign(status="failed", epoch_time_s=None, parameters=None, gradient_bytes=None), mpt]
    )
    again = again.reset_index(drop=True)
    rates = efficiency.model_flop_utilization(again)["collective_bytes_s_device"]
    assert (
        rates.notna().sum()
        == efficiency.model_flop_utilization(mpt)["collective_bytes_s_device"].notna().sum()
        > 0
    )
