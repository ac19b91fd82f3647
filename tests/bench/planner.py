"""How fast strategies are simulated: `make bench-strategies`. Starts itself again by the Python that has numba.

Full simulations of data parallelism on 8 devices, as the artifact of Jia et al. (2019) was timed: 0.24, 0.9 and 1.8 ms for AlexNet, NMT and
ResNet-101. Then proposals a second of Metropolis-Hastings, where all of each proposal is simulated, and where only its change is, in turns.
"""

import importlib.util
import os
import statistics
import sys
import time

from planned_models import posed
from strategies import engine, search, starts
from strategies.problem import Posed
from strategies.topology import Level

ARTIFACT_MS = {"alexnet": 0.24, "rnn-translation": 0.9, "resnet-101": 1.8}
ROUNDS = 5


def on_devices(name: str, devices: int) -> Posed:
    """A model's problem on so many devices, four to a node."""
    return posed(name, 8 * devices, Level(4, 4e9, 5e-6), Level(devices // 4, 1e9, 1e-5))


def full(name: str) -> None:
    """The time of a full simulation on 8 devices."""
    made = on_devices(name, 8)
    state = made.state(starts.data_parallel(made))
    engine.start(made.arrays, state)
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(100):
            engine.start(made.arrays, state)
        times.append(10 * (time.perf_counter() - began))
    took = statistics.median(times)
    print(
        f"{name}, 8 devices: {took:.3f} ms a full simulation, {ARTIFACT_MS[name] / took:.1f} times the artifact's rate"
    )


def delta(name: str, devices: int, proposals: int) -> None:
    """Proposals a second, both ways."""
    made = on_devices(name, devices)
    begin = starts.data_parallel(made)
    rates: dict[bool, list[float]] = {True: [], False: []}
    for round_ in range(ROUNDS + 1):
        for whole, seen in rates.items():
            _, told = search.run(made, begin, search.METROPOLIS, proposals, 1, whole)
            if round_:
                seen.append(proposals / told["wall_s"])
    whole, change = (statistics.median(rates[way]) for way in (True, False))
    print(
        f"{name}, {devices} devices: {whole:,.0f} proposals a second with all simulated, {change:,.0f} with the change alone: {change / whole:.1f} times;"
        f" {told['accepted']} of {proposals} taken"
    )


def main() -> None:
    """All of it."""
    for name in ARTIFACT_MS:
        full(name)
    for name, devices, proposals in (
        ("alexnet", 8, 2000),
        ("rnn-translation", 8, 2000),
        ("resnet-101", 8, 1000),
        ("resnet-101", 64, 200),
    ):
        delta(name, devices, proposals)
    if "--large" in sys.argv:
        delta("resnet-101", 1024, 20)


if __name__ == "__main__":
    if importlib.util.find_spec("numba") is None:
        from strategies.find import interpreter

        python = interpreter()
        os.execv(python, [python, *sys.argv])  # noqa: S606
    main()
