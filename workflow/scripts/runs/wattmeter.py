"""Wattmeters behind an address, asked after a run: power of whole nodes over time, and joules of its epochs.

Kwollect (Grid'5000): GET URL?nodes=..&metrics=..&start_time=..&end_time=.. gives a JSON list of objects with timestamp (ISO 8601),
device_id (the node), metric_id, value (W) and labels. Times are Unix times in s. Whatever is wrong there makes numbers empty,
with the reason, and never a run fail.
"""

import json
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from common.notes import Note
from declared.site import Wattmeter
from ranks.worker.energy import MOST_ERROR, Kind

MARGIN_S = 5.0  # of what is asked for, so that the ends of an epoch lie between two samples
AT_ONCE_S = 600.0  # of one request, since the size of an answer is limited
ANSWER_S = 20.0  # to wait for a part of an answer, and for the last answer after the site's patience
MAX_ANSWER_BYTES = 1 << 26
CHUNK_BYTES = 1 << 16
HEADERS = {"Accept-Encoding": "identity", "User-Agent": "ringside"}
PAUSE_S = 2.0
SOURCE, SCOPE = "wattmeter", "node"
BAD_ANSWER = "bad-answer"  # the code of answers that are not Kwollect's

Samples = dict[str, np.ndarray]  # node -> [samples, 2]: Unix time in s, W as it was told; ascending


class Away(Exception):
    """The wattmeters do not tell; `reason` says why."""

    def __init__(self, reason: Note) -> None:
        super().__init__(reason)
        self.reason = reason


def nodes_of(hosts: Sequence[str]) -> list[str]:
    """The names by which wattmeters know these hosts, each once."""
    return list(dict.fromkeys(host.split(".")[0] for host in hosts))


def ask(meter: Wattmeter, nodes: Sequence[str], start: float, end: float) -> Samples:
    """Return the samples of every node from before `start` until after `end`, as far as they come within the site's patience.

    Raises:
        Away: If there are none, or if what comes is no answer of Kwollect, whatever its form, its size and its speed.
    """
    deadline = time.monotonic() + meter.patience_s
    while True:
        late = Note("no-samples", "no sample came")
        try:
            found = _request_samples(meter, nodes, start - MARGIN_S, end + MARGIN_S, deadline + ANSWER_S)
            behind = [node for node in nodes if node not in found or found[node][-1, 0] < end]
            if not behind or (time.monotonic() > deadline and found):
                return found
            text = f"{meter.url}: has no {meter.metric} of {', '.join(behind)} until the end of the run"
            late = Note("samples-too-late", text, url=meter.url, nodes=behind)
        except Away as away:
            late = away.reason
        if time.monotonic() > deadline:
            raise Away(late)
        time.sleep(min(PAUSE_S, max(0.05, meter.patience_s / 10)))


def _request_samples(meter: Wattmeter, nodes: Sequence[str], start: float, end: float, deadline: float) -> Samples:
    """Return what there is now. `deadline`: of all answers together, by time.monotonic."""
    rows: dict[str, dict[float, float]] = {}
    for first in np.arange(start, end, AT_ONCE_S):
        window = {"start_time": f"{first:.3f}", "end_time": f"{min(first + AT_ONCE_S, end):.3f}"}
        for row in _request_rows(meter.url, {"nodes": ",".join(nodes), "metrics": meter.metric, **window}, deadline):
            try:
                if row["metric_id"] == meter.metric and row["device_id"] in nodes and row["value"] is not None:
                    rows.setdefault(row["device_id"], {})[_seconds(row["timestamp"])] = float(row["value"])
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                text = f"{meter.url}: its answer is not Kwollect's ({type(error).__name__}: {error})"
                raise Away(Note(BAD_ANSWER, text, url=meter.url, error=type(error).__name__)) from None
    return {node: np.array(sorted(values.items())) for node, values in rows.items()}


def _request_rows(url: str, query: Mapping[str, str], deadline: float) -> list[Any]:
    """Return the list that an answer is. A server is trusted neither in size nor in time. Away.

    It is asked by a thread, which is left behind when it is late: a name server or the head of an answer may come drop by drop.
    """
    answers: queue.SimpleQueue[list[Any] | Away] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_receive_rows(url, query, deadline))
        except Away as away:
            answers.put(away)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        raise _too_slow(url) from None
    if isinstance(answer, Away):
        raise answer
    return answer


def _too_slow(url: str) -> Away:
    return Away(Note("answer-too-slow", f"{url}: its answer did not end in time", url=url))


def _receive_rows(url: str, query: Mapping[str, str], deadline: float) -> list[Any]:
    """Return the list that an answer is. Away."""
    import requests
    import urllib3

    try:
        with requests.get(url, params=query, timeout=ANSWER_S, stream=True, headers=HEADERS) as answer:
            if answer.status_code != requests.codes.ok:
                text = f"{url}: status {answer.status_code} {answer.reason}"
                raise Away(Note("http-status", text, url=url, status=answer.status_code))
            content = bytearray()
            while part := answer.raw.read1(CHUNK_BYTES):
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    text = f"{url}: its answer is larger than {MAX_ANSWER_BYTES >> 20} MiB"
                    raise Away(Note("answer-too-large", text, url=url, limit=MAX_ANSWER_BYTES))
                if time.monotonic() > deadline:
                    raise _too_slow(url)
    except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError, OSError) as error:
        name = type(error).__name__
        raise Away(Note("no-connection", f"{url}: {name}", url=url, error=name)) from None
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError):  # also a number with more digits than Python reads
        raise Away(Note(BAD_ANSWER, f"{url}: its answer is no JSON", url=url)) from None
    if not isinstance(rows, list):
        raise Away(Note(BAD_ANSWER, f"{url}: its answer is no list of samples", url=url))
    return rows


def _seconds(timestamp: str) -> float:
    """Unix time of a sample. ValueError where it says no zone."""
    at = datetime.fromisoformat(timestamp)
    if at.tzinfo is None:
        raise ValueError(f"timestamp {timestamp} has no zone")
    return at.timestamp()


def kind(meter: Wattmeter, samples: Samples) -> Kind:
    """What the wattmeters are, by the samples that came: new as often as the median of their distances says. Away where there are too few."""
    apart = np.concatenate([np.diff(rows[:, 0]) for rows in samples.values()])
    if not len(apart):
        text = f"{meter.url}: one sample of {meter.metric} is too few"
        raise Away(Note("too-few-samples", text, url=meter.url, metric=meter.metric))
    return Kind(SOURCE, SCOPE, "power", float(np.median(apart)), meter.error_share, None)


def readings(samples: Samples) -> Samples:
    """The samples that are a power: a number that is finite and not negative."""
    return {node: rows[_is_power(rows)] for node, rows in samples.items()}


def refused(samples: Samples) -> Note | None:
    """How many samples are no power, and an example; None where all are."""
    wrong = [(node, rows[~_is_power(rows), 1]) for node, rows in samples.items()]
    said = [f"{len(watts)} of {node}, such as {watts[0]:g} W" for node, watts in wrong if len(watts)]
    left_out = {node: len(watts) for node, watts in wrong if len(watts)}
    text = f"samples that are no power were left out: {'; '.join(said)}"
    return Note("samples-left-out", text, counts=left_out) if said else None


def _is_power(rows: np.ndarray) -> np.ndarray:
    return np.isfinite(rows[:, 1]) & (rows[:, 1] >= 0)


def joules(
    of: Kind, samples: Samples, nodes: Sequence[str], start: float, end: float, what: str = "an epoch"
) -> tuple[float | None, Note | None]:
    """Energy of all nodes from `start` to `end` by trapezoids, power at the ends interpolated; or why it cannot be told. `samples`: `readings`."""
    total = 0.0
    for node in nodes:
        rows = samples.get(node)
        if rows is None or not len(rows):
            return None, Note("no-samples", f"{node} has no samples", node=node)
        if rows[0, 0] > start or rows[-1, 0] < end:
            return None, Note("samples-too-short", f"samples of {node} do not reach over {what}", node=node)
        inside = rows[(rows[:, 0] > start) & (rows[:, 0] < end)]
        at = np.concatenate([[start], inside[:, 0], [end]])
        longest = float(
            np.diff(rows[(rows[:, 0] >= _before(rows, start)) & (rows[:, 0] <= _after(rows, end)), 0]).max()
        )
        if longest > max(2 * of.sampling_s, MOST_ERROR * (end - start)):
            text = f"{node} has no sample for {longest:.3g} s of {what}"
            return None, Note("gap-in-samples", text, node=node, gap_s=longest)
        total += float(np.trapezoid(np.interp(at, rows[:, 0], rows[:, 1]), at))
    reason = of.objection(total, end - start, what)
    return (None, Note("too-coarse", reason)) if reason else (total, None)


def _before(rows: np.ndarray, at: float) -> float:
    return float(rows[rows[:, 0] <= at, 0][-1])


def _after(rows: np.ndarray, at: float) -> float:
    return float(rows[rows[:, 0] >= at, 0][0])
