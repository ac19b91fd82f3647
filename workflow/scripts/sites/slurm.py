"""What Slurm says of itself, asked through its clients and parsed; no judgement here (sites/doctor.py judges)."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.notes import Note
from common.shell import UNSEEN_STATUS, not_seen

PATIENCE_S = 20
_NO_OUTPUT = "0:53"  # the ExitCode of a job whose files for its output could not be opened on its node
_STATE = re.compile(r"([a-z_]+)(.*)")
_LOST = ("down", "drained", "draining", "fail", "failing", "error", "maint", "unknown", "inval", "future", "perfctrs")


class Unanswered(Exception):
    """A client of Slurm failed; the message is its last line."""


@dataclass(frozen=True)
class Node:
    """One node of a partition. `state` as sinfo writes it (idle, mixed-, down*), memory in MB, `gres` as configured, without places."""

    name: str
    state: str
    processors: int
    memory_mb: int
    reason: str
    gres: str = ""
    features: tuple[str, ...] = ()
    threads_per_core: int = 1

    @property
    def usable(self) -> bool:
        """Whether jobs get the node, now or when it is free; * is not responding, $ in maintenance (sinfo(1))."""
        found = _STATE.match(self.state)
        return found is not None and found[1] not in _LOST and not set(found[2]) & set("*$")

    @property
    def idle(self) -> bool:
        """Whether a job would get it at once."""
        return self.state == "idle"


def ask(*command: str, patience_s: float = PATIENCE_S) -> str:
    """What a client of Slurm answers. Unanswered when it is not here, fails or keeps silent."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=patience_s, env=plain()
        )
    except FileNotFoundError:
        raise Unanswered(f"{command[0]}: is not on this machine") from None
    except subprocess.TimeoutExpired:
        raise Unanswered(f"{command[0]}: no answer within {patience_s:g} s") from None
    if done.returncode:
        raise Unanswered(last_line(done.stderr) or f"{command[0]}: status {done.returncode}")
    return done.stdout


def unseen_folder(job: str) -> Note | None:
    """Return that a batch job's node does not see the folder of its output, since Slurm could not write there; None where it could, or
    Slurm does not tell."""
    try:
        said = ask("scontrol", "show", "job", job, "--oneliner")
    except Unanswered:
        return None
    found = _fields(said)
    unseen = found.get("JobState") == "FAILED" and found.get("ExitCode") in (f"{UNSEEN_STATUS}:0", _NO_OUTPUT)
    return not_seen(found.get("BatchHost", "?"), found.get("WorkDir", "the checkout")) if unseen else None


def plain() -> dict[str, str]:
    """The caller's environment without what changes the clients' output."""
    return {name: value for name, value in os.environ.items() if name != "SLURM_TIME_FORMAT"}


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def configuration(text: str) -> dict[str, str]:
    """`scontrol show config`: name -> value; (null) is an empty value."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): "" if value.strip() == "(null)" else value.strip() for name, value in pairs}


def partitions(text: str) -> dict[str, dict[str, str]]:
    """`scontrol show partition --oneliner`: name -> its fields."""
    rows = map(_fields, text.splitlines())
    return {row["PartitionName"]: row for row in rows if "PartitionName" in row}


def node_fields(text: str) -> dict[str, str]:
    """`scontrol show node NAME --oneliner`: its fields, of those with spaces the first word."""
    return _fields(text)


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\S+?)=(\S*)", line))


def nodes(text: str) -> list[Node]:
    """`sinfo --Node --noheader --format=NODE_FORMAT` of one partition."""
    rows = [line.split("|", 7) for line in text.splitlines() if line.count("|") >= 7]
    return [
        Node(
            name,
            state,
            int(cpus),
            int(memory),
            reason,
            re.sub(r"\([^)]*\)", "", _there(gres)),  # the sockets that it is near: (S:0-1)
            tuple(sorted(set(_listed(features)))),
            int(threads),
        )
        for name, state, cpus, memory, threads, gres, features, reason in rows
    ]


NODE_FORMAT = "%N|%T|%c|%m|%Z|%G|%f|%E"
NODES = ("sinfo", "--Node", "--noheader", f"--format={NODE_FORMAT}")


def _there(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text


def _listed(text: str) -> list[str]:
    return [part for part in _there(text).split(",") if part]


def gpus(gres: str) -> tuple[int, tuple[str, ...]]:
    """How many GPUs are among a node's generic resources (gpu:a100:4,nvme:1), and of which types, where it says so."""
    count, types = 0, []
    for entry in gres.split(","):
        name, *rest = entry.strip().removeprefix("gres/").split(":")
        if name == "gpu":
            count += int(rest[-1]) if rest and rest[-1].isdecimal() else 1
            types += [kind for kind in rest if not kind.isdecimal() and kind != "no_consume"]
    return count, tuple(dict.fromkeys(types))


def seconds(text: str) -> float | None:
    """A time as Slurm writes it (1-02:00:00, 30:00, 120 sec); None where there is no limit.

    Of two or one numbers without days, the first is minutes (sbatch(1), --time).
    """
    if text in ("", "UNLIMITED", "INFINITE", "NONE"):
        return None
    if found := re.fullmatch(r"(\d+) ?(sec|min|hours?|days?)", text):
        return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2][0]]
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not dash and len(parts) < 3:
        parts = [0, *parts]
    hours, minutes, rest = [*parts, 0, 0][:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest)


def number(text: str) -> int | None:
    """A number of scontrol's, of sizes in MB; None where there is no limit."""
    return int(text) if text.isdecimal() and int(text) else None


def accounting(config: Mapping[str, str]) -> bool:
    """Whether the cluster keeps accounts of jobs, so that sacct answers."""
    return config.get("AccountingStorageType", "").removeprefix("accounting_storage/") not in ("", "none")


def accounts(user: str) -> list[str]:
    """The accounts that `user` may charge, by slurmdbd."""
    asked = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", "format=account"]
    return sorted(set(ask(*asked).split()))


def default_account(user: str) -> str | None:
    """The account that jobs of `user` are charged to which name none, by slurmdbd."""
    asked = ["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=defaultaccount"]
    return last_line(ask(*asked)) or None


def mpi_types(text: str) -> list[str]:
    """What `srun --mpi=list` lists: the types of MPI that it starts."""
    words = [line.strip().removeprefix("srun: ") for line in text.splitlines()]
    return [word for word in words if re.fullmatch(r"[a-z0-9_]+", word)]


def hosts(names: Sequence[str]) -> str:
    """Some names for a person: at most four."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
