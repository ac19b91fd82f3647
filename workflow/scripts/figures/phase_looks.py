"""How the phases of a training step look in every figure: neighbours differ in lightness, too, or by hatching."""

import hashlib
from collections.abc import Iterable
from typing import Any

from matplotlib.patches import Patch

from figures import style
from ranks.worker.phases import EXCHANGE
from traces.cells import PHASES
from traces.steps import WAIT

MOVING, WAITING, REST = "exposed_moving", "exposed_waiting", "rest_of_wait"
ORANGE = "#ee9a5f"  # the exchange's, as in figures.shares
# Tol's medium-contrast colours (SRON/EPS/TN/09-002) and a grey; what waits is hatched.
LOOKS: dict[str, tuple[str, str]] = {
    "data": ("#c4c4c4", ""),
    "forward": ("#6699cc", ""),
    "backward": ("#004488", ""),
    "metrics": ("#eecc66", ""),
    "optimizer": ("#994455", ""),
    WAIT: ("#ffffff", "/////"),
    EXCHANGE: (ORANGE, ""),
    MOVING: (ORANGE, "/////"),
    WAITING: ("#ffffff", "....."),
    REST: ("#ffffff", "/////"),
}
WORDS = {
    **PHASES,
    EXCHANGE: "exchange",
    MOVING: "exposed: bytes move",
    WAITING: "exposed: waiting for the slowest",
    REST: "rest of the wait",
}
_OTHERS = ("#997700", "#117733", "#aa4499", "#44aa99")


def look(name: str) -> dict[str, Any]:
    """Colours and hatching of a phase, whichever others there are."""
    other = _OTHERS[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(_OTHERS)]
    colour, hatch = LOOKS.get(name, (other, ""))
    edge = style.MUTED if colour == "#ffffff" else "white"
    return {"facecolor": colour, "edgecolor": edge, "hatch": hatch or None, "linewidth": 0.3}


def handles(names: Iterable[str]) -> list[Patch]:
    """The entries of a legend."""
    return [Patch(label=WORDS.get(name, name), **look(name)) for name in names]
