"""One of two ranks that import PyTorch and add up a vector on loopback (see environments.two_ranks)."""

import json
import os
from pathlib import Path


def main() -> None:
    """Add up the ranks' vectors and write the result."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RINGSIDE_RANK"]), int(os.environ["RINGSIDE_SIZE"])
    meeting = Path(os.environ["RINGSIDE_MEETING"])
    dist.init_process_group("gloo", init_method=f"file://{meeting}/rendezvous", rank=rank, world_size=size)
    vector = torch.full((1000,), rank + 1.0)
    dist.all_reduce(vector)
    expected = size * (size + 1) / 2
    if not torch.all(vector == expected):
        raise SystemExit(f"all_reduce gave {vector[0].item()}, expected {expected}")
    dist.destroy_process_group()
    result = {"framework": f"torch {torch.__version__}", "all_reduce": vector[0].item()}
    (meeting / f"rank{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
