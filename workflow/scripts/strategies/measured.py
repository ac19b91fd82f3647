"""Turn a site's measurements into the input of a search: costs of parts, and a topology of links."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from common.notes import Note
from common.tables import read_table
from declared.site import Site
from declared.virtual import burst_bytes
from models.collectives import ALL_REDUCE, POINT_TO_POINT
from network import fit
from plan.design import Run
from plan.site_resources import cores_per_rank
from plan.timings import PART_FACTORS
from strategies.costs import MeasuredCost
from strategies.topology import DeviceRates, LinkTier, Topology

CONCURRENT_SUMS = 2  # Gloo has two threads per group.
VIRTUAL = "virtual"


class MissingMeasurement(Exception):
    """A measurement that a search needs is missing; `note` names it in one line."""

    def __init__(self, note: Note) -> None:
        self.note = note
        super().__init__(str(note))


@dataclass(frozen=True)
class Measurements:
    """Tables measured at a site, and the `cores` of a rank (below 1 with a CPU quota)."""

    costs: pd.DataFrame
    messages: pd.DataFrame
    network: pd.DataFrame
    cores: float


def load_measurements(site: Site, costs: Path, messages: Path, network: Path) -> Measurements:
    """Return the measurements in these tables.

    Raises:
        InputError: If a table cannot be read.
    """
    files = {"costs": costs, "messages": messages, "network": network}
    tables = {name: read_table(file, name) for name, file in files.items()}
    return Measurements(**tables, cores=cores_per_rank(site) * (site.cpu_share or 1.0))


def select_costs(costs: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the rows of costs.csv for the parts of a run's model.

    Raises:
        MissingMeasurement: If there are none, or they are for fewer devices.
    """
    rows = costs[costs["framework"] == run.framework.name]
    for name in PART_FACTORS:
        rows = rows[rows[name] == run.levels[name]]
    subject = (
        f"parts of {run.levels['model']} with {run.framework.name} in batches of {run.levels['batch_size']}"
    )
    request = {"framework": run.framework.name, **{name: run.levels[name] for name in PART_FACTORS}}
    first = require_row(rows, subject, "costs.csv", request)
    if int(first["devices"]) < run.geometry.ranks:
        text = f"{subject}: measured for at most {first['devices']} devices, needed for {run.geometry.ranks}"
        raise MissingMeasurement(
            Note("too-few-devices", text, **request, devices=int(first["devices"]), ranks=run.geometry.ranks)
        )
    return rows


def require_row(rows: pd.DataFrame, subject: str, table: str, request: Mapping[str, Any]) -> pd.Series:
    """Return the first of the rows that a `request` selects from a `table`.

    Raises:
        MissingMeasurement: If there is none, or it is not ok.
    """
    if rows.empty:
        raise MissingMeasurement(Note("not-measured", f"{subject}: not in {table}", table=table, **request))
    first = rows.iloc[0]
    if first["status"] != "ok":
        text = f"{subject}: {first['status']}: {first['reason']}"
        raise MissingMeasurement(
            Note(
                "measurement-failed",
                text,
                table=table,
                status=first["status"],
                reason=first["reason"],
                **request,
            )
        )
    return first


def measured_rows(costs: pd.DataFrame) -> list[MeasuredCost]:
    """Return the rows of costs.csv of one model as a search reads them."""
    columns = ["layer", "degrees", "forward_s", "backward_s", "update_s"]
    return [
        (str(layer), tuple(map(int, degrees.split("x"))), float(forward), float(backward), float(update))
        for layer, degrees, forward, backward, update in costs[columns].itertuples(index=False)
    ]


def measured_topology(
    network: pd.DataFrame, messages: pd.DataFrame, run: Run, memory_bytes: float, cores: float = 1.0
) -> Topology:
    """Return the devices of a run and the links between them.

    Latency and bandwidth of messages and of all-reduce are fitted to the collective benchmarks of the run's
    framework on the run's number of nodes. Parts of layers have measured costs, so the rates of the device
    are not used; they are infinite.

    Args:
        network: network.csv.
        messages: messages.csv.
        run: The run.
        memory_bytes: Memory of a device.
        cores: Cores of a device that handle messages, less than 1 with a CPU quota.

    Raises:
        MissingMeasurement: If the benchmark is missing, or ranks share a node.
    """
    geometry, device = run.geometry, DeviceRates(math.inf, math.inf, memory_bytes)
    if handling := message_cost(messages[messages["framework"] == run.framework.name]):
        device = replace(device, **{name: seconds / cores for name, seconds in vars(handling).items()})
    if geometry.ranks == 1:
        return Topology(device, (LinkTier(1, math.inf),))
    if geometry.ranks_per_node > 1:
        text = (
            f"links: {geometry.ranks_per_node} ranks share a node, and no benchmark measures links within "
            "it; set devices_per_node: 1"
        )
        raise MissingMeasurement(Note("links-within-node", text, ranks_per_node=geometry.ranks_per_node))
    sent, summed = (fit_collective(network, run, collective) for collective in (POINT_TO_POINT, ALL_REDUCE))
    burst = link_burst_bytes(select_benchmark(network, run, POINT_TO_POINT))
    steps = 2 * (geometry.ranks - 1)
    link = LinkTier(
        geometry.nodes,
        bytes_s=sent.bandwidth_bytes_s.value,
        latency_s=sent.latency_s.value,
        burst_bytes=burst,
        ring_bytes_s=summed.bandwidth_bytes_s.value,
        ring_latency_s=summed.latency_s.value / steps,
        ring_channels=CONCURRENT_SUMS,
    )
    return Topology(device, (link,))


def select_benchmark(network: pd.DataFrame, run: Run, collective: str) -> pd.DataFrame:
    """Return the rows of network.csv of a collective by the run's framework, on its nodes and links."""
    levels = {
        "collective": collective,
        "framework": run.framework.name,
        "nodes": run.geometry.nodes,
        "ranks": run.geometry.ranks,
        "device": run.levels["device"],
        "bandwidth": run.levels["bandwidth"],
    }
    rows = network
    for name, value in levels.items():
        rows = rows[rows[name] == value]
    return rows


def fit_collective(network: pd.DataFrame, run: Run, collective: str) -> fit.BenchmarkFit:
    """Return the fit of a collective's benchmark.

    Raises:
        MissingMeasurement: If it was not measured, or its times do not grow with size.
    """
    rows = select_benchmark(network, run, collective)
    rate = f" at {run.levels['bandwidth']} Mbit/s" if run.levels["bandwidth"] else ""
    subject = f"links: {collective} of {run.framework.name} on {run.geometry.nodes} nodes{rate}"
    request = {"framework": run.framework.name, "collective": collective, "nodes": run.geometry.nodes}
    require_row(rows, subject, "network.csv", request)
    fitted = fit.fit_token_buckets(rows) if link_burst_bytes(rows) else fit.fit_benchmark(rows)
    if fitted is None or not fitted.bandwidth_bytes_s.value > 0:
        raise MissingMeasurement(
            Note(
                "times-do-not-grow",
                f"{subject}: times do not grow with size; repeat the benchmark",
                **request,
            )
        )
    return fitted


def link_burst_bytes(rows: pd.DataFrame) -> int:
    """Return the burst of a link: the token bucket of a virtual cluster's shaped link, or 0."""
    first = rows.iloc[0]
    if first["placement"] != VIRTUAL or not first["link_bytes_s"] > 0:
        return 0
    return burst_bytes(float(first["link_bytes_s"]))


@dataclass(frozen=True)
class MessageCost:
    """CPU seconds of a message: `send_s` + bytes x `send_byte_s` to send it; receiving is the same."""

    send_s: float
    send_byte_s: float
    receive_s: float
    receive_byte_s: float


def message_cost(messages: pd.DataFrame) -> MessageCost | None:
    """Return lines fitted to the rows of messages.csv of one framework, or None with too few sizes."""
    ok = messages[messages["status"] == "ok"]
    if len(ok) < fit.MIN_SIZES:
        return None
    size = ok["bytes"].to_numpy(float)
    lines = [
        fit.fit_line(size, seconds, seconds)
        for seconds in (ok["send_s"].to_numpy(float), ok["receive_s"].to_numpy(float))
    ]
    (send, send_byte), (receive, receive_byte) = [
        (max(0.0, start), max(0.0, slope)) for start, slope in lines
    ]
    return MessageCost(send, send_byte, receive, receive_byte)
