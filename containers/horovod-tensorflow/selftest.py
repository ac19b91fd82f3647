"""One of two ranks that import Horovod for TensorFlow and add up a vector on loopback.

environments.two_ranks starts two of these programs.
"""

import json
import os
import time
from pathlib import Path

RANK, SIZE = os.environ["RINGSIDE_RANK"], os.environ["RINGSIDE_SIZE"]
MEETING = Path(os.environ["RINGSIDE_MEETING"])


def start_rendezvous() -> None:
    """Start Horovod's rendezvous server in this process, as horovodrun would.

    Leave its port in the meeting folder.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(0)
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"localhost:{SIZE}"), int(SIZE)))
    partial = MEETING / "port.partial"
    partial.write_text(str(port))
    partial.rename(MEETING / "port")


def rendezvous_port() -> str:
    """Return the port that rank 0 left; the self-test's time limit ends a wait for nothing."""
    while not (MEETING / "port").is_file():
        time.sleep(0.05)
    return (MEETING / "port").read_text()


def main() -> None:
    """Add up the ranks' vectors and write the result."""
    if RANK == "0":
        start_rendezvous()
    os.environ |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": rendezvous_port(),
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_RANK": RANK,
        "HOROVOD_SIZE": SIZE,
        "HOROVOD_LOCAL_RANK": RANK,
        "HOROVOD_LOCAL_SIZE": SIZE,
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
    }
    import horovod
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras
    import tensorflow as tf

    hvd.init()
    if hvd.mpi_built():
        raise SystemExit("Horovod was built with MPI; it must not be")
    if tf.test.is_built_with_cuda() and not hvd.nccl_built():
        raise SystemExit(
            "Horovod was built without NCCL; accelerators would exchange gradients through the host"
        )
    expected = int(SIZE) * (int(SIZE) + 1) / 2
    vector = hvd.allreduce(tf.fill([1000], int(RANK) + 1.0), op=hvd.Sum).numpy()
    if not bool((vector == expected).all()):
        raise SystemExit(f"allreduce gave {float(vector[0])}, expected {expected}")
    result = {
        "framework": f"tensorflow {tf.__version__}",
        "horovod": horovod.__version__,
        "all_reduce": float(vector[0]),
    }
    (MEETING / f"rank{RANK}.json").write_text(json.dumps(result))
    hvd.shutdown()


if __name__ == "__main__":
    main()
