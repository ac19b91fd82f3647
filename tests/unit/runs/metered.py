"""Train or stay idle as ranks do, in a framework's environment, on a fake machine whose CPU package draws 40 W."""

import os
import threading
import time
from pathlib import Path

from ranks.worker import energy, idle
from ranks.worker.__main__ import run
from ranks.worker.process import as_rank

WATTS = 40.0


def burn(counter: Path) -> None:
    start = time.monotonic()
    partial = counter.with_name("partial")
    while True:
        partial.write_text(f"{1e6 * WATTS * (time.monotonic() - start):.0f}\n")
        os.replace(partial, counter)
        time.sleep(0.002)


def work(folder: Path) -> None:
    energy.POWERCAP, energy.POWER_SAMPLE_S, idle.IDLE_S = (
        folder / f"powercap-{os.environ['RINGSIDE_RANK']}",
        0.2,
        1.0,
    )
    package = energy.POWERCAP / "intel-rapl:0"
    package.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("max_energy_range_uj", "262143328850"), ("energy_uj", "0")):
        (package / name).write_text(f"{text}\n")
    threading.Thread(target=burn, args=[package / "energy_uj"], daemon=True).start()
    (idle.run if "idle" in folder.parts else run)(folder)


if __name__ == "__main__":
    as_rank(work)
