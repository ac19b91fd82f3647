"""What was measured at a site, as a search takes it: costs of parts from costs.csv, and links from network.csv."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from common.notes import Note
from common.tables import read_table
from declared.site import Site
from declared.virtual import burst_bytes
from models.collectives import ALL_REDUCE, POINT_TO_POINT
from models.soap import Degrees, Space
from network import fit
from plan.design import Run
from plan.identity import cores_per_rank
from plan.timings import OF_PARTS
from strategies.costs import Cost, Measured, looked_up
from strategies.topology import Device, Level, Topology

SUMS_AT_ONCE = 2  # of a group of Gloo, which has two threads
VIRTUAL = "virtual"  # a placement


class Lacking(Exception):
    """What a search needs was not measured, or not found: `note` says what, in one line."""

    def __init__(self, note: Note) -> None:
        self.note = note
        super().__init__(str(note))


@dataclass(frozen=True)
class Known:
    """What was measured at a site: costs.csv, messages.csv and network.csv; how many `cores` a rank has, which a quota makes a share of one."""

    costs: pd.DataFrame
    messages: pd.DataFrame
    network: pd.DataFrame
    cores: float


def known(site: Site, costs: Path, messages: Path, network: Path) -> Known:
    """What the tables say. InputError where one cannot be read."""
    files = {"costs": costs, "messages": messages, "network": network}
    tables = {name: read_table(file, name) for name, file in files.items()}
    return Known(**tables, cores=cores_per_rank(site) * (site.cpu_share or 1.0))


def costs_of(costs: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The rows of costs.csv that are of the parts of a run's model. Lacking where there are none."""
    same = costs[costs["framework"] == run.framework.name]
    for name in OF_PARTS:
        same = same[same[name] == run.levels[name]]
    what = f"parts of {run.levels['model']} with {run.framework.name} in batches of {run.levels['batch_size']}"
    request = {"framework": run.framework.name, **{name: run.levels[name] for name in OF_PARTS}}
    first = _first_row(same, what, "costs.csv", request)
    if int(first["devices"]) < run.geometry.ranks:
        text = f"{what}: measured for {first['devices']} devices at most, asked is {run.geometry.ranks}"
        raise Lacking(Note("too-few-devices", text, **request, devices=int(first["devices"]), ranks=run.geometry.ranks))
    return same


def _first_row(rows: pd.DataFrame, subject: str, table: str, request: Mapping[str, Any]) -> pd.Series:
    """Return the first of the rows that a `request` selects from a `table`. Lacking where there is none, or it is not ok."""
    if rows.empty:
        raise Lacking(Note("not-measured", f"{subject}: not in {table}", table=table, **request))
    first = rows.iloc[0]
    if first["status"] != "ok":
        text = f"{subject}: {first['status']}: {first['reason']}"
        raise Lacking(
            Note("measurement-failed", text, table=table, status=first["status"], reason=first["reason"], **request)
        )
    return first


def rows_of(costs: pd.DataFrame) -> list[Measured]:
    """Rows of costs.csv of one model as a search takes them."""
    columns = ["layer", "degrees", "forward_s", "backward_s", "update_s"]
    return [
        (str(layer), tuple(map(int, degrees.split("x"))), float(forward), float(backward), float(update))
        for layer, degrees, forward, backward, update in costs[columns].itertuples(index=False)
    ]


def cost_of(costs: pd.DataFrame) -> Callable[[Space, int, Degrees], Cost]:
    """The costs of parts of one model, from its rows of costs.csv."""
    return looked_up(rows_of(costs))


def topology(
    network: pd.DataFrame, messages: pd.DataFrame, run: Run, memory_bytes: float, cores: float = 1.0
) -> Topology:
    """The devices of a run and the links between them: latency and bandwidth of point-to-point messages as they were fitted to the sweeps of
    its framework on as many nodes, and of all-reduce beside them; what a device itself has to do for a message, of which it has so many
    `cores` (a share of one, where it has a quota). `memory_bytes`: of a device. Lacking where there is no such sweep.

    Computation is measured, so that rates of the device mean nothing, and are infinite.
    """
    geometry, device = run.geometry, Device(math.inf, math.inf, memory_bytes)
    if handled := message_cost(messages[messages["framework"] == run.framework.name]):
        device = replace(device, **{name: seconds / cores for name, seconds in vars(handled).items()})
    if geometry.ranks == 1:
        return Topology(device, (Level(1, math.inf),))
    if geometry.ranks_per_node > 1:
        text = (
            f"links: {geometry.ranks_per_node} ranks are on a node, and no sweep measures links within one; "
            "say devices_per_node: 1"
        )
        raise Lacking(Note("links-within-node", text, ranks_per_node=geometry.ranks_per_node))
    sent, summed = (_fitted(network, run, collective) for collective in (POINT_TO_POINT, ALL_REDUCE))
    burst = _burst_bytes(swept(network, run, POINT_TO_POINT))
    steps = 2 * (geometry.ranks - 1)
    link = Level(
        geometry.nodes,
        bytes_s=sent.bandwidth_bytes_s.value,
        latency_s=sent.latency_s.value,
        burst_bytes=burst,
        ring_bytes_s=summed.bandwidth_bytes_s.value,
        ring_latency_s=summed.latency_s.value / steps,
        ring_channels=SUMS_AT_ONCE,
    )
    return Topology(device, (link,))


def swept(network: pd.DataFrame, run: Run, collective: str) -> pd.DataFrame:
    """The rows of network.csv of a collective by the run's framework, on its nodes and links."""
    wanted = {
        "collective": collective,
        "framework": run.framework.name,
        "nodes": run.geometry.nodes,
        "ranks": run.geometry.ranks,
        "device": run.levels["device"],
        "bandwidth": run.levels["bandwidth"],
    }
    rows = network
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


def _fitted(network: pd.DataFrame, run: Run, collective: str) -> fit.Fit:
    rows = swept(network, run, collective)
    at = f" at {run.levels['bandwidth']} Mbit/s" if run.levels["bandwidth"] else ""
    what = f"links: {collective} of {run.framework.name} on {run.geometry.nodes} nodes{at}"
    request = {"framework": run.framework.name, "collective": collective, "nodes": run.geometry.nodes}
    _first_row(rows, what, "network.csv", request)
    made = fit.fit_token_buckets(rows) if _burst_bytes(rows) else fit.fit(rows)
    if made is None or not made.bandwidth_bytes_s.value > 0:
        raise Lacking(
            Note("times-do-not-grow", f"{what}: its times do not grow with sizes; repeat the sweep", **request)
        )
    return made


def _burst_bytes(rows: pd.DataFrame) -> int:
    """How much a link of a sweep lets through at once: a shaped one of a virtual cluster is a token bucket."""
    first = rows.iloc[0]
    if first["placement"] != VIRTUAL or not first["link_bytes_s"] > 0:
        return 0
    return burst_bytes(float(first["link_bytes_s"]))


@dataclass(frozen=True)
class MessageCost:
    """Processor seconds of a message: `send_s` + bytes x `send_byte_s` of who sends it, and as much of who receives it."""

    send_s: float
    send_byte_s: float
    receive_s: float
    receive_byte_s: float


def message_cost(messages: pd.DataFrame) -> MessageCost | None:
    """Lines through the rows of messages.csv of one framework, fitted as sweeps are; None where fewer than two sizes were measured."""
    ok = messages[messages["status"] == "ok"]
    if len(ok) < fit.MIN_SIZES:
        return None
    size = ok["bytes"].to_numpy(float)
    lines = [
        fit.line(size, seconds, seconds) for seconds in (ok["send_s"].to_numpy(float), ok["receive_s"].to_numpy(float))
    ]
    (send, send_byte), (receive, receive_byte) = [(max(0.0, start), max(0.0, slope)) for start, slope in lines]
    return MessageCost(send, send_byte, receive, receive_byte)
