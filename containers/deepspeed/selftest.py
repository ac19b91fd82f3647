"""One of two ranks that import DeepSpeed and add up a vector on loopback.

environments.two_ranks starts two of these programs.
"""

import json
import os
from pathlib import Path


def main() -> None:
    """Add up the ranks' vectors and write the result."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch
    import torch.distributed

    rank, size = int(os.environ["RINGSIDE_RANK"]), int(os.environ["RINGSIDE_SIZE"])
    meeting = Path(os.environ["RINGSIDE_MEETING"])
    deepspeed.ops.__compatible_ops__ = {}  # it would compile one that sums in shared memory
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}/rendezvous", rank=rank, world_size=size
    )
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    vector = torch.full((1000,), rank + 1.0)
    deepspeed.comm.all_reduce(vector)
    expected = size * (size + 1) / 2
    if not torch.all(vector == expected):
        raise SystemExit(f"all_reduce gave {vector[0].item()}, expected {expected}")
    torch.distributed.destroy_process_group()
    result = {"framework": f"deepspeed {deepspeed.__version__}", "all_reduce": vector[0].item()}
    (meeting / f"rank{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
