"""Who tells the energy of a node: one contract for counters and for power, each with its source, scope, sampling and error.

A meter tells joules since some start that is its own; only differences mean something. Scopes are never added to each other: `device`
is the run's accelerators, `package` all processor packages of the machine, `node` what a machine takes from its socket, which no
program on it tells (runs/wattmeter.py). The vendors' own libraries do the reading, where the environment has them. A meter
that is not there, or a window that it cannot resolve, leaves an empty number and a reason (`Meters.said`).
"""

import contextlib
import csv
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

POWERCAP = Path("/sys/class/powercap")
SCOPES = ("device", "package", "node")
WHOLE = {
    "cpu": ("node", "package"),
    "cuda": ("node", "device"),
    "hybrid": ("node",),
}  # scopes with all that trains, the widest first
MOST_ERROR = 0.1  # share of a window's energy that may be in doubt
LONGEST_GAP = 20  # samples of a power
SAMPLE_S = 1.0  # between two lines of power.csv
POWER_COLUMNS = ("t", "scope", "watt")
PATIENCE_S = 5.0  # for a vendor's library to answer: a driver may hang
MAX_PACKAGE_W = 5000.0  # a counter that went back by itself would tell more

Answer = TypeVar("Answer")

Joules = Callable[[], float]


@dataclass(frozen=True)
class Kind:
    """What a meter is.

    `sampling_s`: how often its value is new. Of its error what its maker says: a share of the energy, or
    joules; None where nothing is said. `method`: counter, or power that is integrated.
    """

    source: str
    scope: str
    method: str
    sampling_s: float
    error_share: float | None
    error_j: float | None

    def objection(self, joules: float | None, seconds: float, what: str = "an epoch") -> str | None:
        """Why a window of so many `seconds` has no number; None where it has.

        At each end the value is up to `sampling_s` old, so energy is that of a window which may be shorter or longer by
        `sampling_s`: a share of sampling_s / seconds, MOST_ERROR at most.
        """
        if joules is None:
            return f"{self.source} stopped telling"
        least_s = self.sampling_s / MOST_ERROR
        if seconds < least_s:
            return f"{what} of {seconds:.3g} s is shorter than the {least_s:g} s that {self.source} can resolve (new every {self.sampling_s:g} s)"
        if joules <= 0:
            return f"the counter of {self.source} did not move"
        if self.error_j is not None and self.error_j > MOST_ERROR * joules:
            return f"{what} of {joules:.2g} J is less than {self.source} can resolve ({self.error_j:g} J)"
        return None


# Intel SDM, volume 3B, section 16.10: new about every millisecond, in units of 61 uJ where nothing else is said; no error is.
RAPL = Kind("rapl", "package", "counter", 0.001, None, 61e-6)
# NVML says 5 % of the power for its older accelerators and nothing for later ones; measured, values are new every 20 to 100 ms.
NVML = Kind("nvml", "device", "counter", 0.1, 0.05, 0.001)
NVML_POWER = Kind("nvml", "device", "power", 0.1, 0.05, None)
# AMD's accumulator counts in units of 15.3 uJ every millisecond; its power is an average of the firmware's.
AMD = Kind("amd-smi", "device", "counter", 0.001, None, 16e-6)
AMD_POWER = Kind("amd-smi", "device", "power", 0.1, None, None)


def answer_in_time(ask: Callable[[], Answer]) -> Answer:
    """Return what `ask` returns. TimeoutError where it does not within PATIENCE_S; then its thread is left behind."""
    answers: list[Answer | BaseException] = []

    def work() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # whatever a vendor's library raises
            answers.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if not answers:
        raise TimeoutError(f"no answer within {PATIENCE_S:g} s")
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]


class Meter:
    """The meters of one kind on this node, as one: `parts` tell the joules of each package or accelerator."""

    def __init__(self, kind: Kind, parts: Sequence[Joules]) -> None:
        self.kind, self._parts, self._lock = kind, parts, threading.Lock()
        self._hangs = False

    def joules(self) -> float | None:
        """All parts together; None where one does not tell: two of three packages are not the node.

        A library that did not answer once is not asked again: each time would hold up the ranks.
        """
        if self._hangs or not self._lock.acquire(timeout=PATIENCE_S):
            return None
        try:
            told = answer_in_time(self._sum) if self.kind.scope == "device" else self._sum()
            return None if math.isnan(told) else told
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
    """One processor package's energy counter (Linux powercap, intel-rapl), which wraps around."""

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj, self._wrapped_uj, self._at = int(self._counter.read_text()), 0, time.monotonic()
        self._went_back = False

    def __call__(self) -> float:
        """Joules since some start. To be called more often than the counter wraps (about every minute at full load).

        NaN once it has gone back without a wrap, as when the machine was suspended: what it had counted is lost.
        """
        now, at = int(self._counter.read_text()), time.monotonic()
        if now < self._last_uj:
            self._wrapped_uj += self._range_uj
            since_j = (now + self._range_uj - self._last_uj) / 1e6
            self._went_back |= since_j > MAX_PACKAGE_W * max(at - self._at, 0.01)
        self._last_uj, self._at = now, at
        return math.nan if self._went_back else (now + self._wrapped_uj) / 1e6


class Integrated:
    """Joules of what tells its power alone: asked by a thread every `sampling_s`, and whenever somebody reads; trapezoids.

    NaN from a gap on that is longer than LONGEST_GAP samples: what went on in it nobody saw.
    """

    def __init__(self, watts: Callable[[], float], sampling_s: float) -> None:
        self._watts, self._lock, self._longest_s = watts, threading.Lock(), LONGEST_GAP * sampling_s
        self._at, self._last, self._joules = time.monotonic(), watts(), 0.0
        every(sampling_s, self)

    def __call__(self) -> float:
        """Joules since it was made."""
        with self._lock:
            watt, now = self._watts(), time.monotonic()
            if now - self._at > self._longest_s:
                self._joules = math.nan
            self._joules += (now - self._at) * (watt + self._last) / 2
            self._at, self._last = now, watt
            return self._joules


def every(seconds: float, call: Callable[[], object]) -> None:
    """Call it every so many seconds from now on, in a thread that ends with the process; what fails once is called again."""
    pause = threading.Event()  # which nobody sets

    def work() -> None:
        while not pause.wait(seconds):
            with contextlib.suppress(Exception):
                call()

    threading.Thread(target=work, daemon=True).start()


def packages() -> list[Path]:
    """The packages' own zones; what lies within one (cores, memory) or around all (psys) would be counted twice."""
    return [
        folder
        for folder in sorted(POWERCAP.glob("intel-rapl:*"))
        if folder.name.count(":") == 1 and (folder / "name").read_text().startswith("package")
    ]


def rapl() -> Meter | None:
    """The processors' packages; None where there are none. OSError, ValueError where they may not be read."""
    found = packages()
    return Meter(RAPL, [Package(folder) for folder in found]) if found else None


def nvml(library: ModuleType, numbers: Sequence[int]) -> Meter:
    """NVIDIA's accelerators by NVML (nvidia-ml-py): their counters, or their power where one has none. Any exception: it does not tell."""
    library.nvmlInit()
    handles = [_nvml_handle(library, name) for name in _visible(numbers, "CUDA_VISIBLE_DEVICES")]
    parts: list[Joules] = [
        lambda handle=handle: library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3  # type: ignore[misc]
        for handle in handles
    ]
    powers: list[Joules] = [
        lambda handle=handle: library.nvmlDeviceGetPowerUsage(handle) / 1e3  # type: ignore[misc]
        for handle in handles
    ]
    return _counted_or_integrated(NVML, NVML_POWER, parts, powers)


def _nvml_handle(library: ModuleType, name: str) -> Any:
    if name.isdecimal():
        return library.nvmlDeviceGetHandleByIndex(int(name))
    return library.nvmlDeviceGetHandleByUUID(name.encode())


def amd_smi(library: ModuleType, numbers: Sequence[int]) -> Meter:
    """AMD's accelerators by AMD SMI (amdsmi), as `nvml`. They are numbered as HIP numbers them, where the library says how."""
    library.amdsmi_init()
    handles = library.amdsmi_get_processor_handles()
    with contextlib.suppress(Exception):  # before version 6.4
        handles = sorted(
            handles, key=lambda handle: library.amdsmi_get_gpu_enumeration_info(handle)["hip_id"]
        )
    visible = _visible(numbers, "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    chosen = [handles[int(name)] for name in visible]

    def joules(handle: Any) -> float:
        said = library.amdsmi_get_energy_count(handle)
        counted = (
            said["energy_accumulator"] if "energy_accumulator" in said else said["power"]
        )  # its name before 6.2
        return float(counted * said["counter_resolution"] / 1e6)

    def watts(handle: Any) -> float:
        said = library.amdsmi_get_power_info(handle)
        return next(
            float(said[name])
            for name in ("current_socket_power", "average_socket_power", "socket_power")
            if isinstance(said.get(name), int | float)
        )

    parts: list[Joules] = [lambda handle=handle: joules(handle) for handle in chosen]  # type: ignore[misc]
    powers: list[Joules] = [lambda handle=handle: watts(handle) for handle in chosen]  # type: ignore[misc]
    return _counted_or_integrated(AMD, AMD_POWER, parts, powers)


def _visible(numbers: Sequence[int], *variables: str) -> list[str]:
    """What the run's accelerators are called, by the first variable that leaves a process some of them."""
    said = next((os.environ[name] for name in variables if os.environ.get(name)), None)
    names = (
        [name.strip() for name in said.split(",")]
        if said
        else [str(number) for number in range(max(numbers) + 1)]
    )
    return [names[number] for number in numbers]


def _counted_or_integrated(counter: Kind, power: Kind, parts: list[Joules], powers: list[Joules]) -> Meter:
    try:
        for part in parts:
            part()
    except Exception:  # no counter: as old as Pascal, or a part of an accelerator
        return Meter(power, [Integrated(watts, power.sampling_s) for watts in powers])
    return Meter(counter, parts)


def accelerators(numbers: Sequence[int]) -> tuple[Meter | None, list[dict[str, Any]]]:
    """The meter of the run's accelerators, by the first library that knows them; else an entry for each that says why not."""
    refused = []
    for kind, name, make in ((NVML, "pynvml", nvml), (AMD, "amdsmi", amd_smi)):
        try:
            return answer_in_time(lambda make=make, name=name: make(__import__(name), numbers)), []  # type: ignore[misc]
        except Exception as error:
            refused.append(entry(kind, f"it does not tell: {type(error).__name__}: {error}"))
    return None, refused


def entry(kind: Kind, reason: str | None = None, **changes: Any) -> dict[str, Any]:
    """A meter as a record lists it (measured.meters)."""
    return {**vars(kind), "window": "epochs", "joules": None, "reason": reason, **changes}


class Meters:
    """All meters of this node. `devices`: the numbers of the accelerators that the run uses on it."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._meters: list[Meter] = []
        self._refused: list[dict[str, Any]] = []
        self._reasons: dict[str, str] = {}
        try:
            self._meters += [found] if (found := rapl()) else []
        except (OSError, ValueError) as error:
            self._refused.append(entry(RAPL, f"its counters cannot be read: {error}"))
        if devices:
            found, refused = accelerators(devices)
            self._meters += [found] if found else []
            self._refused += refused

    def read(self) -> dict[str, float | None]:
        """Scope -> joules since some start, of the scopes that have a meter here."""
        return {meter.kind.scope: meter.joules() for meter in self._meters}

    def between(
        self, before: Mapping[str, float | None], after: Mapping[str, float | None], seconds: float, what: str
    ) -> dict[str, float | None]:
        """Scope -> joules of a window; None where it cannot be told, which `said` gives the reason of."""
        found: dict[str, float | None] = {}
        for meter in self._meters:
            kind = meter.kind
            then, now = before.get(kind.scope), after.get(kind.scope)
            joules = None if then is None or now is None else now - then
            if reason := kind.objection(joules, seconds, what):
                self._reasons.setdefault(kind.scope, reason)
            found[kind.scope] = None if reason else joules
        return found

    def said(self) -> list[dict[str, Any]]:
        """Every meter as a record lists it, those that do not tell with the reason."""
        told = [entry(meter.kind, self._reasons.get(meter.kind.scope)) for meter in self._meters]
        return told + self._refused

    def sample(self, file: Path) -> None:
        """From now on write mean powers between two readings into `file` (POWER_COLUMNS: Unix time in s, scope, W), where there is a meter."""
        if not self._meters:
            return
        table = open(file, "w", newline="", buffering=1)  # noqa: SIM115 (open for the whole run)
        write = csv.writer(table, lineterminator="\n").writerow
        write(POWER_COLUMNS)
        last: dict[str, tuple[float, float]] = {}

        def line() -> None:
            for scope, joules in self.read().items():
                now = time.monotonic()  # the clock of the day may be set meanwhile
                if joules is None:
                    continue
                if scope in last and now > last[scope][0]:
                    then, before = last[scope]
                    middle = time.time() - (now - then) / 2
                    write((f"{middle:.3f}", scope, f"{(joules - before) / (now - then):.6g}"))
                last[scope] = now, joules

        line()
        every(SAMPLE_S, line)


def together(nodes: Iterable[tuple[str, Sequence[Mapping[str, Any]]]]) -> list[dict[str, Any]]:
    """The meters of all machines, each a pair of its name and what `Meters.said` said there, as a run's record lists them."""
    nodes = list(nodes)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    told: dict[tuple[str, str], int] = {}
    for name, meters in nodes:
        for meter in meters:
            of = meter["source"], meter["scope"]
            told[of] = told.get(of, 0) + 1
            one = found.setdefault(of, dict(meter))
            if meter["reason"] and not one["reason"]:
                one["reason"] = f"{name}: {meter['reason']}" if len(nodes) > 1 else meter["reason"]
    for of, one in found.items():
        if told[of] < len(nodes):
            one["reason"] = one["reason"] or f"{told[of]} of {len(nodes)} machines have it"
    return list(found.values())


def widest(energies: Mapping[str, float | None], device: str) -> str | None:
    """The scope of a run's response `energy_j` on a device of a spec: the widest that all its machines tell, and that has all that trains."""
    return next((scope for scope in WHOLE[device] if energies.get(f"energy_{scope}_j") is not None), None)
