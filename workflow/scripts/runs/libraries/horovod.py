"""Horovod without horovodrun, ssh or MPI: rank 0 serves Horovod's own rendezvous, every rank is told its place."""

from typing import Any

from runs.worker.context import Context

_servers: list[Any] = []


def placed(context: Context) -> dict[str, str]:
    """Environment variables that `hvd.init()` reads with the Gloo controller; collective over the run's ranks."""
    port = context.group.broadcast(_serve(context) if context.rank == 0 else None)
    spec = context.spec
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": context.group.broadcast(context.group.address),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": spec["interface"],
        "HOROVOD_HOSTNAME": context.hosts[context.rank // spec["ranks_per_node"]],
        "HOROVOD_RANK": str(context.rank),
        "HOROVOD_SIZE": str(context.ranks),
        "HOROVOD_LOCAL_RANK": str(context.local_rank),
        "HOROVOD_LOCAL_SIZE": str(spec["ranks_per_node"]),
        "HOROVOD_CROSS_RANK": str(context.rank // spec["ranks_per_node"]),
        "HOROVOD_CROSS_SIZE": str(spec["nodes"]),
    }


def transport(context: Context, hvd: Any) -> str:
    """What carries the gradients: NCCL those of accelerators, where this Horovod was built with it."""
    return "nccl" if context.spec["device"] == "cuda" and hvd.nccl_built() else "gloo"


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
