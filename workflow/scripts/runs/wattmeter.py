"""Request the power of whole nodes from a wattmeter service after a run, and integrate it over epochs.

Kwollect (Grid'5000): GET URL?nodes=..&metrics=..&start_time=..&end_time=.. returns a JSON list of objects
with timestamp (ISO 8601), device_id (the node), metric_id, value (W) and labels. Times are Unix times in s.
If the service fails, values are empty and have a reason, but the run does not fail.
"""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from common.notes import Note
from declared.site import Wattmeter
from ranks.worker.energy import MAX_ERROR_SHARE, MeterKind

MARGIN_S = 5.0  # before and after a run, so that the ends of an epoch lie between two samples
AT_ONCE_S = 600.0  # time per request, since the size of an answer is limited
ANSWER_S = 20.0  # timeout of each part of an answer, and of the last answer after the site's patience
MAX_ANSWER_BYTES = 1 << 26
CHUNK_BYTES = 1 << 16
HEADERS = {"Accept-Encoding": "identity", "User-Agent": "ringside"}
PAUSE_S = 2.0
SOURCE, SCOPE = "wattmeter", "node"
BAD_ANSWER = "bad-answer"  # code of answers that are not in Kwollect's format

Samples = dict[str, np.ndarray]  # node -> [samples, 2]: Unix time in s, ascending, and power in W as received


class NoSamples(Exception):
    """The wattmeter service has no samples, for `reason`."""

    def __init__(self, reason: Note) -> None:
        super().__init__(reason)
        self.reason = reason


def node_names(hosts: Sequence[str]) -> list[str]:
    """Return the names of these hosts at the wattmeter service, each once."""
    return list(dict.fromkeys(host.split(".")[0] for host in hosts))


def request_samples(meter: Wattmeter, nodes: Sequence[str], start: float, end: float) -> Samples:
    """Return the samples of every node around `start` to `end` that arrive within the site's patience.

    Raises:
        NoSamples: If there are none, or if the answer is not Kwollect's, too large or too slow.
    """
    deadline = time.monotonic() + meter.patience_s
    while True:
        reason = Note("no-samples", "no sample arrived")
        try:
            samples = _request_available(meter, nodes, start - MARGIN_S, end + MARGIN_S, deadline + ANSWER_S)
            incomplete = [node for node in nodes if node not in samples or samples[node][-1, 0] < end]
            if not incomplete or (time.monotonic() > deadline and samples):
                return samples
            text = f"{meter.url}: has no {meter.metric} of {', '.join(incomplete)} until the end of the run"
            reason = Note("samples-too-late", text, url=meter.url, nodes=incomplete)
        except NoSamples as error:
            reason = error.reason
        if time.monotonic() > deadline:
            raise NoSamples(reason)
        time.sleep(min(PAUSE_S, max(0.05, meter.patience_s / 10)))


def _request_available(
    meter: Wattmeter, nodes: Sequence[str], start: float, end: float, deadline: float
) -> Samples:
    """Return the samples available now. All answers must come before `deadline` on the monotonic clock."""
    rows: dict[str, dict[float, float]] = {}
    for part_start in np.arange(start, end, AT_ONCE_S):
        window = {"start_time": f"{part_start:.3f}", "end_time": f"{min(part_start + AT_ONCE_S, end):.3f}"}
        for row in _request_rows(
            meter.url, {"nodes": ",".join(nodes), "metrics": meter.metric, **window}, deadline
        ):
            try:
                if (
                    row["metric_id"] == meter.metric
                    and row["device_id"] in nodes
                    and row["value"] is not None
                ):
                    rows.setdefault(row["device_id"], {})[_seconds(row["timestamp"])] = float(row["value"])
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                text = f"{meter.url}: its answer is not Kwollect's ({type(error).__name__}: {error})"
                raise NoSamples(Note(BAD_ANSWER, text, url=meter.url, error=type(error).__name__)) from None
    return {node: np.array(sorted(values.items())) for node, values in rows.items()}


def _request_rows(url: str, query: Mapping[str, str], deadline: float) -> list[Any]:
    """Return the rows of an answer. Raise NoSamples if it is invalid, too large or too slow."""
    import requests
    import urllib3

    try:
        with requests.get(url, params=query, timeout=ANSWER_S, stream=True, headers=HEADERS) as answer:
            if answer.status_code != requests.codes.ok:
                text = f"{url}: status {answer.status_code} {answer.reason}"
                raise NoSamples(Note("http-status", text, url=url, status=answer.status_code))
            content = bytearray()
            while part := answer.raw.read1(CHUNK_BYTES):
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    text = f"{url}: its answer is larger than {MAX_ANSWER_BYTES >> 20} MiB"
                    raise NoSamples(Note("answer-too-large", text, url=url))
                if time.monotonic() > deadline:
                    raise NoSamples(
                        Note("answer-too-slow", f"{url}: its answer did not end in time", url=url)
                    )
        rows = json.loads(content)
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        name = type(error).__name__
        raise NoSamples(Note("no-connection", f"{url}: {name}", url=url, error=name)) from None
    except (ValueError, RecursionError):  # also a number with more digits than Python reads
        raise NoSamples(Note(BAD_ANSWER, f"{url}: its answer is not JSON", url=url)) from None
    if not isinstance(rows, list):
        raise NoSamples(Note(BAD_ANSWER, f"{url}: its answer is not a list of samples", url=url))
    return rows


def _seconds(timestamp: str) -> float:
    """Return the Unix time of a sample. Raise ValueError if it has no time zone."""
    at = datetime.fromisoformat(timestamp)
    if at.tzinfo is None:
        raise ValueError(f"timestamp {timestamp} has no zone")
    return at.timestamp()


def describe_meter(meter: Wattmeter, samples: Samples) -> MeterKind:
    """Return the kind of the meter, with the median distance of samples as its period.

    Raises:
        NoSamples: If there are too few.
    """
    periods = np.concatenate([np.diff(rows[:, 0]) for rows in samples.values()])
    if not len(periods):
        text = f"{meter.url}: one sample of {meter.metric} is too few"
        raise NoSamples(Note("too-few-samples", text, url=meter.url, metric=meter.metric))
    return MeterKind(SOURCE, SCOPE, "power", float(np.median(periods)), meter.error_share, None)


def valid_samples(samples: Samples) -> Samples:
    """Return the samples with a finite power that is not negative."""
    return {node: rows[_is_power(rows)] for node, rows in samples.items()}


def invalid_samples(samples: Samples) -> Note | None:
    """Return number and an example of the invalid samples of each node, or None if all are valid."""
    invalid = {node: watts for node, rows in samples.items() if len(watts := rows[~_is_power(rows), 1])}
    examples = [f"{len(watts)} of {node}, such as {watts[0]:g} W" for node, watts in invalid.items()]
    text = f"invalid samples were left out: {'; '.join(examples)}"
    counts = {node: len(watts) for node, watts in invalid.items()}
    return Note("samples-left-out", text, counts=counts) if invalid else None


def _is_power(rows: np.ndarray) -> np.ndarray:
    return np.isfinite(rows[:, 1]) & (rows[:, 1] >= 0)


def integrate(
    kind: MeterKind,
    samples: Samples,
    nodes: Sequence[str],
    start: float,
    end: float,
    period: str = "an epoch",
) -> tuple[float | None, Note | None]:
    """Return the energy of all nodes from `start` to `end` in J, or the reason why it is unknown.

    Power is integrated by the trapezoidal rule and interpolated at both ends.

    Args:
        kind: The meter, from `describe_meter`.
        samples: Result of `valid_samples`.
        nodes: The nodes.
        start: Unix time, s.
        end: Unix time, s.
        period: Name of the window in messages.
    """
    total = 0.0
    for node in nodes:
        rows = samples.get(node)
        if rows is None or not len(rows):
            return None, Note("no-samples", f"{node} has no samples", node=node)
        if rows[0, 0] > start or rows[-1, 0] < end:
            return None, Note("samples-too-short", f"samples of {node} do not cover {period}", node=node)
        inside = rows[(rows[:, 0] > start) & (rows[:, 0] < end)]
        times = np.concatenate([[start], inside[:, 0], [end]])
        first, last = np.searchsorted(rows[:, 0], start, "right") - 1, np.searchsorted(rows[:, 0], end)
        gap_s = float(np.diff(rows[first : last + 1, 0]).max())
        if gap_s > max(2 * kind.sampling_s, MAX_ERROR_SHARE * (end - start)):
            text = f"{node} has no sample for {gap_s:.3g} s of {period}"
            return None, Note("gap-in-samples", text, node=node, gap_s=gap_s)
        total += float(np.trapezoid(np.interp(times, rows[:, 0], rows[:, 1]), times))
    reason = kind.rejection_reason(total, end - start, period)
    return (None, Note("too-coarse", reason)) if reason else (total, None)
