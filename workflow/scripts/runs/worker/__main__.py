"""One rank of one run: `python -m runs.worker ATTEMPT_FOLDER`, started by a launcher, in the framework's environment."""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from runs.worker.context import Context, from_environment
from runs.worker.meter import Meter
from runs.worker.trainer import Trainer

PR_SET_PDEATHSIG = 1


def bind_to_launcher() -> None:
    """Take the launcher's cores; end when the launcher does (prctl(2)), and by an alarm where nobody can reach this node.

    The alarm's default action ends the process from within the kernel, whatever a library hangs in.
    """
    signal.alarm(int(os.environ["RINGSIDE_ALARM_S"]))
    if cores := os.environ.get("RINGSIDE_CORES"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def nccl_variables(context: Context) -> dict[str, str]:
    """NCCL on the site's interface, saying in a file of the attempt which transport it took (runs/transport.py)."""
    if context.spec["device"] != "cuda":
        return {}
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": f"{context.folder}/nccl.%h.%p.log"}
    return {"NCCL_SOCKET_IFNAME": context.spec["interface"], **log}


def load_adapter(folder: Path) -> ModuleType:
    """The adapter of a framework: the adapter.py of its folder."""
    adapter = ModuleType("adapter")
    source = (folder / "adapter.py").read_text()
    exec(compile(source, str(folder / "adapter.py"), "exec"), adapter.__dict__)  # noqa: S102 (our own file)
    return adapter


def versions(modules: list[str]) -> str:
    """Names and versions of the distributions that the framework's modules come from."""
    providers = importlib.metadata.packages_distributions()
    found = {providers.get(name.split(".")[0], [name])[0] for name in modules}
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(found))


def run(folder: Path) -> Trainer:
    """Train, and return the trainer; rank 0 leaves result.json in the attempt's folder, written last."""
    context = from_environment(folder)
    adapter = load_adapter(Path(context.job["adapter"]))
    os.environ.update(nccl_variables(context))
    os.environ.update(adapter.environment(context))
    started = time.monotonic()
    for module in context.job["modules"]:
        importlib.import_module(module)
    import_s = time.monotonic() - started
    trainer = adapter.trainer(context)
    meter = Meter(context)
    trainer.train(meter)
    foreign_cpu_share, steal_share = meter.cpu_shares()
    mine: dict[str, Any] = {
        "host": os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        "device": trainer.device,
        "import_s": import_s,
        "first_step_s": meter.first_step_s,
        "memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "device_memory_peak_bytes": trainer.device_memory_peak_bytes(),
    }
    ranks = context.group.all_gather(mine)
    if context.rank == 0:
        result = {
            "ready_at": meter.ready_at,
            "ranks": ranks,
            "transport": trainer.transport,
            "foreign_cpu_share": foreign_cpu_share,
            "steal_share": steal_share,
            "python_version": platform.python_version(),
            "library_version": versions(context.job["modules"]),
        }
        partial = folder / "result.json.partial"
        partial.write_text(json.dumps(result, indent=2) + "\n")
        os.replace(partial, folder / "result.json")
    context.group.barrier()
    return trainer


if __name__ == "__main__":
    bind_to_launcher()
    with tempfile.TemporaryDirectory(prefix="ringside-", dir=os.environ.get("RINGSIDE_SCRATCH")) as temporary:
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        run(Path(sys.argv[1]))
    # Libraries' own ends can take seconds, or hang once a peer is gone; everything is on disk by now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
