"""Ranks joined by TCP: real sockets on loopback, one thread a rank."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ranks.worker.group import Group, GroupError, address_of
from support.ranks import on_ranks


@pytest.mark.parametrize("size", [1, 2, 5])
def test_gather_and_broadcast(tmp_path: Path, size: int) -> None:
    gathered = on_ranks(size, tmp_path, lambda group: group.all_gather({"rank": group.rank}))
    assert gathered == [[{"rank": rank} for rank in range(size)]] * size
    (tmp_path / "rendezvous.json").unlink(missing_ok=True)
    assert on_ranks(size, tmp_path, lambda group: group.broadcast(group.rank + 7)) == [7] * size


def test_nobody_leaves_a_barrier_before_all_have_come(tmp_path: Path) -> None:
    def arrive(group: Group) -> tuple[float, float]:
        time.sleep(0.1 * group.rank)
        came = time.monotonic()
        group.barrier()
        return came, time.monotonic()

    times = on_ranks(3, tmp_path, arrive)
    assert min(left for _, left in times) >= max(came for came, _ in times)


def test_a_rank_that_goes_is_noticed(tmp_path: Path) -> None:
    def work(group: Group) -> str:
        if group.rank == 1:
            return "went"
        with pytest.raises(GroupError, match="a rank is gone"):
            group.barrier()
        return "noticed"

    assert on_ranks(3, tmp_path, work) == ["noticed", "went", "noticed"]


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    with pytest.raises(GroupError, match=r"rank 1 did not come within 0 s"):
        Group(0, 2, tmp_path, "lo", timeout_s=0.3)
    with pytest.raises(GroupError, match="rank 0 did not come"):
        Group(1, 2, tmp_path / "empty", "lo", timeout_s=0.3)


def test_a_stranger_is_turned_away(tmp_path: Path) -> None:
    ranks: list[Group] = []
    listener = threading.Thread(target=lambda: ranks.append(Group(0, 2, tmp_path, "lo", timeout_s=5)))
    listener.start()
    meeting = tmp_path / "rendezvous.json"
    while not meeting.exists():
        time.sleep(0.01)
    meeting_point = json.loads(meeting.read_text())
    assert meeting.stat().st_mode & 0o077 == 0, "the token is the owner's alone"
    with socket.create_connection((meeting_point["address"], meeting_point["port"])) as stranger:
        hello = json.dumps({"rank": 1, "token": "guessed"}).encode()
        stranger.sendall(len(hello).to_bytes(4, "big") + hello)
        assert stranger.recv(1) == b"", "its connection is closed"
    member = Group(1, 2, tmp_path, "lo", timeout_s=5)
    listener.join()
    answers = ThreadPoolExecutor(2).map(lambda group: group.all_gather(group.rank), [*ranks, member])
    assert list(answers) == [[0, 1], [0, 1]]


def test_an_unknown_interface_names_those_that_are_there() -> None:
    assert address_of("lo") == "127.0.0.1"
    with pytest.raises(GroupError, match=r"interface nope0: .*; this host has .*lo"):
        address_of("nope0")
