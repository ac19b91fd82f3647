"""The energy of epochs from a wattmeter service, and the reason if the service does not know it."""

import contextlib
import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import InputError
from common.files import load_yaml, write_text
from declared.site import Wattmeter, load_site
from runs import meters, wattmeter
from runs.wattmeter import NoSamples
from support.kwollect import PERIOD_S, kwollect

pytestmark = pytest.mark.slow

START = 1_760_000_000.03
NODES = ["taurus-7", "taurus-8"]


def rising(node: str, at: float) -> float:
    """Return 100 W at START and 1 W more every second; the second node draws twice as much."""
    return (1 + (node == NODES[1])) * (100 + at - START)


def test_energy_of_growing_power_is_exact_over_all_nodes() -> None:
    with kwollect(rising) as server:
        samples = wattmeter.request_samples(server.meter(), NODES, START, START + 10)
    kind = wattmeter.describe_meter(server.meter(), samples)
    assert (kind.source, kind.scope, kind.error_share) == ("wattmeter", "node", 0.01)
    assert kind.sampling_s == pytest.approx(PERIOD_S, rel=1e-3)
    for begin, end in ((0.0, 10.0), (2.113, 5.377)):
        joules, reason = wattmeter.integrate(kind, samples, NODES, START + begin, START + end)
        expected = 3 * (100 * (end - begin) + (end**2 - begin**2) / 2)
        assert joules == pytest.approx(expected, rel=1e-6) and reason is None
    assert set(server.requests[0]) == {"nodes", "metrics", "start_time", "end_time"}
    assert server.requests[0]["nodes"] == "taurus-7,taurus-8"


def test_samples_of_a_long_run_are_requested_in_parts() -> None:
    with kwollect(lambda node, at: 50.0) as server:
        samples = wattmeter.request_samples(server.meter(), NODES[:1], START, START + 1500)
        assert len(server.requests) == 3
    kind = wattmeter.describe_meter(server.meter(), samples)
    assert wattmeter.integrate(kind, samples, NODES[:1], START, START + 1500)[0] == pytest.approx(75_000)


def test_short_or_incomplete_window_is_empty_with_a_reason() -> None:
    def watts(node: str, at: float) -> float | None:
        is_missing = node == NODES[1] and 4 < at - START < 7
        return None if is_missing or at > START + 20 else 100.0

    with kwollect(watts) as server:
        samples = wattmeter.request_samples(server.meter(0), NODES, START, START + 30)
    kind = wattmeter.describe_meter(server.meter(), samples)

    def reason(begin: float, end: float, nodes: list[str] = NODES) -> tuple[str, str | None] | None:
        joules, note = wattmeter.integrate(kind, samples, nodes, START + begin, START + end)
        assert (joules is None) == (note is not None)
        return note and (note.code, note.facts.get("node"))

    assert reason(8, 12) is None and reason(0, 10, NODES[:1]) is None
    assert reason(8, 9.5) == ("too-coarse", None)
    assert reason(0, 10) == ("gap-in-samples", "taurus-8")
    assert reason(15, 25) == ("samples-too-short", "taurus-7")
    assert reason(8, 12, ["taurus-9"]) == ("no-samples", "taurus-9")


@pytest.mark.parametrize("invalid_w", [float("nan"), float("inf"), -5.0])
def test_invalid_power_is_left_out_and_reported(invalid_w: float) -> None:
    """One invalid sample is bridged like a missing one. With too many of them, an epoch has no energy."""

    def watts(node: str, at: float) -> float:
        bad = node == NODES[1] and (abs(at - START - 2) < PERIOD_S / 2 or 12 < at - START < 15)
        return invalid_w if bad else 100.0

    with kwollect(watts) as server:
        samples_received = wattmeter.request_samples(server.meter(), NODES, START, START + 20)
    kind, samples = (
        wattmeter.describe_meter(server.meter(), samples_received),
        wattmeter.valid_samples(samples_received),
    )
    joules, reason = wattmeter.integrate(kind, samples, NODES, START, START + 8)
    assert joules == pytest.approx(2 * 8 * 100) and reason is None
    joules, reason = wattmeter.integrate(kind, samples, NODES, START + 9, START + 17)
    assert (
        joules is None
        and reason is not None
        and (reason.code, reason.facts["node"]) == ("gap-in-samples", "taurus-8")
    )
    assert 3 < reason.facts["gap_s"] < 4
    refused = wattmeter.invalid_samples(samples_received)
    assert refused is not None and (refused.code, refused.facts) == (
        "samples-left-out",
        {"counts": {"taurus-8": 16}},
    )
    assert refused == f"invalid samples were left out: 16 of taurus-8, such as {invalid_w:g} W"
    assert wattmeter.invalid_samples(samples) is None


def test_late_samples_are_awaited_and_errors_retried() -> None:
    began = time.monotonic()
    with kwollect(lambda node, at: 100.0) as server:
        server.known_until = lambda: START + 9 + 4 * (time.monotonic() - began)
        server.broken = [(503, b"busy"), (502, b"")]
        samples = wattmeter.request_samples(server.meter(patience_s=5), NODES, START, START + 10)
        assert all(rows[-1, 0] >= START + 10 for rows in samples.values())
        assert len(server.requests) >= 3


@pytest.mark.parametrize(
    ("answer", "code", "facts", "line"),
    [
        ((500, b"oh"), "http-status", {"status": 500}, "status 500"),
        ((200, b"<html>"), "bad-answer", {}, "its answer is not JSON"),
        (
            (200, b'[{"device_id": "taurus-7", "metric_id": "wattmetre_power_watt", "value": 1' + b"0" * 400 + b"}]"),
            "bad-answer", {"error": "OverflowError"}, "its answer is not Kwollect's",
        ),
        ((200, b'{"error": "too much"}'), "bad-answer", {}, "its answer is not a list of samples"),
        (
            (200, b'[{"device_id": "taurus-7"}]'),
            "bad-answer",
            {"error": "KeyError"},
            "its answer is not Kwollect's (KeyError: 'metric_id')",
        ),
        (
            (200, b'[{"device_id": "taurus-7", "metric_id": "wattmetre_power_watt", "value": 1, "timestamp": "2025-01-01"}]'),
            "bad-answer", {"error": "ValueError"}, "has no zone",
        ),
        (
            (200, b"[]"),
            "samples-too-late",
            {"nodes": ["taurus-7", "taurus-8"]},
            "has no wattmetre_power_watt of taurus-7, taurus-8 until the end of the run",
        ),
    ],
)  # fmt: skip
def test_wrong_answers_are_reported_in_one_line(
    answer: tuple[int, bytes], code: str, facts: dict[str, object], line: str
) -> None:
    with kwollect(rising) as server:
        server.broken = [answer] * 50
        with pytest.raises(NoSamples) as away:
            wattmeter.request_samples(server.meter(0.2), NODES, START, START + 10)
    reason = away.value.reason
    assert reason.code == code and reason.facts == {"url": server.meter().url} | facts
    assert line in reason and "\n" not in reason and reason.startswith(server.meter().url)


@pytest.mark.parametrize(
    ("part", "pause_s", "code"), [(b" ", 0.05, "answer-too-slow"), (b" " * 65536, 0.0, "answer-too-large")]
)
def test_endless_answer_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, part: bytes, pause_s: float, code: str
) -> None:
    monkeypatch.setattr(wattmeter, "ANSWER_S", 0.5)
    monkeypatch.setattr(wattmeter, "MAX_ANSWER_BYTES", 1 << 20)

    def serve(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer, contextlib.suppress(OSError):
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(1000):
                peer.sendall(part)
                time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        endless = Wattmeter(
            "kwollect", f"http://127.0.0.1:{listening.getsockname()[1]}/metrics", "m", None, 0.0
        )
        began = time.monotonic()
        with pytest.raises(NoSamples) as away:
            wattmeter.request_samples(endless, NODES, START, START + 10)
        thread.join()
    assert away.value.reason.code == code and time.monotonic() - began < 60


def test_service_that_does_not_listen_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    away = Wattmeter("kwollect", f"http://127.0.0.1:{port}/metrics", "m", None, 0.1)
    with pytest.raises(NoSamples) as nobody:
        wattmeter.request_samples(away, NODES, START, START + 10)
    assert (nobody.value.reason.code, nobody.value.reason.facts["error"]) == (
        "no-connection",
        "ConnectionError",
    )


# What a site says.

GOOD = {"kind": "kwollect", "url": "https://api.grid5000.fr/stable/sites/lyon/metrics"}


def site_with(tmp_path: Path, energy: object) -> Path:
    text = load_yaml(load_site("local").file) | {"energy": energy}
    write_text(tmp_path / "here.yaml", json.dumps(text))
    return tmp_path


def test_a_site_names_its_wattmeters(tmp_path: Path) -> None:
    assert load_site("local").energy is None
    wattmeter_settings = load_site("here", site_with(tmp_path, {"wattmeter": GOOD})).energy
    assert wattmeter_settings == Wattmeter(
        **GOOD, metric="wattmetre_power_watt", error_share=None, patience_s=30
    )
    assert replace(load_site("here", tmp_path)) in {load_site("here", tmp_path)}, "a site is a key of caches"


@pytest.mark.parametrize(
    ("energy", "location"),
    [
        ({"wattmeter": {"kind": "kwollect"}}, "energy.wattmeter"),
        ({"wattmeter": {**GOOD, "kind": "other"}}, "energy.wattmeter.kind"),
        ({"wattmeter": {**GOOD, "url": "api.grid5000.fr"}}, "energy.wattmeter.url"),
        ({"wattmeter": {**GOOD, "metric": "a,b"}}, "energy.wattmeter.metric"),
        ({"wattmeter": {**GOOD, "patience": 3}}, "energy.wattmeter"), ({"wattmetre": GOOD}, "energy"),
    ],
)  # fmt: skip
def test_wrong_wattmeter_keys_are_refused_in_one_line(tmp_path: Path, energy: object, location: str) -> None:
    with pytest.raises(InputError) as refused:
        load_site("here", site_with(tmp_path, energy))
    assert location in str(refused.value) and "\n" not in str(refused.value)


def test_refused_samples_are_reported_and_left_out() -> None:
    with kwollect(lambda node, at: -1.0 if 12 < at - START < 15 else 100.0) as server:
        windows = [(START, START + 8), (START + 9, START + 17)]
        _, values, reasons, samples = meters._read_wattmeters(server.meter(), NODES, windows)
    assert values == [pytest.approx(1600), None]
    gap, left_out = reasons
    assert (gap.code, gap.facts["node"]) == ("gap-in-samples", "taurus-7")
    assert (left_out.code, left_out.facts) == ("samples-left-out", {"counts": dict.fromkeys(NODES, 15)})
    assert all((rows[:, 1] == 100).all() for rows in samples.values())
