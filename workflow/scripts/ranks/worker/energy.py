"""Measure the energy of a node with the energy counters or power sensors that it has.

A meter reports joules since an arbitrary start; only differences are meaningful. Scopes are never added to
each other: `device` covers the run's accelerators, `package` all processor packages of the machine, and
`node` what a machine draws from its socket, which no program on it can read (runs/wattmeter.py). Accelerators
are read through the vendors' libraries, if the environment has them. If a meter is missing, or a window is
too short for it, the number is empty and has a reason (`Meters.describe`).
"""

import contextlib
import csv
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

POWERCAP = Path("/sys/class/powercap")
SCOPES = ("device", "package", "node")
#: scopes that include every device that trains, the widest first
COMPLETE_SCOPES = {"cpu": ("node", "package"), "cuda": ("node", "device"), "hybrid": ("node",)}
MAX_ERROR_SHARE = 0.1  # share of a window's energy
MAX_GAP_SAMPLES = 20  # A longer gap between two power samples invalidates the integral.
POWER_SAMPLE_S = 1.0  # between two lines of power.csv
POWER_COLUMNS = ("t", "scope", "watt")
LIBRARY_TIMEOUT_S = 5.0  # A driver may hang.
MAX_PACKAGE_W = 5000.0  # A higher power means that the counter was reset.

Answer = TypeVar("Answer")

Joules = Callable[[], float]


@dataclass(frozen=True)
class MeterKind:
    """Source, scope and accuracy of a meter.

    Attributes:
        source: Interface that is read, such as rapl.
        scope: One of SCOPES.
        method: `counter`, or `power`, which is integrated over time.
        sampling_s: Interval between new values.
        error_share: The manufacturer's error as a share of the energy, None if unknown.
        error_j: The manufacturer's error in joules, None if unknown.
    """

    source: str
    scope: str
    method: str
    sampling_s: float
    error_share: float | None
    error_j: float | None

    def rejection_reason(self, joules: float | None, seconds: float, window: str = "an epoch") -> str | None:
        """Return why the energy of a window of `seconds` is rejected, None if it is accepted.

        At each end the value is up to `sampling_s` old, so the measured window can be shorter or longer by
        `sampling_s`. The resulting error, sampling_s / seconds, must not exceed MAX_ERROR_SHARE.
        """
        if joules is None:
            return f"{self.source} stopped reporting"
        least_s = self.sampling_s / MAX_ERROR_SHARE
        if seconds < least_s:
            return (
                f"{window} of {seconds:.3g} s is shorter than the {least_s:g} s that "
                f"{self.source} can resolve (new every {self.sampling_s:g} s)"
            )
        if joules <= 0:
            return f"the counter of {self.source} did not move"
        if self.error_j is not None and self.error_j > MAX_ERROR_SHARE * joules:
            return f"{window} of {joules:.2g} J is less than {self.source} can resolve ({self.error_j:g} J)"
        return None


# Intel SDM, volume 3B, section 16.10: new about every ms, by default in units of 61 uJ; states no error.
RAPL = MeterKind("rapl", "package", "counter", 0.001, None, 61e-6)
# NVML states 5 % of the power for older accelerators and no error for later ones. Measured: new values every
# 20 to 100 ms.
NVML = MeterKind("nvml", "device", "counter", 0.1, 0.05, 0.001)
NVML_POWER = MeterKind("nvml", "device", "power", 0.1, 0.05, None)
# AMD's accumulator counts in units of 15.3 uJ every millisecond; its power is an average by the firmware.
AMD = MeterKind("amd-smi", "device", "counter", 0.001, None, 16e-6)
AMD_POWER = MeterKind("amd-smi", "device", "power", 0.1, None, None)


def answer_in_time(ask: Callable[[], Answer]) -> Answer:
    """Return what `ask` returns.

    Raises:
        TimeoutError: If it does not return within LIBRARY_TIMEOUT_S. Its thread is left behind.
    """
    answers: list[Answer | BaseException] = []

    def work() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # whatever a vendor's library raises
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIBRARY_TIMEOUT_S)
    if not answers:
        raise TimeoutError(f"no answer within {LIBRARY_TIMEOUT_S:g} s")
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]


class EnergyMeter:
    """All meters of one kind on this node; each of `parts` reads the joules of one package or accelerator."""

    def __init__(self, kind: MeterKind, parts: Sequence[Joules]) -> None:
        self.kind, self._parts, self._lock = kind, parts, threading.Lock()
        self._hangs = False

    def joules(self) -> float | None:
        """Return the sum over all parts, None if a part has no value.

        After a timeout the library is not read again, since each timeout delays the ranks.
        """
        if self._hangs or not self._lock.acquire(timeout=LIBRARY_TIMEOUT_S):
            return None
        try:
            joules = answer_in_time(self._sum) if self.kind.scope == "device" else self._sum()
            return None if math.isnan(joules) else joules
        except TimeoutError:
            self._hangs = True
            return None
        except Exception:  # whatever a vendor's library raises
            return None
        finally:
            self._lock.release()

    def _sum(self) -> float:
        return sum(part() for part in self._parts)


class Package:
    """Energy counter of one processor package (Linux powercap, intel-rapl), which wraps around."""

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj, self._wrapped_uj, self._at = int(self._counter.read_text()), 0, time.monotonic()
        self._went_back = False

    def __call__(self) -> float:
        """Return joules since some start; NaN after the counter was reset, such as by a suspended machine.

        Call it more often than the counter wraps (about every minute at full load).
        """
        now, at = int(self._counter.read_text()), time.monotonic()
        if now < self._last_uj:
            self._wrapped_uj += self._range_uj
            since_j = (now + self._range_uj - self._last_uj) / 1e6
            self._went_back |= since_j > MAX_PACKAGE_W * max(at - self._at, 0.01)
        self._last_uj, self._at = now, at
        return math.nan if self._went_back else (now + self._wrapped_uj) / 1e6


class Integrated:
    """Joules of a source that reports only power, integrated by the trapezoidal rule.

    Power is read every `sampling_s` by a thread, and at each call. The result is NaN after a gap of more than
    MAX_GAP_SAMPLES samples, in which the power is unknown.
    """

    def __init__(self, watts: Callable[[], float], sampling_s: float) -> None:
        self._watts, self._lock, self._longest_s = watts, threading.Lock(), MAX_GAP_SAMPLES * sampling_s
        self._at, self._last, self._joules = time.monotonic(), watts(), 0.0
        every(sampling_s, self)

    def __call__(self) -> float:
        """Return joules since this object was created."""
        with self._lock:
            watt, now = self._watts(), time.monotonic()
            if now - self._at > self._longest_s:
                self._joules = math.nan
            self._joules += (now - self._at) * (watt + self._last) / 2
            self._at, self._last = now, watt
            return self._joules


def every(seconds: float, call: Callable[[], object]) -> None:
    """Call `call` at this interval from now on, in a thread that ends with the process; ignore exceptions."""
    pause = threading.Event()  # never set

    def work() -> None:
        while not pause.wait(seconds):
            with contextlib.suppress(Exception):
                call()

    threading.Thread(target=work, daemon=True).start()


def packages() -> list[Path]:
    """Return the powercap zones of the packages.

    Zones within packages (cores, memory) or around them (psys) are excluded, since they would count twice.
    """
    return [
        folder
        for folder in sorted(POWERCAP.glob("intel-rapl:*"))
        if folder.name.count(":") == 1 and (folder / "name").read_text().startswith("package")
    ]


def rapl() -> EnergyMeter | None:
    """Return the meter of the processor packages, None if there are none.

    Raises:
        OSError: If this user is not allowed to read the counters.
        ValueError: If a counter is not a number.
    """
    folders = packages()
    return EnergyMeter(RAPL, [Package(folder) for folder in folders]) if folders else None


def nvml(library: ModuleType, names: Sequence[str]) -> EnergyMeter:
    """Return the meter of NVIDIA's accelerators with these names by NVML (nvidia-ml-py).

    It reads their energy counters, or their power if one lacks a counter. Any exception means: no meter.
    """
    library.nvmlInit()
    handles = [_nvml_handle(library, name) for name in names]
    parts: list[Joules] = [
        lambda handle=handle: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3  # type: ignore[misc]
        for handle in handles
    ]
    powers: list[Joules] = [
        lambda handle=handle: library.nvmlDeviceGetPowerUsage(handle) / 1e3  # type: ignore[misc]
        for handle in handles
    ]
    return _counted_or_integrated(NVML, NVML_POWER, parts, powers)


class DividedError(Exception):
    """The counter covers a whole card, but the run trains on a part of it (MIG)."""


def _nvml_handle(library: ModuleType, name: str) -> Any:
    handle = (
        library.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else library.nvmlDeviceGetHandleByUUID(name.encode())
    )
    is_divided = False
    with contextlib.suppress(Exception):  # Cards without MIG, and parts of a card, have no such mode.
        is_divided = library.nvmlDeviceGetMigMode(handle)[0] != 0
    if is_divided:
        raise DividedError(f"MIG divides accelerator {name}, whose counters are of the whole card")
    return handle


def amd_smi(library: ModuleType, names: Sequence[str]) -> EnergyMeter:
    """Return the meter of AMD's accelerators with these names by AMD SMI (amdsmi); see `nvml`.

    Accelerators have HIP's numbers if the library reports these.
    """
    library.amdsmi_init()
    handles = library.amdsmi_get_processor_handles()
    with contextlib.suppress(Exception):  # before version 6.4
        handles = sorted(
            handles, key=lambda handle: library.amdsmi_get_gpu_enumeration_info(handle)["hip_id"]
        )
    chosen = [handles[int(name)] for name in names]

    def joules(handle: Any) -> float:
        answer = library.amdsmi_get_energy_count(handle)
        counted = (
            answer["energy_accumulator"] if "energy_accumulator" in answer else answer["power"]
        )  # its name before 6.2
        return float(counted * answer["counter_resolution"] / 1e6)

    def watts(handle: Any) -> float:
        answer = library.amdsmi_get_power_info(handle)
        for name in ("current_socket_power", "average_socket_power", "socket_power"):
            if isinstance(answer.get(name), int | float):  # The value can be N/A.
                return float(answer[name])
        raise LookupError("its power is unknown")

    parts: list[Joules] = [lambda handle=handle: joules(handle) for handle in chosen]  # type: ignore[misc]
    powers: list[Joules] = [lambda handle=handle: watts(handle) for handle in chosen]  # type: ignore[misc]
    return _counted_or_integrated(AMD, AMD_POWER, parts, powers)


def _counted_or_integrated(
    counter: MeterKind, power: MeterKind, parts: list[Joules], powers: list[Joules]
) -> EnergyMeter:
    try:
        for part in parts:
            part()
    except Exception:  # Pascal and older have no counter, nor do parts of an accelerator (MIG).
        return EnergyMeter(power, [Integrated(watts, power.sampling_s) for watts in powers])
    return EnergyMeter(counter, parts)


def accelerators(names: Sequence[str]) -> tuple[EnergyMeter | None, list[dict[str, Any]]]:
    """Return the meter of the run's accelerators, from the first library that supports them.

    Without one, return None and for each library an entry with the reason.
    """
    refused = []
    if len(set(names)) < len(names):
        reason = f"ranks are isolated, and each numbers its own accelerators ({', '.join(names)})"
        return None, [entry(NVML, reason), entry(AMD, reason)]
    for kind, name, make in ((NVML, "pynvml", nvml), (AMD, "amdsmi", amd_smi)):
        try:
            meter = answer_in_time(
                lambda make=make, name=name: make(__import__(name), names)  # type: ignore[misc]
            )
            return meter, []
        except Exception as error:
            message = " ".join(str(error).split())  # AMD's has two lines.
            refused.append(entry(kind, f"cannot be read: {type(error).__name__}: {message}"))
    return None, refused


def entry(kind: MeterKind, reason: str | None = None, **changes: Any) -> dict[str, Any]:
    """Return a meter as a record lists it (measured.meters)."""
    return {**vars(kind), "window": "epochs", "joules": None, "reason": reason, **changes}


class Meters:
    """All meters of this node. `devices` names the accelerators that the run uses on it (devices.py)."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._meters: list[EnergyMeter] = []
        self._refused: list[dict[str, Any]] = []
        self._reasons: dict[str, str] = {}
        try:
            self._meters += [meter] if (meter := rapl()) else []
        except (OSError, ValueError) as error:
            self._refused.append(entry(RAPL, f"its counters cannot be read: {error}"))
        if devices:
            meter, refused = accelerators(devices)
            self._meters += [meter] if meter else []
            self._refused += refused

    def read(self) -> dict[str, float | None]:
        """Return joules since some start for each scope that this node has a meter for."""
        return {meter.kind.scope: meter.joules() for meter in self._meters}

    def between(
        self,
        before: Mapping[str, float | None],
        after: Mapping[str, float | None],
        seconds: float,
        window: str,
    ) -> dict[str, float | None]:
        """Return the joules of a window for each scope, None if unknown; `describe` then has the reason."""
        joules_by_scope: dict[str, float | None] = {}
        for meter in self._meters:
            kind = meter.kind
            then, now = before.get(kind.scope), after.get(kind.scope)
            joules = None if then is None or now is None else now - then
            if reason := kind.rejection_reason(joules, seconds, window):
                self._reasons.setdefault(kind.scope, reason)
            joules_by_scope[kind.scope] = None if reason else joules
        return joules_by_scope

    def describe(self) -> list[dict[str, Any]]:
        """Return every meter as a record lists it, with a reason for those without a value."""
        entries = [entry(meter.kind, self._reasons.get(meter.kind.scope)) for meter in self._meters]
        return entries + self._refused

    def sample(self, file: Path) -> None:
        """Write mean powers between two readings into `file` from now on, if there is a meter.

        Its columns are POWER_COLUMNS: Unix time in s, scope, W.
        """
        if not self._meters:
            return
        table = open(file, "w", newline="", buffering=1)  # noqa: SIM115 (open for the whole run)
        write = csv.writer(table, lineterminator="\n").writerow
        write(POWER_COLUMNS)
        last: dict[str, tuple[float, float]] = {}

        def line() -> None:
            for scope, joules in self.read().items():
                now = time.monotonic()  # The system's clock may be set between two samples.
                if joules is None:
                    continue
                if scope in last and now > last[scope][0]:
                    then, before = last[scope]
                    middle = time.time() - (now - then) / 2
                    write((f"{middle:.3f}", scope, f"{(joules - before) / (now - then):.6g}"))
                last[scope] = now, joules

        line()
        every(POWER_SAMPLE_S, line)


def combine_meters(nodes: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> list[dict[str, Any]]:
    """Return the meters of all machines as a run's record lists them.

    Args:
        nodes: Name of each machine and the result of its `Meters.describe`.
    """
    nodes = list(nodes)
    combined: dict[tuple[str, str], dict[str, Any]] = {}
    n_machines: dict[tuple[str, str], int] = {}
    for name, meters in nodes:
        for meter in meters:
            source_scope = meter["source"], meter["scope"]
            n_machines[source_scope] = n_machines.get(source_scope, 0) + 1
            combined_meter = combined.setdefault(source_scope, dict(meter))
            if meter["reason"] and not combined_meter["reason"]:
                combined_meter["reason"] = f"{name}: {meter['reason']}" if len(nodes) > 1 else meter["reason"]
    for source_scope, combined_meter in combined.items():
        if n_machines[source_scope] < len(nodes):
            combined_meter["reason"] = (
                combined_meter["reason"] or f"{n_machines[source_scope]} of {len(nodes)} machines have it"
            )
    return list(combined.values())


def widest_scope(energies: Mapping[str, float | None], device: str) -> str | None:
    """Return the scope of a run's response `energy_j`, None if there is none.

    It is the widest scope that all machines report and that covers everything that trains with `device`.
    """
    return next(
        (scope for scope in COMPLETE_SCOPES[device] if energies.get(f"energy_{scope}_j") is not None), None
    )
