"""Run programs in forked processes with imported libraries: `python -IS .../prefork_server.py MODULE ARG...`.

Short programs spend most of their time on imports. A server imports the libraries once. For each call, it
forks a process that does what `python -m MODULE ARG...` does, with the caller's folder, environment, standard
streams and signals; the caller ends with the exit status of that process. The process imports this project's
modules again, so that it runs what is on disk. Modules of `FREQUENT_PROGRAMS` stay imported until one of
their files changes. Without a reachable server, such as on another node, the caller executes
`python -m MODULE ARG...` itself.

A server listens on an abstract socket, which has no file (unix(7)), and serves only the user who started it.
It ends when its standard input is closed and its programs have ended. Since the kernel closes that pipe, even
a SIGKILL of the starting process leaves nothing behind. This module is started for every job, so it imports
no other module of this project.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
import sys

TYPE_CHECKING = False  # Importing typing's constant would cost one more import.
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

SERVER_VARIABLE = "RINGSIDE_PREFORK_SERVER"  # environment variable with the name of the server's socket
SERVE = "--serve"
BASIC_LIBRARIES = (
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
ANALYSIS_LIBRARIES = (
    *BASIC_LIBRARIES,
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
# Libraries that the server imports before the first program of a stage begins. A missing name costs only
# time.
LIBRARIES = {
    **dict.fromkeys(("environments", "datasets", "plan", "provenance", "records", "runs"), BASIC_LIBRARIES),
    **dict.fromkeys(
        ("analysis", "comparison", "figures", "network", "prediction", "report"), ANALYSIS_LIBRARIES
    ),
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
FREQUENT_PROGRAMS = ("runs.supervise",)  # A campaign starts hundreds of these.
SCRIPTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # workflow/scripts
NUMBER = struct.Struct("!q")
CREDENTIALS = struct.Struct("3i")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def call_server(server: str, arguments: list[str]) -> int | None:
    """Have the server run a program and return its exit status, or None if the server is unreachable.

    If the server is killed while the program runs, print an error and return EX_TEMPFAIL.
    """
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
        # Block signals until this process knows the program's process ID and can forward them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            connection.sendmsg([NUMBER.pack(len(message))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
            connection.sendall(message)
            process = _receive_number(connection)
        except OSError:
            process = None
        status = None if process is None else _forward_signals(process, connection, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if process is None:
            return None
    if status is None:
        print(
            f"ringside: {arguments[0]}: the prefork server was killed; run the same command again",
            file=sys.stderr,
        )
        return os.EX_TEMPFAIL
    return status if status >= 0 else 128 - status


def _forward_signals(process: int, connection: socket.socket, mask: set[int]) -> int | None:
    """Forward signals to the program until it ends, and return its exit status; None if the server died.

    A handler in Python runs only after the current system call, so a signal right before `select` would wait
    until the program ends. The interpreter writes each signal's number to the wake-up descriptor immediately.
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
            _send_signal(process, number)
    try:
        return _receive_number(connection)
    except OSError:  # the server was killed
        return None


def _send_signal(process: int, number: int) -> None:
    try:  # noqa: SIM105 (contextlib would be one more import)
        os.kill(process, number)
    except ProcessLookupError:
        pass  # The program has just ended.


def _is_ours(connected: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user: anybody can bind a socket's name."""
    _, user, _ = CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    )
    return user == os.getuid()


def _receive_number(connected: socket.socket) -> int | None:
    """Return a number, or None if the other end is gone."""
    received = _read(connected, NUMBER.size)
    return NUMBER.unpack(received)[0] if len(received) == NUMBER.size else None


def _read(connected: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or fewer if the other end is gone."""
    received = b""
    while len(received) < size and (part := connected.recv(size - len(received))):
        received += part
    return received


def main() -> None:
    """Run the program that the arguments name: in a process forked by the server, or else in this one."""
    arguments = sys.argv[1:]
    if arguments[:1] == [SERVE]:
        _serve(int(arguments[1]), arguments[2:])
        return
    server = os.environ.get(SERVER_VARIABLE)
    status = call_server(server, arguments) if server else None
    if status is None:
        os.execv(sys.executable, [sys.executable, "-m", *arguments])  # noqa: S606 (as this module promises)
    sys.exit(status)


# Keeping these objects keeps the pipes to the servers' standard input open.
_servers: list[subprocess.Popen[bytes]] = []


def start_server(
    preloaded: Sequence[str] = (), python: str = sys.executable, variables: Mapping[str, str] | None = None
) -> str:
    """Start a server that ends with this process, and return its name, the value of `SERVER_VARIABLE`.

    Args:
        preloaded: Modules that the server imports immediately.
        python: The server's interpreter.
        variables: The server's environment; None: the environment of this process.
    """
    import secrets
    import subprocess

    name = f"ringside-{os.getpid()}-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen(128)  # Callers can connect now; the server answers once it has started.
        number = listening.fileno()
        _servers.append(
            subprocess.Popen(
                [python, "-P", __file__, SERVE, str(number), *preloaded],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if sys.stderr else subprocess.DEVNULL,  # The caller can have closed stderr.
                pass_fds=[number],
            )
        )
    return name


def _serve(descriptor: int, preloaded: list[str]) -> None:
    """Serve on a listening socket; in a forked process, run the caller's program."""
    import runpy

    _import(preloaded)
    # Each program gets the PYTHONPATH of its caller instead of the server's.
    server_path = {os.path.abspath(entry) for entry in _module_path()}
    sys.path[:] = [entry for entry in sys.path if entry not in server_path]
    arguments = _Server(socket.socket(fileno=descriptor)).serve()
    if arguments is not None:
        sys.argv = arguments
        try:
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if isinstance(ended.code, str):  # Python prints the text and exits with status 1.
                raise
            _exit_at_once(ended.code or 0)
        _exit_at_once(0)


def _exit_at_once(status: int) -> None:
    """Exit after threads, exit handlers and output; tearing down libraries would take a sixth of a second."""
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
            pass  # The program that needs the module reports it.
    gc.collect()
    gc.freeze()  # Collections skip frozen objects, so forked processes keep sharing them.


def _import_frequent_program(program: str) -> dict[str, tuple[int, ...] | None]:
    """Import a program of this project, and return its imported modules with the states of their files.

    The state is None if the file was written during the import or is dated in the future, because a later
    change could go unnoticed.
    """
    import time

    began_ns = time.time_ns()
    sys.path.insert(0, SCRIPTS)
    try:
        __import__(program)
    except Exception:  # noqa: S110
        pass  # The program itself reports the error.
    finally:
        sys.path.remove(SCRIPTS)
    states = {}
    for name, module in sys.modules.items():
        if name != "__main__" and (file := _module_file(module)).startswith(SCRIPTS + os.sep):
            state = _file_state(file)
            states[name] = state if state and max(state[:2]) < began_ns else None
    return states


def _module_file(module: object) -> str:
    return getattr(module, "__file__", None) or ""


def _file_state(file: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)


def _forget_modules(program: str, states: Mapping[str, tuple[int, ...] | None]) -> None:
    """Forget the kept module of the program, so that it runs again; forget all if any file has changed."""
    is_current = sys.path[:1] == [SCRIPTS] and all(
        state is not None and state == _file_state(_module_file(sys.modules[name]))
        for name, state in states.items()
    )
    for name in states:
        if name == program or not is_current:
            del sys.modules[name]


class _Request:
    """The request of a caller: arguments, working folder, umask, environment and standard streams."""

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
        self._module_states: dict[str, tuple[int, ...] | None] = {}  # kept module -> state of its file
        self._awake, self._wake = os.pipe()
        for end in (self._awake, self._wake):
            os.set_blocking(end, False)
        # The server ignores signals to the process group. It ends with the process that started it.
        self._handlers = {signum: signal.signal(signum, signal.SIG_IGN) for signum in FORWARDED}
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def serve(self) -> list[str] | None:
        """Serve until standard input ends and return None; in forked processes, return the arguments."""
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
        """Return the next caller's request; None if the caller is another user, gone, or not one of ours."""
        caller, _ = self._listening.accept()
        request = _receive_request(caller) if _is_ours(caller) else None
        if request is None:
            caller.close()
        return request

    def _fork(self, request: _Request) -> bool:
        """Import the libraries of the program's stage, fork, and return whether this is the new process."""
        program = request.arguments[0]
        _import(LIBRARIES.get(program.partition(".")[0], ()))
        if program in FREQUENT_PROGRAMS and not self._module_states:
            self._module_states = _import_frequent_program(program)
        process = os.fork()
        if not process:
            return True
        self._running[process] = request.caller
        for stream in request.streams:
            os.close(stream)
        _send_number(request.caller, process)
        return False

    def _become_program(self, request: _Request) -> None:
        """Make this new process look like one that its caller has started."""
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
        _adopt_caller(request.arguments, request.variables, request.streams)
        _forget_modules(request.arguments[0], self._module_states)
        _terminate_with_caller(request.caller)


def _receive_request(caller: socket.socket) -> _Request | None:
    """Return a caller's request, or None if the caller is gone or sends something else."""
    caller.settimeout(10)
    try:
        head, ancillary, _, _ = caller.recvmsg(NUMBER.size, socket.CMSG_SPACE(3 * 4))
        streams = array.array("i")
        for _, _, data in ancillary:
            streams.frombytes(data)
        (size,) = NUMBER.unpack(head)
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
            _send_number(connected, os.waitstatus_to_exitcode(status))


def _send_number(connected: socket.socket, number: int) -> None:
    try:  # noqa: SIM105
        connected.sendall(NUMBER.pack(number))
    except OSError:
        pass  # The caller is gone.


def _adopt_caller(arguments: list[str], variables: list[bytes], streams: list[int]) -> None:
    """Take over the caller's environment, streams and module path, and name the process after the program."""
    import ctypes

    os.environb.clear()
    for variable in variables:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    sys.path[:0] = _module_path()
    ctypes.CDLL(None).prctl(15, arguments[0].encode()[:15], 0, 0, 0)  # PR_SET_NAME, what top and ps show


def _module_path() -> list[str]:
    """Return the entries of PYTHONPATH."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _terminate_with_caller(connected: socket.socket) -> None:
    """Send SIGTERM to this process as soon as its caller has ended, even if the caller was killed."""
    import threading

    def watch() -> None:
        try:  # noqa: SIM105
            connected.recv(1)
        except OSError:
            pass  # The caller was killed before it read anything.
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
