"""An HTTP server on loopback that serves small files, with planned faults for each request."""

import re
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler", bytes], None]


class FileServer(ThreadingHTTPServer):
    """The server.

    Attributes:
        files: Path -> content.
        plan: Path -> behaviours of its next requests.
        requests: (path, headers) of every request.
        stalled: Set when an answer stalls.
        go_on: Lets stalled answers continue.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.plan: dict[str, deque[Behaviour]] = defaultdict(deque)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.stalled = threading.Event()
        self.go_on = threading.Event()

    def handle_error(self, *_: Any) -> None:
        """Print nothing: tests close connections on purpose."""

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def serve(self, path: str, content: bytes, *behaviours: Behaviour) -> str:
        """Serve a file, its next requests with these behaviours, and return its URL."""
        self.files[path] = content
        self.plan[path].extend(behaviours)
        return self.url(path)

    def ranges(self, path: str) -> list[str | None]:
        """Return the Range header of every request for the path."""
        return [headers.get("range") for requested, headers in self.requests if requested == path]


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests.append(
            (self.path, {name.lower(): value for name, value in self.headers.items()})
        )
        content = self.server.files.get(self.path)
        if content is None:
            self.head(404, 0)
            return
        plan = self.server.plan[self.path]
        (plan.popleft() if plan else well)(self, content)

    def head(self, status: int, length: int | None, **headers: str) -> None:
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def begin(self, content: bytes) -> bytes:
        """Send status and headers of a correct answer; return the content that has to follow."""
        range_match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not range_match:
            self.head(200, len(content))
            return content
        start = int(range_match[1])
        content_range = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.head(206, len(content) - start, Content_Range=content_range)
        return content[start:]


def well(handler: Handler, content: bytes) -> None:
    handler.wfile.write(handler.begin(content))


def cut(after: int) -> Behaviour:
    """Close the connection after `after` bytes."""

    def behave(handler: Handler, content: bytes) -> None:
        handler.wfile.write(handler.begin(content)[:after])

    return behave


def stall(after: int) -> Behaviour:
    """Stall after `after` bytes until `go_on` is set."""

    def behave(handler: Handler, content: bytes) -> None:
        left = handler.begin(content)
        handler.wfile.write(left[:after])
        handler.wfile.flush()
        handler.server.stalled.set()
        handler.server.go_on.wait(30)
        handler.wfile.write(left[after:])

    return behave


def status(code: int, **headers: str) -> Behaviour:
    return lambda handler, _: handler.head(code, 0, **headers)


def other_content(content: bytes) -> Behaviour:
    """Serve other content correctly."""
    return lambda handler, _: well(handler, content)


def without_ranges(handler: Handler, content: bytes) -> None:
    """Serve the whole file and ignore a requested range."""
    handler.head(200, len(content))
    handler.wfile.write(content)


def refusing_ranges(handler: Handler, content: bytes) -> None:
    if handler.headers.get("Range"):
        handler.head(416, 0)
    else:
        well(handler, content)


def endless(handler: Handler, content: bytes) -> None:
    """Serve the content 1,000 times without a Content-Length."""
    handler.head(200, None)
    for _ in range(1000):
        handler.wfile.write(content)


def claiming(length: int) -> Behaviour:
    """Send a wrong Content-Length."""

    def behave(handler: Handler, content: bytes) -> None:
        handler.head(200, length)
        handler.wfile.write(content)

    return behave


@contextmanager
def file_server() -> Iterator[FileServer]:
    """Run a server in its own thread during the block."""
    server = FileServer()
    with in_thread(server):
        try:
            yield server
        finally:
            server.go_on.set()


@contextmanager
def in_thread(server: ThreadingHTTPServer) -> Iterator[None]:
    """Run any server in its own thread during the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
