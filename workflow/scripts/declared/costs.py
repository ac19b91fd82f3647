"""The cost of a node: the key `costs` of a site, and of measurements made elsewhere.

Costs are not part of a run's key: a changed price rebuilds tables and figures, and repeats no run.
"""

from dataclasses import dataclass
from typing import Any

from common.keys import Keys, Maybe, key, optional


@dataclass(frozen=True)
class Price(Keys):
    """Price of a node for an hour."""

    amount: float = key(
        "price of one node for an hour, whether or not all of its devices are used", gt=0, le=10**6
    )
    currency: str = key(
        "currency or unit of account, such as EUR, USD or SU", pattern=r"^[A-Za-z][A-Za-z0-9-]{0,11}\Z"
    )


@dataclass(frozen=True, kw_only=True)
class Costs(Keys):
    """Cost of a node in money, and in carbon dioxide."""

    price_per_node_hour: Maybe[Price] = optional("price of a node for an hour")
    grid_g_co2_per_kwh: Maybe[float] = optional(
        "carbon dioxide equivalent of a kWh at the place of the machine, g", gt=0, le=10**5
    )
    node_power_w: Maybe[float] = optional(
        "power of a node while it trains, W; used if no meter reports it, and captions say so", gt=0, le=10**6
    )

    def columns(self) -> dict[str, Any]:
        """Return the columns of runs.csv that have the costs."""
        price = self.price_per_node_hour
        return {
            "price_per_node_hour": price and price.amount,
            "currency": price and price.currency,
            "grid_g_co2_per_kwh": self.grid_g_co2_per_kwh,
            "node_power_w": self.node_power_w,
        }
