"""What a node costs: the key `costs` of a site, and of measurements made elsewhere.

Nothing of it is part of a run's key: a changed price makes tables and figures again, and repeats no run.
"""

from dataclasses import dataclass
from typing import Any

from common.written import Keys, Maybe, key, optional


@dataclass(frozen=True)
class Price(Keys):
    """Price of a node for an hour."""

    amount: float = key(
        "what one node costs for an hour, whether or not all of its devices are used", gt=0, le=10**6
    )
    currency: str = key(
        "its currency or unit of account, such as EUR, USD or SU", pattern=r"^[A-Za-z][A-Za-z0-9-]{0,11}\Z"
    )


@dataclass(frozen=True, kw_only=True)
class Costs(Keys):
    """What a node costs in money, and in carbon dioxide."""

    price_per_node_hour: Maybe[Price] = optional("price of a node for an hour")
    grid_g_co2_per_kwh: Maybe[float] = optional(
        "carbon dioxide equivalent of a kWh where the machine stands, g", gt=0, le=10**5
    )
    node_power_w: Maybe[float] = optional(
        "power of a node while it trains, W; used where no meter tells, and captions say so", gt=0, le=10**6
    )

    def columns(self) -> dict[str, Any]:
        """Return the columns of runs.csv."""
        price = self.price_per_node_hour
        return {
            "price_per_node_hour": price and price.amount,
            "currency": price and price.currency,
            "grid_g_co2_per_kwh": self.grid_g_co2_per_kwh,
            "node_power_w": self.node_power_w,
        }
