"""Define the style of the phases of a training step: neighbours also differ in lightness or hatching."""

import hashlib
from collections.abc import Iterable
from typing import Any

from matplotlib.patches import Patch

from figures import style
from ranks.worker.phases import COMMUNICATION
from traces.cells import PHASES
from traces.steps import WAIT

TRANSFERRING, WAITING, REST = "exposed_moving", "exposed_waiting", "rest_of_wait"
ORANGE = "#ee9a5f"  # gradient all-reduce has it here and in figures.kinds.shares
# Tol's medium-contrast colours (SRON/EPS/TN/09-002) and a grey; waiting is hatched.
PHASE_STYLES: dict[str, tuple[str, str]] = {
    "data": ("#c4c4c4", ""),
    "forward": ("#6699cc", ""),
    "backward": ("#004488", ""),
    "metrics": ("#eecc66", ""),
    "optimizer": ("#994455", ""),
    WAIT: ("#ffffff", "/////"),
    COMMUNICATION: (ORANGE, ""),
    TRANSFERRING: (ORANGE, "/////"),
    WAITING: ("#ffffff", "....."),
    REST: ("#ffffff", "/////"),
}
LABELS = {
    **PHASES,
    COMMUNICATION: "all-reduce",
    TRANSFERRING: "wait for transfer",
    WAITING: "wait for slowest",
    REST: "other waiting",
}
_FALLBACK_COLOURS = ("#997700", "#117733", "#aa4499", "#44aa99")


def phase_style(name: str) -> dict[str, Any]:
    """Return colours and hatching of a phase, the same in every figure."""
    fallback = _FALLBACK_COLOURS[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(_FALLBACK_COLOURS)]
    colour, hatch = PHASE_STYLES.get(name, (fallback, ""))
    edge = style.MUTED if colour == "#ffffff" else "white"
    return {"facecolor": colour, "edgecolor": edge, "hatch": hatch or None, "linewidth": 0.3}


def legend_handles(names: Iterable[str]) -> list[Patch]:
    """Return the legend entries of these phases."""
    return [Patch(label=LABELS.get(name, name), **phase_style(name)) for name in names]
