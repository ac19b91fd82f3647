"""Chakra execution traces of a training step: a graph of nodes for each rank, in files for ASTRA-sim.

A node is a computation, one side of a message, or a rank's part of a collective (Sridharan et al.,
arXiv:2305.14516). `data_deps` are the nodes whose results it needs; `ctrl_deps` only keep an order: of the
computations of a rank, and of its collectives. Identifiers are unique among all ranks and grow in the order
in which the nodes use devices and links.

The schema is that of the package mlc-chakra, in an environment of its own (containers/chakra): the files are
written there, by `traces.chakra_files`. They have times in whole microseconds; the attributes `start_ps` and
`duration_ps` have picoseconds.
"""

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import InputError, system_faults
from common.files import write_json
from declared.configuration import load_config
from declared.site import Site, load_site
from environments.build import build_tool
from plan.campaign import load_merged_config

ENVIRONMENT = "chakra"
COMPUTATION, SEND, RECEIVE, COLLECTIVE = "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"
ALL_REDUCE = "ALL_REDUCE"
MICROSECOND = 10**6  # ps
GROUPS = "comm_groups.json"
Attribute = bool | int | str | list[int]


@dataclass
class Node:
    """A node of one rank; times in ps."""

    number: int
    kind: str
    name: str
    start_ps: int
    duration_ps: int
    data_deps: list[int]
    ctrl_deps: list[int]
    attributes: dict[str, Attribute]


@dataclass
class Graph:
    """The nodes of all ranks, added in the order in which they use devices and links.

    Attributes:
        ranks: The nodes of each rank.
        groups: Number of each process group, from 1.
    """

    ranks: list[list[Node]]
    groups: dict[tuple[int, ...], int] = field(default_factory=dict)
    _size: int = 0
    _latest: dict[tuple[int, str], int] = field(default_factory=dict)
    _tags: Counter[tuple[int, int]] = field(default_factory=Counter)

    @classmethod
    def empty(cls, n_ranks: int) -> "Graph":
        """Return a graph of `n_ranks` ranks without nodes."""
        return cls([[] for _ in range(n_ranks)])

    def _add(
        self,
        rank: int,
        kind: str,
        name: str,
        times: tuple[int, int],
        data_deps: Iterable[int],
        in_order: bool,
        attributes: dict[str, Attribute],
    ) -> int:
        """Add a node with its start and end, `in_order` after the last one of its kind; return its number."""
        number, (start, end) = self._size, times
        before = [self._latest[rank, kind]] if in_order and (rank, kind) in self._latest else []
        deps = list(dict.fromkeys(data_deps))
        before = [dep for dep in before if dep not in deps]
        self.ranks[rank].append(Node(number, kind, name, start, end - start, deps, before, attributes))
        self._size += 1
        if in_order:
            self._latest[rank, kind] = number
        return number

    def add_computation(
        self,
        rank: int,
        name: str,
        times: tuple[int, int],
        data_deps: Iterable[int] = (),
        *,
        n_operations: int = 0,
        moved_bytes: int = 0,
        on_cpu: bool = False,
    ) -> int:
        """Add a computation and return its number.

        Args:
            rank: Where it runs.
            name: Its name.
            times: Its start and end in ps.
            data_deps: Nodes of the rank that it needs.
            n_operations: Its floating point operations.
            moved_bytes: Bytes that it reads and writes.
            on_cpu: It does not occupy the device, and keeps no order with its other computations.
        """
        attributes: dict[str, Attribute] = {
            "is_cpu_op": on_cpu,
            "num_ops": n_operations,
            "tensor_size": moved_bytes,
        }
        return self._add(rank, COMPUTATION, name, times, data_deps, not on_cpu, attributes)

    def add_message(
        self,
        sender: int,
        receiver: int,
        name: str,
        times: tuple[int, int],
        n_bytes: int,
        data_deps: Iterable[int] = (),
    ) -> tuple[int, int]:
        """Add a message from its start to its arrival; return the numbers of its sending and receiving."""
        tag = self._tags[sender, receiver]
        self._tags[sender, receiver] += 1
        attributes: dict[str, Attribute] = {
            "is_cpu_op": False,
            "comm_size": n_bytes,
            "comm_src": sender,
            "comm_dst": receiver,
            "comm_tag": tag,
        }
        sent = self._add(sender, SEND, name, times, data_deps, False, attributes)
        return sent, self._add(receiver, RECEIVE, name, times, (), False, dict(attributes))

    def add_all_reduce(
        self,
        name: str,
        times: dict[int, tuple[int, int]],
        n_bytes: Sequence[int],
        data_deps: Mapping[int, Iterable[int]],
    ) -> dict[int, int]:
        """Add an all-reduce among ranks; return the number of each rank's node.

        Args:
            name: Its name.
            times: Start and end in ps by rank.
            n_bytes: Of each tensor in it.
            data_deps: What it needs, by rank.
        """
        members = tuple(sorted(times))
        group = self.groups.setdefault(members, len(self.groups) + 1)
        attributes: dict[str, Attribute] = {
            "is_cpu_op": False,
            "comm_type": ALL_REDUCE,
            "comm_size": sum(n_bytes),
            "pg_name": str(group),
            "tensor_sizes": list(n_bytes),
        }
        return {
            rank: self._add(rank, COLLECTIVE, name, times[rank], data_deps[rank], True, dict(attributes))
            for rank in members
        }

    def to_json(self) -> list[list[dict[str, Any]]]:
        """Return the nodes of each rank as `traces.chakra_files` reads them, with times in microseconds.

        A computation begins and ends at a rounded sum of the computations before it, so that rounding does
        not accumulate: all computations of a rank together are right to a microsecond.
        """
        return [list(map(_node_json, nodes, _microseconds(nodes))) for nodes in self.ranks]


def _microseconds(nodes: Iterable[Node]) -> Iterable[int]:
    """Yield the duration of each node in whole microseconds."""
    computed_ps = 0
    for node in nodes:
        before = computed_ps if node.kind == COMPUTATION else 0
        yield round((before + node.duration_ps) / MICROSECOND) - round(before / MICROSECOND)
        if node.kind == COMPUTATION:
            computed_ps += node.duration_ps


def _node_json(node: Node, duration_micros: int) -> dict[str, Any]:
    """Return a node as `traces.chakra_files` reads it."""
    return {
        "id": node.number,
        "type": node.kind,
        "name": node.name,
        "start_time_micros": round(node.start_ps / MICROSECOND),
        "duration_micros": duration_micros,
        "data_deps": node.data_deps,
        "ctrl_deps": node.ctrl_deps,
        "attributes": {**node.attributes, "start_ps": node.start_ps, "duration_ps": node.duration_ps},
    }


def interpreter(site: Site | None = None) -> str:
    """Return the Python that has the schema, at a site or the configured one; build it if needed."""
    return build_tool(ENVIRONMENT, site or load_site(load_config(load_merged_config()).site))


def write(
    graph: Graph, folder: Path, name: str, facts: dict[str, Attribute], python: str | None = None
) -> list[Path]:
    """Write NAME.RANK.et for each rank and NAME.comm_groups.json, and return these files.

    Args:
        graph: The nodes.
        folder: Where to write; files that another call wrote there under this name are removed.
        name: First part of the files' names.
        facts: Metadata of every file.
        python: The interpreter that has the schema; default: that of the configured site.
    """
    files = [folder / f"{name}.{rank}.et" for rank in range(len(graph.ranks))]
    groups = folder / f"{name}.{GROUPS}"
    scripts = str(Path(__file__).resolve().parents[1])
    with system_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}.") as unfinished:
            job = {"stem": str(Path(unfinished).resolve() / name), "facts": facts, "ranks": graph.to_json()}
            process = subprocess.run(
                [python or interpreter(), "-m", "traces.chakra_files"],
                input=json.dumps(job),
                env=os.environ | {"PYTHONPATH": scripts},
                text=True,
                check=False,
            )
            if process.returncode:
                problem = f"writing the trace ended with status {process.returncode}"
                raise InputError(
                    "command-failed",
                    problem,
                    file=folder,
                    got=process.returncode,
                    hint="see its output above",
                )
            for file in folder.glob(f"{name}.*.et"):
                if file.name.removeprefix(f"{name}.").removesuffix(".et").isdecimal():
                    file.unlink()
            for file in files:
                (Path(unfinished) / file.name).replace(file)
        write_json(groups, {str(number): list(ranks) for ranks, number in graph.groups.items()})
    return [*files, groups]
