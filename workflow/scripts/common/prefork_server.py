"""Run programs in processes that have their libraries: `python -IS .../prefork_server.py MODULE ARGUMENT...`.

Short programs spend most of their time on imports. A server (`VARIABLE`) imports the libraries once and forks
a process that does what `python -m MODULE ARGUMENT...` does, with the caller's folder, environment, standard
streams and signals, and its exit status. The process imports this project's modules anew, so that it runs
what is on disk; modules of `FREQUENT` programs are kept as long as their files do not change. Without a
reachable server, as on another node, this program is `python -m MODULE ARGUMENT...` itself.

A server listens on a socket without a file (unix(7), abstract), serves only the user who started it, and ends
with the holder of the other end of its standard input, once its programs have ended: nothing is left behind
by a SIGKILL. This module is started for every job, so it imports no other module of this project.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
import sys

TYPE_CHECKING = False  # not typing's, which is one more import
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

VARIABLE = "RINGSIDE_PREFORK_SERVER"  # the name of the server's socket
SERVE = "--serve"
LIGHT = (
    "argparse",
    "csv",
    "difflib",
    "fastjsonschema",
    "hashlib",
    "jsonschema",
    "numpy",
    "numpy.random",
    "packaging.markers",
    "packaging.requirements",
    "queue",
    "resource",
    "secrets",
    "yaml",
)
HEAVY = (
    *LIGHT,
    "pandas",
    "scipy.stats",
    "scipy.optimize",
    "statsmodels.formula.api",
    "statsmodels.stats.multitest",
    "statsmodels.stats.outliers_influence",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "matplotlib.style",
    "PIL.Image",
)
# What the programs of a stage import, before the first of them begins. A name that is missing here costs
# time, nothing else.
LIBRARIES = {
    **dict.fromkeys(("environments", "datasets", "plan", "provenance", "records", "runs"), LIGHT),
    **dict.fromkeys(("analysis", "comparison", "figures", "network", "prediction", "report"), HEAVY),
    "snakemake": (
        "snakemake.cli",
        "snakemake.executors.dryrun",
        "snakemake.executors.local",
        "snakemake.report.html_reporter",
        "snakemake.scheduling.greedy",
        "snakemake_executor_plugin_cluster_generic",
        "snakemake_executor_plugin_slurm",
        "smart_open",
    ),
}
FREQUENT = ("runs.supervise",)  # programs of which a campaign starts hundreds
SCRIPTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # workflow/scripts
SIZE = struct.Struct("!q")
CREDENTIALS = struct.Struct("3i")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def call(server: str, arguments: list[str]) -> int | None:
    """Have the server run a program and return its exit status, or None if the server is unreachable."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(f"\0{server}")
        except OSError:
            return None
        if not _is_ours(connection):
            return None
        umask = os.umask(0)
        os.umask(umask)
        variables = [name + b"=" + value for name, value in os.environb.items()]
        parts = [
            os.getcwdb(),
            b"%d" % umask,
            b"%d" % len(arguments),
            *map(os.fsencode, arguments),
            *variables,
        ]
        message = b"\0".join(parts)
        streams = array.array("i", [0, 1, 2])
        # Once the program runs, a signal has to reach it, even before this process knows its number.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            connection.sendmsg([SIZE.pack(len(message))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
            connection.sendall(message)
            process = _received(connection)
        except OSError:
            process = None
        status = None if process is None else _forward_signals(process, connection, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if process is None:
            return None
    if status is None:
        print(
            f"ringside: {arguments[0]}: the process that has its libraries was killed; start again",
            file=sys.stderr,
        )
        return os.EX_TEMPFAIL
    return status if status >= 0 else 128 - status


def _forward_signals(process: int, connection: socket.socket, mask: set[int]) -> int | None:
    """Forward signals to the program until it ends, and return its exit status; None if it was killed.

    A handler in Python alone would lose a signal that arrives right before a system call: it runs only after
    that call. The interpreter writes each signal's number to the wake-up descriptor at once.
    """
    import select

    signals, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for signum in FORWARDED:
        signal.signal(signum, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    watched: list[int | socket.socket] = [signals, connection]
    while connection not in select.select(watched, [], [])[0]:
        for number in os.read(signals, 64):
            _signal(process, number)
    try:
        return _received(connection)
    except OSError:  # the server was killed
        return None


def _signal(process: int, number: int) -> None:
    try:  # noqa: SIM105 (contextlib would be one more import)
        os.kill(process, number)
    except ProcessLookupError:
        pass  # it has ended just now


def _is_ours(connected: socket.socket) -> bool:
    """Return whether this user is at the other end, since anybody can bind a socket's name."""
    _, user, _ = CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    )
    return user == os.getuid()


def _received(connected: socket.socket) -> int | None:
    """Return a number, or None if the other end is gone."""
    received = _read(connected, SIZE.size)
    return SIZE.unpack(received)[0] if len(received) == SIZE.size else None


def _read(connected: socket.socket, size: int) -> bytes:
    """Return so many bytes, fewer if the other end is gone."""
    received = b""
    while len(received) < size and (part := connected.recv(size - len(received))):
        received += part
    return received


def main() -> None:
    """Run the program that the arguments name, in a process that a server forks, else in this one."""
    arguments = sys.argv[1:]
    if arguments[:1] == [SERVE]:
        _serve(int(arguments[1]), arguments[2:])
        return
    server = os.environ.get(VARIABLE)
    status = call(server, arguments) if server else None
    if status is None:
        os.execv(sys.executable, [sys.executable, "-m", *arguments])  # noqa: S606 (that is what it is for)
    sys.exit(status)


# Each ends when the pipe to its standard input does, with this process.
_servers: list[subprocess.Popen[bytes]] = []


def start(
    preloaded: Sequence[str] = (), python: str = sys.executable, variables: Mapping[str, str] | None = None
) -> str:
    """Start a server and return its name, for `VARIABLE`; it ends with this process.

    Args:
        preloaded: Modules that it imports at once.
        python: Its interpreter.
        variables: Its environment; None for that of this process.
    """
    import secrets
    import subprocess

    name = f"ringside-{os.getpid()}-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen(128)  # from now on it can be asked, though it answers later
        number = listening.fileno()
        _servers.append(
            subprocess.Popen(
                [python, "-P", __file__, SERVE, str(number), *preloaded],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if sys.stderr else subprocess.DEVNULL,  # which the caller may have closed
                pass_fds=[number],
            )
        )
    return name


def _serve(number: int, preloaded: list[str]) -> None:
    """Serve on the listening socket of this number."""
    import runpy

    _import(preloaded)
    # A caller has a module path of its own, or none.
    own_path = {os.path.abspath(entry) for entry in _path()}
    sys.path[:] = [entry for entry in sys.path if entry not in own_path]
    arguments = _Server(socket.socket(fileno=number)).serve()
    if arguments is not None:
        sys.argv = arguments
        try:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if isinstance(ended.code, str):  # a message of Python, with status 1
                raise
            _end(ended.code or 0)
        _end(0)


def _end(status: int) -> None:
    """End this process without taking libraries apart, which would take a sixth of a second."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _import(modules: Sequence[str]) -> None:
    import gc
    import importlib

    for module in modules:
        try:  # noqa: SIM105
            importlib.import_module(module)
        except ImportError:
            pass  # the program that needs it says so
    gc.collect()
    gc.freeze()  # what is there stays shared by all processes


def _keep(program: str) -> dict[str, tuple[int, ...] | None]:
    """Import a program of this project.

    Return all its modules that are imported now, with the state of their files.

    A file that was written since, or is dated in the future, has no state: a change could not be noticed.
    """
    import time

    began_ns = time.time_ns()
    sys.path.insert(0, SCRIPTS)
    try:
        __import__(program)
    except Exception:  # noqa: S110
        pass  # the program says so itself
    finally:
        sys.path.remove(SCRIPTS)
    states = {}
    for name, module in sys.modules.items():
        if name != "__main__" and (file := _file(module)).startswith(SCRIPTS + os.sep):
            state = _state(file)
            states[name] = state if state and max(state[:2]) < began_ns else None
    return states


def _file(module: object) -> str:
    return getattr(module, "__file__", None) or ""


def _state(file: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)


def _import_anew(program: str, states: Mapping[str, tuple[int, ...] | None]) -> None:
    """Forget the program among the kept modules, and all of them unless they are current."""
    is_current = sys.path[:1] == [SCRIPTS] and all(
        state is not None and state == _state(_file(sys.modules[name])) for name, state in states.items()
    )
    for name in states:
        if name == program or not is_current:
            del sys.modules[name]


class _Request:
    """What a caller asks for: a program in its folder, with its environment and streams."""

    def __init__(self, caller: socket.socket, message: bytes, streams: list[int]) -> None:
        folder, umask, n_arguments, *rest = message.split(b"\0")
        self.caller, self.streams = caller, streams
        self.folder, self.umask = folder, int(umask)
        self.arguments = [os.fsdecode(argument) for argument in rest[: int(n_arguments)]]
        self.variables = rest[int(n_arguments) :]


class _Server:
    """Fork a process for each caller, and send the callers the exit statuses of their programs."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._running: dict[int, socket.socket] = {}  # process -> its caller
        self._states: dict[str, tuple[int, ...] | None] = {}  # of kept modules
        self._awake, self._wake = os.pipe()
        for end in (self._awake, self._wake):
            os.set_blocking(end, False)
        # Signals to the whole process group are for programs: the server ends with the process that started
        # it.
        self._handlers = {signum: signal.signal(signum, signal.SIG_IGN) for signum in FORWARDED}
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def serve(self) -> list[str] | None:
        """Return a program's arguments in the process that is to run it, None in the server at its end."""
        import select

        is_over = False
        while not is_over or self._running:
            watched: list[int | socket.socket] = [self._awake]
            watched += [] if is_over else [0, self._listening]
            ready, _, _ = select.select(watched, [], [])
            if self._awake in ready:
                os.read(self._awake, 1024)
                _send_statuses(self._running)
            if 0 in ready:
                is_over = True
                self._listening.close()
            elif self._listening in ready:
                request = self._accept()
                if request and self._fork(request):
                    self._become_program(request)
                    return request.arguments
        return None

    def _accept(self) -> _Request | None:
        """Return the next caller's request; None if it is another user, gone, or sends something else."""
        caller, _ = self._listening.accept()
        request = _receive_request(caller) if _is_ours(caller) else None
        if request is None:
            caller.close()
        return request

    def _fork(self, request: _Request) -> bool:
        """Fork with what the program needs imported, and return whether this is the new process."""
        program = request.arguments[0]
        _import(LIBRARIES.get(program.partition(".")[0], ()))
        if program in FREQUENT and not self._states:
            self._states = _keep(program)
        process = os.fork()
        if not process:
            return True
        self._running[process] = request.caller
        for stream in request.streams:
            os.close(stream)
        _send(request.caller, process)
        return False

    def _become_program(self, request: _Request) -> None:
        """Make this new process one that its caller could have started."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        for open_socket in (self._listening, *self._running.values()):
            open_socket.close()
        for end in (self._awake, self._wake):
            os.close(end)
        os.chdir(request.folder)
        os.umask(request.umask)
        _become(request.arguments, request.variables, request.streams)
        _import_anew(request.arguments[0], self._states)
        _end_with(request.caller)


def _receive_request(caller: socket.socket) -> _Request | None:
    """Return a caller's request, or None if it is gone or sends something else."""
    caller.settimeout(10)
    try:
        head, ancillary, _, _ = caller.recvmsg(SIZE.size, socket.CMSG_SPACE(3 * 4))
        streams = array.array("i")
        for _, _, data in ancillary:
            streams.frombytes(data)
        (size,) = SIZE.unpack(head)
        message = _read(caller, size)
    except (OSError, struct.error):
        return None
    caller.settimeout(None)
    return _Request(caller, message, list(streams)) if len(message) == size and len(streams) == 3 else None


def _send_statuses(running: dict[int, socket.socket]) -> None:
    """Send the exit status of every program that has ended to its caller."""
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        with running.pop(process) as connected:
            _send(connected, os.waitstatus_to_exitcode(status))


def _send(connected: socket.socket, number: int) -> None:
    try:  # noqa: SIM105
        connected.sendall(SIZE.pack(number))
    except OSError:
        pass  # who asked is gone


def _become(arguments: list[str], variables: list[bytes], streams: list[int]) -> None:
    """Take the caller's environment, streams and module path, and the program's name."""
    import ctypes

    os.environb.clear()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    sys.path[:0] = _path()
    ctypes.CDLL(None).prctl(15, arguments[0].encode()[:15], 0, 0, 0)  # PR_SET_NAME, what top and ps show


def _path() -> list[str]:
    """Return the module path of the environment."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _end_with(connected: socket.socket) -> None:
    """Have SIGTERM sent to this process once its caller is gone, however it ended."""
    import threading

    def watch() -> None:
        try:  # noqa: SIM105
            connected.recv(1)
        except OSError:
            pass  # the caller was killed before it read anything
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
