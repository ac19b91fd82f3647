"""What the device of fake_cuda.py holds, refuses and orders."""

from collections.abc import Callable
from typing import Any

from gpu.fake_cuda import FakeCuda, torch


def error_of(work: Callable[[], Any]) -> str | None:
    """Return the name of the exception that a call raises, None if it raises none."""
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return None


def check_mixtures() -> dict[str, Any]:
    """Mix devices and dtypes as real kernels refuse it."""
    FakeCuda(n_visible=2)
    a, b, c = torch.ones(2, 3, device="cuda"), torch.ones(3, 2), torch.ones(2, 3, device="cuda:1")
    half = torch.ones(3, 2, device="cuda", dtype=torch.bfloat16)
    return {
        "devices": [str(a.device), str(b.device), str(c.device)],
        "with the CPU": error_of(lambda: a @ b),
        "with another GPU": error_of(lambda: a + c),
        "with another dtype": error_of(lambda: a @ half),
        "to numpy": error_of(a.numpy),
        "absent device": error_of(lambda: torch.cuda.set_device(2)),
        "fits": list((a @ b.cuda()).shape),
        "read": [(a + 5).sum().item(), a.cpu().numpy().tolist(), (b * 2).sum().item()],
    }


def find_races() -> dict[str, list[str]]:
    """Write memory on one stream and read it on another one, ordered by nothing, by an event, by a synchronize."""
    device = FakeCuda(find_races=True)
    side, races = torch.cuda.Stream(), {}
    for order in ("none", "event", "synchronize"):
        memory = torch.zeros(8, device="cuda")
        device.races = []
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            memory.add_(1)
            if order == "event":
                torch.cuda.default_stream().wait_event(side.record_event())
        if order == "synchronize":
            torch.cuda.synchronize()
        memory * 2
        races[order] = device.races
    return races
