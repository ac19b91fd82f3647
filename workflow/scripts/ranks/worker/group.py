"""Connect the ranks of a run by TCP, for the barriers of epochs and for small messages.

The connection is independent of the framework's communication. Rank 0 listens on the site's interface, at a
port that the system picks, and writes its address and a token into the attempt's folder.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
import time
from pathlib import Path
from typing import Any

N_CLOCK_READINGS = 8
_LENGTH = struct.Struct("!I")
_SIOCGIFADDR = 0x8915


class GroupError(Exception):
    """Another rank has ended or never connected."""


def address_of(interface: str) -> str:
    """Return the IPv4 address of a network interface, from the kernel (Linux SIOCGIFADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError as error:
            interfaces = ", ".join(name for _, name in socket.if_nameindex())
            raise GroupError(f"interface {interface}: {error.strerror}; this host has {interfaces}") from None
    return socket.inet_ntoa(packed[20:24])


def free_port(address: str) -> int:
    """Return a TCP port of `address` on which no process listens now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class Group:
    """All ranks of one run. Every method is collective: all ranks call it, in the same order."""

    def __init__(self, rank: int, size: int, folder: Path, interface: str, timeout_s: float = 120.0) -> None:
        self.rank = rank
        self.size = size
        self.address = address_of(interface)
        self._peers: list[socket.socket] = []
        if size > 1:
            meeting = folder / "rendezvous.json"
            if rank == 0:
                self._listen(meeting, timeout_s)
            else:
                self._connect(meeting, timeout_s)
            for peer in self._peers:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.settimeout(None)

    def all_gather(self, value: Any) -> list[Any]:
        """Return the `value` of every rank (anything that JSON can hold), in the order of ranks."""
        if self.size == 1:
            return [value]
        if self.rank == 0:
            values = [value, *(self._receive(peer) for peer in self._peers)]
            for peer in self._peers:
                self._send(peer, values)
            return values
        self._send(self._peers[0], value)
        return self._receive(self._peers[0])

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        return self.all_gather(value if self.rank == 0 else None)[0]

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.all_gather(None)

    def clock_offsets(self) -> list[tuple[float, float]]:
        """Return how far each rank's time.monotonic is ahead of rank 0's, and the error of that, in s.

        The list is empty except on rank 0. The fastest of several round trips counts, and half of its
        duration is the error (Cristian, Distributed Computing 3, 1989).
        """
        if self.rank != 0:
            for _ in range(N_CLOCK_READINGS):
                self._receive(self._peers[0])
                self._send(self._peers[0], time.monotonic())
            return []
        offsets = [(0.0, 0.0)]
        for peer in self._peers:
            answers = []
            for _ in range(N_CLOCK_READINGS):
                asked_at = time.monotonic()
                self._send(peer, None)
                peer_time = self._receive(peer)
                answered_at = time.monotonic()
                answers.append(((answered_at - asked_at) / 2, peer_time - (asked_at + answered_at) / 2))
            error, offset = min(answers)
            offsets.append((offset, error))
        return offsets

    def close(self) -> None:
        """Leave the group."""
        for peer in self._peers:
            peer.close()

    def _listen(self, meeting: Path, timeout_s: float) -> None:
        token = secrets.token_hex(16)
        with socket.create_server((self.address, 0), backlog=self.size) as server:
            partial = meeting.with_suffix(".partial")
            partial.touch(mode=0o600)
            partial.write_text(
                json.dumps({"address": self.address, "port": server.getsockname()[1], "token": token})
            )
            os.replace(partial, meeting)
            deadline = time.monotonic() + timeout_s
            peers: dict[int, socket.socket] = {}
            while len(peers) < self.size - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    absent = sorted(set(range(1, self.size)) - set(peers))
                    raise GroupError(f"rank {absent[0]} did not come within {timeout_s:.0f} s") from None
                peer.settimeout(timeout_s)
                try:
                    hello = self._receive(peer)
                    is_member = hello["token"] == token
                except (GroupError, ValueError, TypeError, KeyError):
                    is_member = False
                if is_member:
                    peers[hello["rank"]] = peer
                else:
                    peer.close()
            self._peers = [peers[rank] for rank in range(1, self.size)]

    def _connect(self, meeting: Path, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError):
                # A network file system then looks for the file again instead of caching its absence.
                os.listdir(meeting.parent)
            try:
                meeting_point = json.loads(meeting.read_text())
                peer = socket.create_connection(
                    (meeting_point["address"], meeting_point["port"]), timeout=timeout_s
                )
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > deadline:
                    raise GroupError(f"rank 0 did not come within {timeout_s:.0f} s") from None
                time.sleep(0.02)
        self._peers = [peer]
        self._send(peer, {"rank": self.rank, "token": meeting_point["token"]})

    def _send(self, peer: socket.socket, value: Any) -> None:
        data = json.dumps(value).encode()
        try:
            peer.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise GroupError(f"a rank is gone: {error}") from None

    def _receive(self, peer: socket.socket) -> Any:
        return json.loads(self._exactly(peer, _LENGTH.unpack(self._exactly(peer, _LENGTH.size))[0]))

    def _exactly(self, peer: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = peer.recv(size - len(data))
            except OSError as error:
                raise GroupError(f"a rank is gone: {error}") from None
            if not part:
                raise GroupError("a rank is gone: it closed its connection")
            data += part
        return data
