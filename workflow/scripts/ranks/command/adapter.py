"""Run a user's command on each node, or in place of each rank, and copy its output.

The command trains and times itself. The worker around it measures what it measures in every run: hosts,
devices, CPU time of other processes, pauses, memory and power. After the run, the supervisor reads the
command's log (`runs.own_commands`).
"""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ranks.command.placeholders import Value, fill
from ranks.worker.context import Context
from ranks.worker.devices import rank_accelerators
from ranks.worker.epoch_timer import EpochTimer
from ranks.worker.group import free_port
from ranks.worker.node import accelerator
from ranks.worker.trainer import TrainingProgram

GUARD = "guard.py"  # program beside this file
OUTPUT = "output"  # folder in the attempt's folder for everything that the command writes
PRINTED = "printed-{}.txt"  # file in it with what a worker's command has printed
MAX_LINE_BYTES = 1 << 16  # copied at once
UNKNOWN = "unknown"  # transport of the gradients
UNSEEN_STATUS = 79  # exit status by which launchers recognize a node without access to a path (common.shell)


class CommandProgram(TrainingProgram):
    """Training by a user's command, which this rank starts."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        spec, group = context.spec, context.group
        self.transport = "nccl" if spec["device"] == "cuda" else UNKNOWN
        if spec["device"] == "cuda":
            name, *_ = rank_accelerators(context)
            self.device = accelerator(int(name) if name.isdecimal() else 0)
        self._command: dict[str, Any] = context.rank_input["command"]
        self._folder = context.folder / OUTPUT
        self._folder.mkdir(exist_ok=True)
        address, port = group.broadcast(
            [group.address, free_port(group.address)] if context.rank == 0 else None
        )
        hosts = list(dict.fromkeys(context.hosts))
        per_node = spec["ranks_per_node"]
        self._values: dict[str, Value] = {
            **self._command["values"],
            "master_addr": address,
            "master_port": port,
            "node_rank": context.rank // per_node,
            "hosts": ",".join(hosts),
            "output": str(self._folder),
        }
        if self._command["once_per"] == "rank":
            self._values |= {"rank": context.rank, "local_rank": context.local_rank}

    def train(self, timer: EpochTimer) -> None:  # noqa: ARG002 (the supervisor times)
        """Run the command to its end, and end this process if it fails."""
        if status := self._run(fill(self._command["command"], self._values)):
            # There is no traceback, so that the last error in the log is the command's. UNSEEN_STATUS would
            # mean a node without access to the checkout, and the run would be repeated instead of failing.
            os._exit(1 if status == UNSEEN_STATUS else status)

    def _run(self, command: str) -> int:
        """Run a command line in the checkout, with its output in the log and in a file; return its status."""
        guard = Path(self.context.rank_input["adapter"]) / GUARD
        guarded = [sys.executable, str(guard), str(os.getpid()), "bash", "-c", command]
        process = subprocess.Popen(
            guarded,
            cwd=self._command["folder"],
            env=self._variables(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with open(self._folder / PRINTED.format(self.context.rank), "wb") as printed:
            # A progress bar can print for days without ending a line.
            while line := process.stdout.readline(MAX_LINE_BYTES) if process.stdout else b"":
                printed.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
        return process.wait()

    def _variables(self, rank_variables: Mapping[str, str]) -> dict[str, str]:
        """Return this rank's variables with those that the command needs or its file sets.

        Each process of the command gets the threads of one device, unless the file says otherwise.
        """
        context, values = self.context, self._values
        variables = dict(rank_variables)
        # Ringside's modules would hide the command's modules of the same names.
        scripts = str(Path(context.rank_input["adapter"]).parents[1])
        folders = [
            folder for folder in variables.pop("PYTHONPATH", "").split(os.pathsep) if folder != scripts
        ]
        if any(folders):
            variables["PYTHONPATH"] = os.pathsep.join(folders)
        threads = str(max(1, context.cores // context.spec["replicas_per_rank"]))
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        if bin_folder := self._command["bin"]:
            variables["PATH"] = os.pathsep.join([bin_folder, *filter(None, [variables.get("PATH")])])
        if self._command["once_per"] == "rank":
            variables |= {
                "RANK": str(values["rank"]),
                "LOCAL_RANK": str(values["local_rank"]),
                "WORLD_SIZE": str(context.ranks),
                "LOCAL_WORLD_SIZE": str(context.spec["ranks_per_node"]),
                "MASTER_ADDR": str(values["master_addr"]),
                "MASTER_PORT": str(values["master_port"]),
            }
        further = self._command["variables"].items()
        return variables | {name: fill(text, values, quoted=False) for name, text in further}

    def library_version(self) -> str:
        """Return names and versions of the libraries that train.

        It is empty, since the supervisor records what the command's environment contains.
        """
        return ""

    def memory_peak_bytes(self) -> int:
        """Return the peak memory of this rank. It is the peak of the largest process of the command."""
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def trainer(context: Context) -> TrainingProgram:
    """Return the training by the run's command."""
    return CommandProgram(context)
