"""A program in a forked process behaves as one that `python -m` starts."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common import prefork_server
from common.files import CHECKOUT
from common.shell import capture

pytestmark = pytest.mark.slow

# Short sleeps: Python calls a handler only after the system call before which the signal arrived.
WAITS = "import time; print('began', flush=True)\nfor _ in range(600): time.sleep(0.1)"
REPORT = """
import os, sys
has_home, umask = "HOME" in os.environ, oct(os.umask(0))
print(sys.argv[1:], os.getcwd(), ascii(os.environ.get("TOLD")), has_home, umask, __name__)
print(sys.stdin.read(), file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of modules: programs of a stage."""
    (tmp_path / "stage").mkdir()
    return tmp_path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> str:
    name = prefork_server.start_server()
    monkeypatch.setenv(prefork_server.SERVER_VARIABLE, name)
    return name


def begin(folder: Path, text: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the program stage.program, of this text, in its folder."""
    (folder / "stage" / "program.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, "-IS", prefork_server.__file__, "stage.program", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def parent_of(folder: Path, text: str = "import os; print(os.getppid())") -> int:
    return int(begin(folder, text).communicate()[0])


def begun(folder: Path, text: str) -> tuple[subprocess.Popen[str], int]:
    """A program that has begun to wait, and its process."""
    started = begin(folder, f"import os; print(os.getpid()); {text}")
    assert started.stdout is not None
    process = int(started.stdout.readline())
    assert started.stdout.readline() == "began\n"
    return started, process


def is_gone(process: int, limit_s: float = 10) -> bool:
    deadline = time.monotonic() + limit_s
    while (
        Path(f"/proc/{process}").exists() and "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    ):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("status", [0, 3])
def test_program_gets_arguments_and_returns_its_status(
    folder: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    results = []
    for name in (prefork_server.start_server(), "nobody-listens-there"):
        monkeypatch.setenv(prefork_server.SERVER_VARIABLE, name)
        program = begin(folder, REPORT, str(status), "a b\n'c'", TOLD="x=\udc80y")
        results.append((*program.communicate("what I say"), program.returncode))
    assert results[0] == results[1], "with a server and without"
    assert (
        results[0][0].startswith(f"['{status}', \"a b\\n'c'\"] {folder} 'x=")
        and results[0][1] == "what I say\n"
    )
    assert results[0][2] == status


def test_programs_are_children_of_the_server_and_import_new_code(folder: Path, server: str) -> None:
    parents = {parent_of(folder), parent_of(folder)}
    assert len(parents) == 1 and parents != {os.getpid()}
    other_checkout = folder / "other"
    (other_checkout / "stage").mkdir(parents=True)
    assert begin(other_checkout, "print('another checkout')").communicate()[0] == "another checkout\n"


def test_frequent_program_stays_loaded_until_its_code_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("common", "runs"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    (folder / "common" / "prefork_server.py").write_bytes(Path(prefork_server.__file__).read_bytes())
    helper = folder / "runs" / "helper.py"
    helper.write_text("import os; LOADED_BY, TEXT = os.getpid(), 'one'")
    (folder / "runs" / "supervise.py").write_text(
        "import os, sys; from runs import helper\n"
        "if __name__ == '__main__': print(helper.LOADED_BY == os.getpid(), helper.TEXT, flush=True)"
    )
    time.sleep(0.05)  # longer than the clock of files stands still
    program = "from common import prefork_server; print(prefork_server.start_server(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        monkeypatch.setenv(prefork_server.SERVER_VARIABLE, starter.stdout.readline().strip())

        def output(path: Path) -> str:
            command = [sys.executable, "-IS", prefork_server.__file__, "runs.supervise"]
            environment = {**os.environ, "PYTHONPATH": str(path)}
            done = capture(command, env=environment, check=True)
            assert not done.stderr
            return done.stdout.strip()

        assert [output(folder) for _ in range(2)] == ["False one"] * 2, "loaded by the server"
        before = helper.stat()
        helper.write_text("import os; LOADED_BY, TEXT = os.getpid(), 'two'")
        os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))
        for compiled in folder.rglob("*.pyc"):  # which Python takes for the file of this date and size
            compiled.unlink()
        assert output(folder) == "True two"
        other_checkout = folder / "other"
        shutil.copytree(folder / "runs", other_checkout / "runs")
        assert output(other_checkout) == "True two"
        monkeypatch.delenv("PYTHONPATH", raising=False)
        elsewhere = subprocess.run(
            [sys.executable, "-IS", prefork_server.__file__, "runs.helper"],
            check=False,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert elsewhere.returncode == 1 and "helper" in elsewhere.stderr, (
            "who started the server has another path"
        )
        starter.communicate("\n")


def test_exception_is_printed_as_python_prints_it(folder: Path, server: str) -> None:
    program = begin(folder, "raise ValueError('no luck')")
    assert "ValueError: no luck" in program.communicate()[1] and program.returncode == 1


def test_exit_handlers_of_a_program_run(folder: Path, server: str) -> None:
    text = """
import atexit, sys, threading, time
atexit.register(print, "exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.stdout.write("main ")
sys.exit(4)
"""
    program = begin(folder, text)
    assert program.communicate()[0].split() == ["main", "thread", "exit"] and program.returncode == 4
    program = begin(folder, "import sys; sys.exit('in words')")
    assert program.communicate()[1] == "in words\n" and program.returncode == 1


def test_signal_reaches_the_program_and_its_death_is_reported(folder: Path, server: str) -> None:
    text = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); {WAITS}"
    started, process = begun(folder, text)
    started.send_signal(signal.SIGTERM)
    assert started.wait(10) == 7 and is_gone(process)
    started, process = begun(folder, WAITS)
    os.kill(process, signal.SIGKILL)
    assert started.wait(10) == 128 + signal.SIGKILL


SLOW_CALLER = """
import os, sys, time
from common import prefork_server
received = prefork_server._receive_number
prefork_server._receive_number = lambda connection: time.sleep(1) or received(connection)
arguments = ["stage.program", str(os.getpid())]
sys.exit(prefork_server.call_server(os.environ[prefork_server.SERVER_VARIABLE], arguments))
"""


def test_signal_before_the_caller_knows_the_process_is_forwarded(folder: Path, server: str) -> None:
    (folder / "stage" / "program.py").write_text(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "os.kill(int(sys.argv[1]), signal.SIGTERM)\n"
        "for _ in range(600): time.sleep(0.1)\n"
    )
    done = capture(
        [sys.executable, "-c", SLOW_CALLER],
        env={**os.environ, "PYTHONPATH": f"{folder}:{Path(prefork_server.__file__).parents[1]}"},
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (7, "")


def test_program_ends_with_caller_that_never_learned_its_pid(folder: Path, server: str) -> None:
    note = folder / "process"
    (folder / "stage" / "program.py").write_text(
        "import os, sys, time\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "for _ in range(600): time.sleep(0.1)\n"
    )
    caller = (
        "import os; from common import prefork_server; prefork_server._receive_number = lambda _: "
        "__import__('time').sleep(1) or os._exit(0); "
        f"prefork_server.call_server(os.environ[prefork_server.SERVER_VARIABLE], ['stage.program', {str(note)!r}])"
    )
    scripts = str(Path(prefork_server.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", caller],
        env={**os.environ, "PYTHONPATH": f"{folder}:{scripts}"},
        check=True,
        timeout=30,
    )
    deadline = time.monotonic() + 10
    while not note.exists() or not note.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert is_gone(int(note.read_text()))


def test_program_ends_with_its_caller(folder: Path, server: str) -> None:
    started, process = begun(folder, WAITS)
    started.kill()
    assert is_gone(process)


STARTS = (
    "import sys, time; from common import prefork_server; print(prefork_server.start_server(), flush=True); "
    "time.sleep(60)"
)


def test_server_ends_with_its_parent_after_its_programs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = str(CHECKOUT / "workflow" / "scripts")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS],
        env={**os.environ, "PYTHONPATH": scripts},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    monkeypatch.setenv(prefork_server.SERVER_VARIABLE, starter.stdout.readline().strip())
    serving = parent_of(folder)
    started, _ = begun(folder, "import time; print('began', flush=True); time.sleep(1); print('ended')")
    starter.kill()
    starter.wait()
    assert started.communicate()[0] == "ended\n" and started.returncode == 0
    assert is_gone(serving)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_not_served(folder: Path, server: str) -> None:
    serving = parent_of(folder)
    program = (
        f"import os, sys; sys.path.insert(0, {str(Path(prefork_server.__file__).parents[1])!r}); from "
        "common import prefork_server; os.setuid(65534); "
        "print(prefork_server.call_server(os.environ[prefork_server.SERVER_VARIABLE], ['stage.program']))"
    )
    done = capture([sys.executable, "-c", program], check=True)
    assert done.stdout == "None\n"
    assert parent_of(folder) == serving, "it serves on"
