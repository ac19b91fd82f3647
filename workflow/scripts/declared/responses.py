"""Declare the responses of studies: the measured quantities that figures and tables compare.

Epoch time is the default. A study names another one under `response`, a figure under `y`.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Response:
    """A measured column and how it is compared and displayed.

    Attributes:
        name: Its name in studies; "" if figures and studies cannot choose it.
        column: Column of runs.csv, or one that `analysis.responses` derives from others.
        title: Title without unit.
        unit: Displayed unit; for money the currency, which `with_currency` sets.
        meaning: One sentence for captions and the reference.
        is_rate: Whether higher is better and means are harmonic; a cost has arithmetic means.
        ideal_exponent: Power of the number of devices that the ideal is proportional to; None without one.
        minimum: Smallest possible value, in the column's unit.
        maximum: Largest possible value, in the same unit.
        unit_multiplier: Factor from the column's unit to the displayed one.
        digits: Significant digits displayed.
        is_money: Whether the unit is the currency of the runs.
        when: Traits that a study needs to measure it (declared.products.traits).
        hint: How to give a study these traits, for the error of a study without them.
    """

    column: str
    title: str
    unit: str = field(compare=False)
    name: str = ""
    meaning: str = ""
    is_rate: bool = False
    ideal_exponent: int | None = None
    minimum: float = 0.0
    maximum: float = math.inf
    unit_multiplier: float = 1.0
    digits: int = 3
    when: tuple[str, ...] = ()
    hint: str = ""
    is_money: bool = False

    def with_currency(self, currency: str) -> "Response":
        """Return the response with this currency as its unit if it is money; `==` ignores the unit."""
        return replace(self, unit=currency) if self.is_money else self

    @property
    def label(self) -> str:
        """Title with the displayed unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def is_bounded(self) -> bool:
        """Whether values have other limits than 0 and infinity: then no interval is on the log scale."""
        return self.minimum > 0 or self.maximum < math.inf

    @property
    def comparative(self) -> str:
        """The adjective of a better value."""
        return "higher" if self.is_rate else "shorter" if self.unit in ("s", "ms") else "lower"

    @property
    def superlative(self) -> str:
        """The adjective of the best value."""
        return f"{self.comparative[:-1]}st"

    @property
    def capitalized_title(self) -> str:
        """Title as the start of a sentence."""
        return self.title[:1].upper() + self.title[1:]


_STEP_TIMES: dict[str, Any] = {
    "unit": "ms",
    "unit_multiplier": 1e3,
    "when": ("step_times",),
    "hint": "add step_times: true to the study",
}
_TOKENS: dict[str, Any] = {
    "when": ("token_sequences",),
    "hint": "no data set consists of token sequences; use throughput",
}
_PEAK: dict[str, Any] = {
    "when": ("peak_known",),
    "hint": "state peak_tflops of the site; processors have no known peak",
}
_TARGET: dict[str, Any] = {"when": ("target_accuracy",), "hint": "add target_accuracy: 0.9 to the study"}
_DECLARED = (
    Response(name="epoch_time", column="epoch_time_s", title="epoch time", unit="s", ideal_exponent=-1,
        meaning="Epoch time: wall time of one pass over the training samples, without validation."),
    Response(name="throughput", column="throughput_samples_s", title="throughput", unit="samples/s",
        is_rate=True, ideal_exponent=1,
        meaning="Throughput: training samples per second on all devices together; means are harmonic."),
    Response(name="throughput_per_device", column="throughput_samples_s_device",
        title="throughput per device", unit="samples/s", is_rate=True, ideal_exponent=0,
        meaning="Throughput per device: training samples per second, divided by devices; means are "
        "harmonic."),
    Response(name="token_throughput", column="throughput_tokens_s", title="token throughput",
        unit="tokens/s", is_rate=True, ideal_exponent=1, **_TOKENS,
        meaning="Token throughput: training tokens per second on all devices together; means are harmonic."),
    Response(name="token_throughput_per_device", column="throughput_tokens_s_device",
        title="token throughput per device", unit="tokens/s", is_rate=True, ideal_exponent=0, **_TOKENS,
        meaning="Token throughput per device: training tokens per second, divided by devices; means are "
        "harmonic."),
    Response(name="step_time", column="step_time_median_s", title="median step time", **_STEP_TIMES,
        meaning="Step time: median over the training steps of a run, slowest rank of each step."),
    Response(name="step_time_p95", column="step_time_p95_s", title="95 % quantile of step time",
        **_STEP_TIMES,
        meaning="Step time: 95 % of a run's training steps take no longer, slowest rank of each step."),
    Response(name="memory", column="rank_memory_bytes", title="peak memory per rank", unit="MiB",
        unit_multiplier=2**-20,
        meaning="Memory: peak allocation of a rank on its GPU; on CPUs its peak resident set, including "
        "program and libraries."),
    Response(name="energy_per_sample", column="energy_per_sample_j", title="energy per sample", unit="mJ",
        unit_multiplier=1e3,
        meaning="Energy per sample: energy of an epoch divided by its training samples."),
    Response(name="time_to_accuracy", column="time_to_accuracy_s", title="time to accuracy", unit="s",
        **_TARGET,
        meaning="Time to accuracy: training until the end of the first epoch whose validation accuracy "
        "reaches the target; cells in which a run never reaches it have no value."),
    Response(name="cost", column="cost", title="cost per epoch", unit="currency", ideal_exponent=0,
        is_money=True,
        meaning="Cost: price of a node for an hour times nodes times epoch time."),
    Response(name="carbon", column="co2_g", title="CO2e per epoch", unit="g",
        meaning="Carbon dioxide: energy of an epoch times the carbon intensity of the grid."),
    Response(name="cost_to_target", column="cost_to_target", title="cost to accuracy", unit="currency",
        is_money=True, **_TARGET,
        meaning="Cost to accuracy: price of a node for an hour times nodes times time to accuracy."),
    Response(name="carbon_to_target", column="co2_to_target_g", title="CO2e to accuracy", unit="g",
        **_TARGET,
        meaning="Carbon dioxide to accuracy: energy until the end of the first epoch whose validation "
        "accuracy reaches the target, times the carbon intensity of the grid."),
    Response(name="mfu", column="mfu", title="model FLOP utilization", unit="%", is_rate=True,
        ideal_exponent=0, unit_multiplier=100.0, **_PEAK,
        meaning="MFU: operations of forward and backward pass per second, divided by the peak of all "
        "devices."),
    Response(name="hfu", column="hfu", title="hardware FLOP utilization", unit="%", is_rate=True,
        ideal_exponent=0, unit_multiplier=100.0, **_PEAK,
        meaning="HFU: MFU that also counts the forward passes repeated in the backward pass."),
    Response(name="flops_per_device", column="device_flops_s", title="operations per device", unit="TFLOP/s",
        is_rate=True, ideal_exponent=0, unit_multiplier=1e-12,
        meaning="Operations per device: operations of forward and backward pass per second, divided by "
        "devices; means are harmonic."),
    Response(name="collective_rate", column="collective_bytes_s_device",
        title="collective traffic per device", unit="MB/s", is_rate=True, unit_multiplier=1e-6,
        meaning="Collective traffic: bytes per epoch that a device sends for gradients, parameters and "
        "layers, by formula, divided by epoch time; means are harmonic."),
)  # fmt: skip
RESPONSES = {response.name: response for response in _DECLARED}
EPOCH_TIME = RESPONSES["epoch_time"]
TO_TARGET = tuple(name for name, response in RESPONSES.items() if "target_accuracy" in response.when)
