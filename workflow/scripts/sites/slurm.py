"""Query Slurm through its clients and parse the answers. `sites.slurm_findings` judges them."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import InputError
from common.notes import Note
from common.shell import INACCESSIBLE_STATUS, Unanswered, capture, inaccessible_path_note

CLIENT_TIMEOUT_S = 20  # time limit for a Slurm client to answer
_NO_OUTPUT = "0:53"  # ExitCode of a job if its node could not open the files of its output
# States in sinfo of nodes that jobs can get, now or later. * is not responding, $ in maintenance (sinfo(1)).
_USABLE_STATE = re.compile(
    r"(?!(?:down|drained|draining|fail|failing|error|maint|unknown|inval|future|perfctrs)\b)[a-z_]+[^*$]*"
)


@dataclass(frozen=True)
class Node:
    """A node of a partition.

    Attributes:
        state: State in sinfo, such as idle, mixed- or down*.
        processors: Number of CPUs as Slurm counts them.
        memory_mb: Memory, MB.
        reason: Why an administrator or Slurm took it down.
        gres: Generic resources, without their sockets.
        features: Features, sorted.
        threads_per_core: Hardware threads of a core.
    """

    name: str
    state: str
    processors: int
    memory_mb: int
    reason: str
    gres: str = ""
    features: tuple[str, ...] = ()
    threads_per_core: int = 1

    @property
    def is_usable(self) -> bool:
        """Whether jobs can get the node, now or later."""
        return _USABLE_STATE.fullmatch(self.state) is not None

    @property
    def is_idle(self) -> bool:
        """Whether a job would get the node at once."""
        return self.state == "idle"


def run_client(*command: str, timeout_s: float = CLIENT_TIMEOUT_S) -> str:
    """Return the output of a Slurm client.

    Raises:
        Unanswered: If it is not on this machine, fails or does not answer.
    """
    try:
        result = capture(command, timeout=timeout_s, env=client_environment())
    except FileNotFoundError:
        raise Unanswered(f"{command[0]}: is not on this machine") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{command[0]}: no answer within {timeout_s:g} s") from None
    if result.returncode:
        raise Unanswered(last_line(result.stderr) or f"{command[0]}: status {result.returncode}")
    return result.stdout


def inaccessible_folder_reason(job: str) -> Note | None:
    """Return which node cannot access the folder of a batch job's output, or None."""
    try:
        answer = run_client("scontrol", "show", "job", job, "--oneliner")
    except Unanswered:
        return None
    job_fields = parse_fields(answer)
    codes = (f"{INACCESSIBLE_STATUS}:0", _NO_OUTPUT)
    if job_fields.get("JobState") != "FAILED" or job_fields.get("ExitCode") not in codes:
        return None
    return inaccessible_path_note(job_fields.get("BatchHost", "?"), job_fields.get("WorkDir", "the checkout"))


def client_environment() -> dict[str, str]:
    """Return the caller's environment without variables that change the clients' output."""
    return {name: value for name, value in os.environ.items() if name != "SLURM_TIME_FORMAT"}


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def parse_configuration(text: str) -> dict[str, str]:
    """Parse `scontrol show config`: name -> value, "" for (null)."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): "" if value.strip() == "(null)" else value.strip() for name, value in pairs}


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """Parse `scontrol show partition --oneliner`: name -> its fields."""
    rows = map(parse_fields, text.splitlines())
    return {row["PartitionName"]: row for row in rows if "PartitionName" in row}


def choose_partition(
    partitions: Mapping[str, Mapping[str, str]], requested: str, file: str, key: str = ""
) -> Mapping[str, str]:
    """Return the fields of a partition.

    Args:
        partitions: Fields of all partitions by name.
        requested: Name, or names joined by commas, of which the first counts; "" for Slurm's default.
        file: File or option with the request, for messages.
        key: Key of the file with the request, for messages.

    Raises:
        InputError: If there is no such partition, or it is not up.
    """
    source: dict[str, Any] = {"file": file, "key": key, "expected": list(partitions) or "a partition"}
    names = (
        requested.split(",")
        if requested
        else [n for n, row in partitions.items() if row.get("Default") == "YES"]
    )
    if not names:
        raise InputError("missing-key", "is absent, and Slurm has no default", **source)
    for name in names:
        if name not in partitions:
            raise InputError("unknown-name", f"'{name}' is unknown to Slurm", got=name, **source)
    row = partitions[names[0]]
    if (state := row.get("State", "UP")) != "UP":
        hint = "wait, or name another"
        raise InputError("partition-down", f"'{names[0]}' is {state}", got=state, hint=hint, **source)
    return row


def parse_fields(line: str) -> dict[str, str]:
    """Parse a line of `scontrol show ... --oneliner`; a value with spaces is cut after its first word."""
    return dict(re.findall(r"(\S+?)=(\S*)", line))


def parse_nodes(text: str) -> list[Node]:
    """Parse `sinfo --Node --noheader --format=NODE_FORMAT` of one partition."""
    rows = [line.split("|", 7) for line in text.splitlines() if line.count("|") >= 7]
    return [
        Node(
            name,
            state,
            int(cpus),
            int(memory),
            reason,
            re.sub(r"\([^)]*\)", "", _without_null(gres)),  # without its sockets, such as (S:0-1)
            tuple(sorted(set(filter(None, _without_null(features).split(","))))),
            int(threads),
        )
        for name, state, cpus, memory, threads, gres, features, reason in rows
    ]


NODE_FORMAT = "%N|%T|%c|%m|%Z|%G|%f|%E"
NODES_COMMAND = ("sinfo", "--Node", "--noheader", f"--format={NODE_FORMAT}")


def _without_null(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text


def parse_gpus(gres: str) -> tuple[int, tuple[str, ...]]:
    """Return number and types of the GPUs among a node's generic resources (gpu:a100:4,nvme:1)."""
    count, types = 0, []
    for entry in gres.split(","):
        name, *rest = entry.strip().removeprefix("gres/").split(":")
        if name == "gpu":
            count += int(rest[-1]) if rest and rest[-1].isdecimal() else 1
            types += [kind for kind in rest if not kind.isdecimal() and kind != "no_consume"]
    return count, tuple(dict.fromkeys(types))


def parse_time_s(text: str) -> float | None:
    """Parse a time of Slurm (1-02:00:00, 30:00, 120 sec) into s, None for no limit.

    Without days and with one or two numbers, the first of them is minutes (sbatch(1), --time).
    """
    if text in ("", "UNLIMITED", "INFINITE", "NONE"):
        return None
    if words := re.fullmatch(r"(\d+) ?(sec|min|hours?|days?)", text):
        return float(words[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[words[2][0]]
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not dash and len(parts) < 3:
        parts = [0, *parts]
    hours, minutes, rest = [*parts, 0, 0][:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest)


def parse_number(text: str) -> int | None:
    """Parse a number of scontrol (sizes in MB), None for no limit."""
    return int(text) if text.isdecimal() and int(text) else None


def has_accounting(config: Mapping[str, str]) -> bool:
    """Return whether the cluster keeps accounts of jobs, so that sacct answers."""
    return config.get("AccountingStorageType", "").removeprefix("accounting_storage/") not in ("", "none")


def rations_memory(config: Mapping[str, str]) -> bool:
    """Return whether a job gets only the memory that it requests."""
    return "MEMORY" in config.get("SelectTypeParameters", "").upper()


def user_accounts(user: str) -> list[str]:
    """Return the accounts that `user` may charge, from slurmdbd."""
    query = ("show", "associations", f"user={user}", "format=account")
    return sorted(set(run_client("sacctmgr", "--noheader", "--parsable2", *query).split()))


def default_account(user: str) -> str | None:
    """Return the default account of `user` from slurmdbd, or None."""
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=defaultaccount"]
    return last_line(run_client(*command)) or None


def parse_mpi_types(text: str) -> list[str]:
    """Parse `srun --mpi=list` into the types of MPI that srun supports."""
    words = [line.strip().removeprefix("srun: ") for line in text.splitlines()]
    return [word for word in words if re.fullmatch(r"[a-z0-9_]+", word)]


def join_hosts(names: Sequence[str]) -> str:
    """Join the first four names for a message, with the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
