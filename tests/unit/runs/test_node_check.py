"""The node check measures real ranks and writes slow nodes to nodes.csv, and later jobs avoid these."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import InputError
from common.files import CHECKOUT
from common.tables import read_table, write_table
from declared.site import load_site
from launchers.jobs import select_hosts
from launchers.protocol import AttemptLost
from plan.node_check import without_slow_nodes
from plan.scheduling import allocation_options, flux_batch_options, oarsub_options
from ranks.node_check import link_rounds, partners
from runs import node_check
from sites.outliers import FALSE_POSITIVE_RATE, binomial_tail, rounds_needed

SITE = load_site("local")
CLUSTER = load_site("slurm-example")


def made_up_result(n_nodes: int = 4, slow_link: int = -1, slow_cpu: int = -1) -> dict[str, Any]:
    """Return a result of ranks in which one node computes at 70 %, and another has half its link rate."""
    rounds = rounds_needed(3 * n_nodes)
    hosts = [f"n{rank}" for rank in range(n_nodes)]
    cycle = [
        [2.0 if slow_link in (rank, meeting.get(rank)) else 1.0 for rank in range(n_nodes)]
        for meeting in partners(n_nodes)
    ]
    nodes = [
        {
            "host": host,
            **dict.fromkeys(("computation", "memory"), [[1.43 if rank == slow_cpu else 1.0]] * rounds),
        }
        for rank, host in enumerate(hosts)
    ]
    return {"by_device": False, "nodes": nodes, "links": [cycle] * rounds, "message_bytes": 2**20}


def test_ranks_time_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_check, "rounds_needed", lambda n_tests: 1)
    result = node_check.measure_nodes(SITE, 3, tmp_path)
    for rank, node in enumerate(result["nodes"]):
        node["host"] = f"n{rank}"  # they are emulated on one host
    table = node_check.judge_result(result, "2026-11-28")
    assert sorted(zip(table["host"], table["test"], strict=True)) == [
        (host, test) for host in ("n0", "n1", "n2") for test in ("computation", "links", "memory")
    ]
    assert (table["seconds"] > 0).all()
    assert not table["slow"].any()  # one round is too few


def test_message_is_as_slow_as_its_slower_node() -> None:
    """A rank that only sends slowly has its message in buffers at once; its partner waits for it."""
    group = SimpleNamespace(barrier=lambda: None, all_gather=lambda own_s: [own_s, 0.5, 0.0])
    context: Any = SimpleNamespace(rank=0, ranks=3, spec={"rounds": 2}, group=group)
    links, _ = link_rounds(context, [{0: 1, 1: 0}], lambda partner, size: None)
    assert links == [[[0.5, 0.5, None]]] * 2


def test_slow_nodes_are_left_out_by_every_scheduler(tmp_path: Path) -> None:
    table = node_check.judge_result(made_up_result(slow_link=1, slow_cpu=3), "2026-11-28")
    write_table(table, "nodes", tmp_path / "nodes.csv")
    rows = read_table(tmp_path / "nodes.csv", "nodes")
    assert sorted(rows.loc[rows["slow"], "host"] + " " + rows.loc[rows["slow"], "test"]) == [
        "n1 links",
        "n3 computation",
        "n3 memory",
    ]
    site = without_slow_nodes(CLUSTER, tmp_path)
    assert sorted(dict(site.exclude_nodes)) == ["n1", "n3"]
    assert "1.43" in dict(site.exclude_nodes)["n3"]
    named = next(option for option in allocation_options(site, 2) if option.startswith("--exclude="))
    assert set(named.removeprefix("--exclude=").split(",")) >= {"n1", "n3"}
    assert "'n1'" in oarsub_options(site, 2, 60).replace('"', "'")
    assert "n1" in flux_batch_options(site, 2, 60)
    assert without_slow_nodes(CLUSTER, tmp_path / "absent") == CLUSTER
    stated = replace(CLUSTER, exclude_nodes=(("n1", "broken"), ("n9", "slow")))
    excluded = dict(without_slow_nodes(stated, tmp_path).exclude_nodes)
    assert excluded.keys() == {"n1", "n3", "n9"} and excluded["n1"] == "broken"


def test_table_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    for time_ns, slow_link, names in ((10**18, 1, {"n1"}), (2 * 10**18, 2, {"n2"})):
        table = node_check.judge_result(made_up_result(slow_link=slow_link), "2026-11-28")
        write_table(table, "nodes", tmp_path / "nodes.csv")
        os.utime(tmp_path / "nodes.csv", ns=(time_ns, time_ns))
        assert dict(without_slow_nodes(CLUSTER, tmp_path).exclude_nodes).keys() >= names
    assert "n1" not in dict(without_slow_nodes(CLUSTER, tmp_path).exclude_nodes)


@pytest.mark.parametrize("content", ["host,slow\nn1,true\n", "a\n\0b", ""])
def test_broken_table_of_nodes_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "nodes.csv").write_text(content)
    with pytest.raises(InputError) as refused:
        without_slow_nodes(CLUSTER, tmp_path)
    assert "nodes.csv" in str(refused.value.file)


def test_verdicts_are_corrected_for_their_number() -> None:
    """Twelve verdicts need more evidence than one."""
    result = made_up_result()
    n_rounds = len(result["links"])
    n_slow = next(n for n in range(n_rounds) if binomial_tail(n_rounds, n) <= FALSE_POSITIVE_RATE)
    result["nodes"][0]["computation"] = [[1.43]] * n_slow + [[1.0]] * (n_rounds - n_slow)
    table = node_check.judge_result(result, "2026-11-28")
    assert table["p"].min() <= FALSE_POSITIVE_RATE and not table["slow"].any()


def test_too_few_nodes_left_of_a_list_are_refused(tmp_path: Path) -> None:
    table = node_check.judge_result(made_up_result(slow_link=1, slow_cpu=3), "2026-11-28")
    write_table(table, "nodes", tmp_path / "nodes.csv")
    for nodes, code in ((2, None), (3, "too-few")):
        site = replace(CLUSTER, nodes=nodes, scheduler=replace(CLUSTER.scheduler, nodelist="n[0-3]"))
        if code is None:
            assert dict(without_slow_nodes(site, tmp_path).exclude_nodes).keys() == {"n1", "n3"}
            continue
        with pytest.raises(InputError) as refused:
            without_slow_nodes(site, tmp_path)
        assert (refused.value.code, refused.value.got) == (code, 2)


def test_run_takes_the_other_nodes_of_its_job() -> None:
    site = replace(CLUSTER, exclude_nodes=(("n2", "slow"),))
    assert select_hosts(site, ["n1", "n2.cluster", "n3"], 2, "job 1") == ["n1", "n3"]
    with pytest.raises(AttemptLost) as lost:
        select_hosts(site, ["n1", "n2"], 2, "job 1")
    assert lost.value.reason.code == "nodes-excluded"
    assert lost.value.reason.facts["excluded"] == ["n2"]
    with pytest.raises(InputError) as refused:
        select_hosts(site, ["n1"], 2, "job 1")
    assert refused.value.code == "too-few-nodes"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("devices", [0, 2])
def test_one_machine_has_nothing_to_compare(device: str, devices: int, tmp_path: Path) -> None:
    """Its accelerators are not compared either, until their environment is built."""
    site = replace(SITE, device=device, devices_per_node=devices, cache=tmp_path)
    with pytest.raises(InputError) as refused:
        node_check.check_nodes(site)
    assert refused.value.code == "not-possible-here"
    assert str(CHECKOUT) not in str(refused.value)


def test_equal_nodes_stay(tmp_path: Path) -> None:
    write_table(node_check.judge_result(made_up_result(), "2026-11-28"), "nodes", tmp_path / "nodes.csv")
    assert without_slow_nodes(CLUSTER, tmp_path).exclude_nodes == CLUSTER.exclude_nodes
