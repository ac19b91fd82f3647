"""Read the output of collective benchmarks: nccl-tests (and rccl-tests), and the OSU micro-benchmarks.

nccl-tests: a header with one line per rank, then one row per size. A row has bytes, elements, type, reduction
and root (if any), and twice, out of place and in place: time in us, algorithm and bus bandwidth in GB/s, and
errors::

    #  Rank  0 Group  0 Pid     17 on node-a device  0 [0x0f] NVIDIA A100-SXM4-80GB
         1048576        262144     float     sum      -1    44.21   23.72   41.51      0    45.10 ...

OSU: one row per size, with the mean latency in us, and no numbers of ranks and nodes::

    # OSU MPI-CUDA Allreduce Latency Test v7.3
    # Size       Avg Latency(us)
    1048576               230.90
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.errors import InputError
from common.files import display_path
from importers.measurement import CollectiveTest
from models.collectives import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, COLLECTIVES, POINT_TO_POINT, REDUCE_SCATTER
from training_logs.formats import text_lines
from training_logs.log import LogError, natural_number, plain_lines, positive
from training_logs.rows import read_rows

NCCL_NAMES = {
    "all_reduce": ALL_REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "alltoall": ALL_TO_ALL,
    "sendrecv": POINT_TO_POINT,
}
OSU_NAMES = {
    "Allreduce": ALL_REDUCE,
    "Allgather": ALL_GATHER,
    "Reduce_scatter": REDUCE_SCATTER,
    "All-to-All Personalized Exchange": ALL_TO_ALL,
}
SHARES = (ALL_GATHER, ALL_TO_ALL)  # For these collectives, OSU prints the size of one rank's share.
MIN_BYTES = 4
_PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|scatter)_perf"
)
_RANK = re.compile(r"^#\s*Rank\s+\d+\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_ROW = re.compile(r"^\s*(\d{1,18})\s+\d{1,18}\s+[a-z]\w*\s+(\S.*)")
_OSU = re.compile(r"^#\s*OSU MPI(?:-\w+)?\s*(.*?)\s*Latency Test")
_OSU_ROW = re.compile(r"^(\d{1,18})\s+([\d.]+)(?:\s+[\d.]+)*\s*$")
TABLE_COLUMNS = ("collective", "bytes", "seconds", "nodes", "devices")
OSU_MARK = "# OSU MPI"


def recognize(path: Path) -> str | None:
    """Return nccl-tests or osu, or None for another file."""
    for number, line in enumerate(text_lines(path)):
        if "nThread" in line and "minBytes" in line:
            return "nccl-tests"
        if OSU_MARK in line:
            return "osu"
        if number > 2000:
            return None
    return None


def read_nccl_tests(path: Path) -> list[CollectiveTest]:
    """Return the tables in the output of nccl-tests; several of one collective are rounds.

    The collective is named by the program's name in the text, or else in the file's name.

    Raises:
        InputError: If the file has no rows, or its collective is unknown.
    """
    tests: list[CollectiveTest] = []
    program = next((name for name in NCCL_NAMES if name in path.name), "")
    hosts: list[str] = []
    device, times = "", list[tuple[int, float]]()
    for line in [*(line for _, _, line in plain_lines(text_lines(path))), "# nThread"]:
        match = _PROGRAM.search(line)
        if times and (match or "nThread" in line):
            place, n_nodes = display_path(path), len(set(hosts)) or None
            name = _nccl_collective(program, path)
            tests.append(
                CollectiveTest(place, name, len(hosts) or None, n_nodes, device, "nccl", tuple(times))
            )
            times = []
        if match:
            program = match[1]
        if "nThread" in line:
            hosts, device = [], ""
        elif match := _RANK.match(line):
            hosts.append(match[1])
            device = device or match[2].strip()
        elif match := _ROW.match(line):
            times += _row_times(int(match[1]), match[2].split())
    if not tests:
        raise InputError("missing-value", "has no row of a size", file=path, expected="output of nccl-tests")
    return tests


def _row_times(size: int, fields: list[str]) -> list[tuple[int, float]]:
    """Return size and time (s), out of place and in place: each has four of the last columns of a row."""
    times_us = [_number(fields[place]) for place in (-8, -4) if len(fields) >= -place]
    return [(size, time_us * 1e-6) for time_us in times_us if time_us and size >= MIN_BYTES]


def _nccl_collective(program: str, path: Path) -> str:
    if program in NCCL_NAMES:
        return NCCL_NAMES[program]
    problem = f"measures {program}" if program else "does not name its collective"
    hint = "leave it out" if program else "name the file after it, such as all_reduce.txt"
    raise InputError(
        "unknown-collective", problem, file=path, got=program, expected=list(NCCL_NAMES), hint=hint
    )


def read_osu(path: Path) -> list[CollectiveTest]:
    """Return the tables in the output of the OSU micro-benchmarks.

    Raises:
        InputError: If it has no row of a supported collective.
    """
    tests: list[CollectiveTest] = []
    name: str | None = None
    rows: list[tuple[int, float]] = []
    lines = [line.strip() for _, _, line in plain_lines(text_lines(path))]
    for line in [*lines, OSU_MARK]:
        if OSU_MARK in line:
            if name in OSU_NAMES and rows:
                tests.append(
                    CollectiveTest(display_path(path), OSU_NAMES[name], None, None, "", "mpi", tuple(rows))
                )
            match, rows = _OSU.match(line), []
            name = match[1] if match else None
        elif (match := _OSU_ROW.match(line)) and name in OSU_NAMES:
            seconds = _number(match[2])
            if int(match[1]) >= MIN_BYTES and seconds:
                rows.append((int(match[1]), seconds * 1e-6))
    if not tests:
        expected = "a latency test of allreduce, allgather, reduce_scatter or alltoall"
        raise InputError("missing-value", "has no latency of a collective", file=path, expected=expected)
    return tests


def read_collective_table(path: Path, row_texts: Mapping[str, str]) -> list[CollectiveTest]:
    """Return the collectives in a table with TABLE_COLUMNS.

    Args:
        path: The file.
        row_texts: Rows count only if these columns, if the table has them, have these texts.

    Raises:
        InputError: If a row lacks a value, or its collective is unknown.
    """
    tests: dict[tuple[str, int, int, str], list[tuple[int, float]]] = {}
    try:
        for line, row in read_rows(text_lines(path)):
            if any(column in row and str(row[column]) != text for column, text in row_texts.items()):
                continue
            place = f"{display_path(path)}, line {line}"
            counts = [natural_number(row.get(name)) for name in ("nodes", "devices", "bytes")]
            seconds = positive(row.get("seconds"))
            text = "_".join(str(row.get("collective", "")).lower().split())
            if None in counts or seconds is None:
                expected = f"{', '.join(TABLE_COLUMNS)}, all above 0"
                raise InputError("missing-value", "lacks a value", file=place, expected=expected)
            collective = next((name for name in COLLECTIVES if text.startswith(name)), None)
            if collective is None:
                expected = f"one of {', '.join(COLLECTIVES)}"
                raise InputError("unknown-collective", f"is {text}", file=place, got=text, expected=expected)
            nodes, devices, size = map(int, counts)  # type: ignore[arg-type]
            device = " ".join(str(row.get("device", "")).split())
            if size >= MIN_BYTES:
                tests.setdefault((collective, nodes, devices, device), []).append((size, seconds))
    except LogError as error:
        raise InputError("broken-file", str(error), file=path) from None
    return [
        CollectiveTest(display_path(path), collective, devices, nodes, device, "nccl", tuple(times))
        for (collective, nodes, devices, device), times in tests.items()
    ]


def network_rows(
    tests: Iterable[CollectiveTest],
    study: str,
    framework: str,
    defaults: dict[str, int | None],
    link_bytes_s: tuple[float | None, float | None] = (None, None),
) -> list[dict[str, object]]:
    """Return rows of network.csv; several tables of one collective on the same ranks are rounds.

    Args:
        tests: The tables.
        study: Name of the study.
        framework: The framework that the rows name.
        defaults: Stated `nodes` and `devices_per_node`, for tables without these numbers.
        link_bytes_s: Stated link rate of a node, and of a device inside a node.

    Raises:
        InputError: If the numbers of nodes and ranks are unknown, or there is only one rank.
    """
    rows: list[dict[str, object]] = []
    rounds: dict[tuple[str, int, int], int] = {}
    for test in tests:
        nodes = test.nodes or defaults.get("nodes")
        per_node = defaults.get("devices_per_node")
        ranks = test.ranks or (nodes * per_node if nodes and per_node else None)
        if nodes is None or ranks is None or ranks < 2:
            problem = "has only one rank" if ranks == 1 else "does not state the numbers of nodes and devices"
            hint = "state them: --nodes N --devices-per-node N"
            raise InputError("missing-value", problem, file=test.place, hint=hint)
        place = (test.collective, nodes, ranks)
        rounds[place] = rounds.get(place, 0) + 1
        repetitions: Counter[int] = Counter()
        for size, seconds in test.times:
            repetitions[size] += 1
            total = size * ranks if test.library == "mpi" and test.collective in SHARES else size
            rows.append(
                {
                    "study": study,
                    "collective": test.collective,
                    "framework": framework,
                    "nodes": nodes,
                    "ranks": ranks,
                    "device": "cuda" if test.library == "nccl" else "site",
                    "link_bytes_s": link_bytes_s[nodes == 1],
                    "status": "ok",
                    "transport": test.library,
                    "bytes": total,
                    "round": rounds[place],
                    "repetition": repetitions[size],
                    "seconds": seconds,
                    "bus_bandwidth_bytes_s": COLLECTIVES[test.collective].sent(ranks) * total / seconds,
                }
            )
    return rows


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
