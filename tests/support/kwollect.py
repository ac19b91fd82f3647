"""A server on loopback with the API of Kwollect, which serves power metrics of Grid'5000's nodes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from declared.site import Wattmeter
from support.file_server import in_thread

PARIS = timezone(timedelta(hours=1))
PERIOD_S = 0.2


class Kwollect(ThreadingHTTPServer):
    """The server.

    Attributes:
        watts: Returns the power of a node at a Unix time, None if there is no sample.
        known_until: Returns the time of the last sample.
        broken: Status and body of the next answers.
        requests: The queries of all requests.
    """

    daemon_threads = True

    def __init__(self, watts: Callable[[str, float], float | None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.watts = watts
        self.period_s = PERIOD_S
        self.known_until: Callable[[], float] = lambda: float("inf")
        self.broken: list[tuple[int, bytes]] = []
        self.requests: list[dict[str, str]] = []

    def meter(self, patience_s: float = 0.5) -> Wattmeter:
        """Return the meter as a site describes it."""
        url = f"http://127.0.0.1:{self.server_port}/stable/sites/lyon/metrics"
        return Wattmeter("kwollect", url, "wattmetre_power_watt", 0.01, patience_s)

    def rows(self, query: dict[str, str]) -> list[dict[str, Any]]:
        """Return the samples of all nodes in order of time, with samples of another metric in between."""
        start, end = float(query["start_time"]), min(float(query["end_time"]), self.known_until())
        samples = []
        for step in range(int(start / self.period_s), int(end / self.period_s) + 1):
            at = step * self.period_s
            for node in query["nodes"].split(","):
                if start <= at <= end and (watt := self.watts(node, at)) is not None:
                    timestamp = datetime.fromtimestamp(at, PARIS).isoformat()
                    label = {"_device_orig": ["wattmetre1-port6"]}
                    sample = {"timestamp": timestamp, "device_id": node, "labels": label}
                    samples.append({**sample, "metric_id": "wattmetre_power_watt", "value": watt})
                    samples.append({**sample, "metric_id": "bmc_node_power_watt", "value": 1e9})
        return samples


class Handler(BaseHTTPRequestHandler):
    server: Kwollect

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.requests.append(query)
        status, body = self.server.broken.pop(0) if self.server.broken else (200, b"")
        body = body if status != 200 or body else json.dumps(self.server.rows(query)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def kwollect(watts: Callable[[str, float], float | None]) -> Iterator[Kwollect]:
    """Run a server in a thread of its own."""
    server = Kwollect(watts)
    with in_thread(server):
        yield server
