"""Start Horovod without horovodrun, ssh or MPI.

Rank 0 runs Horovod's rendezvous server, and every rank gets its place in environment variables.
"""

import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from ranks.worker.collectives import Collectives
from ranks.worker.context import Context, by_first_interface, interfaces
from ranks.worker.operators import Event, unix_ahead

DEFAULT_FUSION_BYTES, DEFAULT_CYCLE_MS = 128 * 2**20, 1.0
PROCESS = "Horovod"  # the process in a trace to which its events belong

_servers: list[Any] = []


def placement_variables(context: Context) -> dict[str, str]:
    """Return the variables that `hvd.init()` reads with the Gloo controller; collective over all ranks."""
    port = context.group.broadcast(_serve(context) if context.rank == 0 else None)
    spec = context.spec
    full = spec.get("levels", {}).get("trace") == "full"
    return {
        # The timeline is written between start and stop of Timeline.
        **({"HOROVOD_TIMELINE": "DYNAMIC"} if full else {}),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": context.group.broadcast(context.group.address),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": interfaces(spec)[0],  # Horovod takes one only.
        "HOROVOD_HOSTNAME": context.hosts[context.rank // spec["ranks_per_node"]],
        "HOROVOD_RANK": str(context.rank),
        "HOROVOD_SIZE": str(context.ranks),
        "HOROVOD_LOCAL_RANK": str(context.local_rank),
        "HOROVOD_LOCAL_SIZE": str(spec["ranks_per_node"]),
        "HOROVOD_CROSS_RANK": str(context.rank // spec["ranks_per_node"]),
        "HOROVOD_CROSS_SIZE": str(spec["nodes"]),
    }


class Timeline:
    """Horovod's timeline of tensors, which rank 0 writes, as a Profiler (ranks/worker/operators.py)."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self._file = Path(tempfile.mkdtemp()) / "timeline.json"

    def start(self) -> None:
        """Start profiling."""
        self._hvd.start_timeline(str(self._file))

    def stop(self) -> None:
        """Stop profiling quickly, since an epoch is being timed."""
        self._hvd.stop_timeline()

    def events(self) -> list[Event]:
        """Return the events, in microseconds of time.monotonic, after the profiler has stopped.

        Every tensor is a thread. Separate begin and end entries of the file become one event.
        """
        text = self._file.read_text() if self._file.exists() else ""
        if not text:  # Only rank 0 has a timeline, and only if it reduced a tensor.
            return []
        first, *entries = json.loads(text)
        began_us = first["args"]["start_time_since_epoch_in_micros"] - 1e6 * unix_ahead()
        converted: list[Event] = []
        under_way: dict[int, list[Event]] = defaultdict(list)
        for event in entries:
            place = {"pid": PROCESS, "tid": event["pid"]}
            match event["ph"]:
                case "M" if event["name"] == "process_name":
                    converted.append({"ph": "M", "name": "thread_name", **place, "args": event["args"]})
                case "X":
                    converted.append({**event, **place, "ts": began_us + event["ts"]})
                case "B":
                    under_way[event["pid"]].append(
                        {**event, **place, "ph": "X", "ts": began_us + event["ts"]}
                    )
                case "E" if open_ := under_way[event["pid"]]:
                    begun = open_.pop()
                    converted.append({**begun, "dur": began_us + event["ts"] - begun["ts"]})
        return converted


def transport(context: Context, hvd: Any) -> str:
    """Return the transport of gradients: NCCL between accelerators if this Horovod has it, else Gloo."""
    if context.spec["device"] == "cuda" and hvd.nccl_built():
        return "nccl"
    return by_first_interface(context.spec, "gloo")


def make_collectives(base: Any, context: Context, hvd: Any) -> Collectives:
    """Return collectives by Horovod.

    Args:
        base: PyTorchCollectives or TensorFlowCollectives.
        context: The context of the rank.
        hvd: Horovod's module for this library; with PyTorch it sums in place.
    """
    all_reduce = getattr(hvd, "allreduce_", hvd.allreduce)

    class HorovodCollectives(base):
        def __init__(self) -> None:
            super().__init__(context)
            hvd.init()
            self.transport = transport(context, hvd)

        def all_reduce(self, summand: Any) -> Any:
            return all_reduce(summand, op=hvd.Sum, name=f"benchmark.{summand.shape[0]}")

        def all_gather(self, share: Any) -> Any:
            return hvd.allgather(share, name=f"benchmark.{share.shape[0]}")

        def reduce_scatter(self, summand: Any) -> Any:
            return hvd.reducescatter(summand, op=hvd.Sum, name=f"benchmark.{summand.shape[0]}")

        def all_to_all(self, shares: Any) -> Any:
            return hvd.alltoall(shares, name=f"benchmark.{shares.shape[0]}")

    collectives: Collectives = HorovodCollectives()
    return collectives


def fusion_settings() -> dict[str, str]:
    """Return how Horovod fuses gradients into messages, from its environment variables or its defaults."""
    threshold = int(os.environ.get("HOROVOD_FUSION_THRESHOLD", DEFAULT_FUSION_BYTES))
    cycle_ms = float(os.environ.get("HOROVOD_CYCLE_TIME", DEFAULT_CYCLE_MS))
    return {"gradient messages": f"fused to up to {threshold / 2**20:g} MiB every {cycle_ms:g} ms"}


def _serve(context: Context) -> int:
    """Start the rendezvous server in this process, which keeps it alive, and return its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    hosts = ",".join(f"{host}:{context.spec['ranks_per_node']}" for host in context.hosts)
    server = RendezvousServer(0)
    _servers.append(server)
    port = server.start()
    server.init(get_host_assignments(parse_hosts(hosts), context.ranks))
    return port
