"""Launchers start every rank on its node, report the first failure, and leave no process behind.

Outputs of Slurm, Flux 0.88 and OpenPBS 23.06 are recorded; tests/cluster runs real Slurm. Scripts replace oarsh and
pbs_tmrsh. They run the command on this machine in a new session, like a login on a node.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common import shell
from common.errors import InputError
from common.notes import Note
from common.program_sources import SCRIPTS
from common.run_status import RunStatus
from common.shell import INACCESSIBLE, INACCESSIBLE_STATUS, Program
from declared.site import Site, load_site
from launchers import launch, processes
from launchers import slurm as slurm_launcher
from launchers.oom_evidence import FACTS
from launchers.protocol import AttemptLost, Launcher, Outcome
from launchers.slurm import Slurm
from launchers.variables import rank_variables

pytestmark = pytest.mark.slow

RANK = """\
import json, os, sys, time
from pathlib import Path
rank = int(os.environ["RINGSIDE_RANK"])
names = (
    "RINGSIDE_LOCAL_RANK", "RINGSIDE_CORES", "OMP_NUM_THREADS", "ON_HOST", "FROM_SETUP", "SECRET",
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
)
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps({name: os.environ.get(name) for name in names}))
def wait_for_all():
    while len(list(Path(sys.argv[1]).glob("rank*.json"))) < int(os.environ["RANKS"]):
        time.sleep(0.01)
"""
OARSH = """\
#!/bin/sh
host=$1; shift
ON_HOST=$host exec setsid --wait sh -c "$*"
"""
OARSTAT = """\
#!/bin/sh
echo "Job_Id: $2"
echo "    state = {state}"
"""
TMRSH = """\
#!/bin/sh
host=$1; shift
ON_HOST=$host exec setsid --wait "$@" > /dev/null 2>&1
"""
QSTAT = """\
#!/bin/sh
echo "Job Id: $2"
echo "    Job_Name = ringside"
echo "    job_state = {state}"
echo "    substate = 42"
"""
FLUX = """\
#!/bin/sh
cd {folder}
echo "$*" >> calls
case "$*" in
    "resource list "*) cat up ;;
    "hostlist "*) printf 'node1 node2 node3\\n' | head -c "$(cat hostlist_bytes)" ;;
    "getattr size") echo 3 ;;
    "submit "*) echo f3PcqrF1 ;;
    "job wait-event "*) ;;
    *--path=exec*) cat exec.json ;;
    "job eventlog "*) cat events.json ;;
    "job attach "*) exit 3 ;;
    "--parent jobs "*status*) cat state ;;
    "--parent jobs "*) echo "fpEk7nF 1795557901.665 1795557901.692" ;;
esac
"""
START = '{"timestamp":1795557157.857364,"name":"start"}'
TASK = (
    '{"timestamp":1795557157.913838,"name":"shell.task-exit","context":{"localid":0,"rank":1,"state":"Exited",'
    '"pid":14366,"wait_status":%d,"signaled":%d,"exitcode":%d}}'
)
EXCEPTION = '{"timestamp":1795557176.066580,"name":"exception","context":{"type":"%s","severity":0,"userid":0,"note":"%s"}}'
JOB = (
    "JobId=17 JobName=ringside UserId=u(1000) GroupId=u(1000) MCS_label=N/A JobState=RUNNING Reason=None "
    "Dependency=(null) SubmitTime=2026-01-05T10:00:00 EligibleTime=2026-01-05T10:00:00 "
    "StartTime=2026-01-05T11:30:00 EndTime=2026-01-05T12:00:00 Partition=virtual AllocNode:Sid=login:1 "
    "ReqNodeList=(null) ExcNodeList=(null) NodeList=node[1-3] BatchHost=node1 NumNodes=3 NumCPUs=3 "
    "NumTasks=3 CPUs/Task=1"
)
SCONTROL = f"""\
#!/bin/sh
case "$2" in
    job) echo "{JOB}" ;;
    hostnames) printf 'node1\\nnode2\\nnode3\\n' ;;
esac
"""


@pytest.fixture
def put_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A function that puts a script on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def put(name: str, text: str) -> None:
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

    return put


def spec(nodes: int, ranks_per_node: int) -> dict[str, Any]:
    return {
        "run_id": "a.b.r1", "nodes": nodes, "ranks": nodes * ranks_per_node, "ranks_per_node": ranks_per_node,
        "device": "cpu", "cores": 2, "cores_per_rank": 1,
    }  # fmt: skip


@pytest.fixture
def oar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_program: Callable[[str, str], None]) -> Site:
    """A site inside an OAR job on three nodes with two cores each."""
    put_program("oarsh", OARSH)
    put_program("oarstat", OARSTAT.format(state="Running"))
    (tmp_path / "nodes").write_text("gros-1\ngros-1\ngros-2\ngros-2\ngros-3\ngros-3\n")
    monkeypatch.setenv("OAR_NODEFILE", str(tmp_path / "nodes"))
    monkeypatch.setenv("OAR_JOB_ID", "4711")
    return replace(load_site("grid5000"), time_limit_s=60.0, setup=())


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_program: Callable[[str, str], None]) -> Site:
    """A site inside a PBS job on three nodes."""
    put_program("pbs_tmrsh", TMRSH)
    put_program("qstat", QSTAT.format(state="R"))
    (tmp_path / "nodes").write_text("gros-1\ngros-1\ngros-2\ngros-2\ngros-3\ngros-3\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    monkeypatch.setenv("PBS_JOBID", "4711.head")
    return replace(load_site("pbs-example"), time_limit_s=60.0)


@pytest.fixture
def flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_program: Callable[[str, str], None]) -> Path:
    """A Flux instance on three nodes: the folder of its answers and calls."""
    put_program("flux", FLUX.format(folder=tmp_path))
    for name, text in {
        "up": "node[1-3]\n", "hostlist_bytes": "17", "state": "RUN\n", "events.json": f"{START}\n",
        "exec.json": TASK % (768, 0, 3) + "\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("FLUX_URI", "local:///tmp/flux-aSfECC/local-0")
    monkeypatch.setenv("FLUX_ENCLOSING_ID", "ƒpEk7nF")
    return tmp_path


def run(site: Site, folder: Path, body: str, nodes: int = 2, ranks_per_node: int = 2) -> Outcome:
    """Run ranks that write their variables to a file and then run `body`."""
    planned = spec(nodes, ranks_per_node)
    folder.mkdir(exist_ok=True)
    (folder / "rank.py").write_text(RANK + body)
    variables = {"PYTHONPATH": str(folder), "RANKS": str(planned["ranks"])}
    environment = {"python": {"executable": sys.executable}, "variables": variables}
    return launch.run_ranks(
        launch.make_launcher(site, planned), environment, folder, planned, site, program="rank"
    )


def rank_environments(folder: Path) -> dict[int, dict[str, str | None]]:
    return {int(path.stem[4:]): json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))}


def find_processes(folder: Path) -> list[str]:
    """Return the command lines of all processes that name the attempt."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            commands.append(command)
    return commands


def code_and_facts(reason: Note | None) -> tuple[str, dict[str, Any]]:
    """Return code and facts of a reason."""
    assert reason is not None
    return reason.code, dict(reason.facts)


def failure(rank: int, host: str | None, status: int | None) -> tuple[str, dict[str, Any]]:
    """Return code and facts of a failed rank."""
    return "rank-failed", {"rank": rank, "host": host, "exit_status": status}


def oom_reason(rank: int | None, host: str | None) -> tuple[str, dict[str, Any]]:
    """Return code and facts of a rank that the scheduler killed because memory ran out."""
    return "out-of-memory", {**dict.fromkeys(FACTS), "place": "host", "rank": rank, "host": host}


def all_ended(folder: Path) -> bool:
    end = time.monotonic() + 10  # the kernel needs a moment to remove killed processes
    while find_processes(folder) and time.monotonic() < end:
        time.sleep(0.05)
    return not find_processes(folder)


def test_oar_starts_every_rank_on_its_node(
    oar: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the caller")
    folder = tmp_path / "attempt 1"
    site = replace(oar, setup=("export FROM_SETUP='a module'",))
    outcome = run(site, folder, "wait_for_all()")
    assert (outcome.status, outcome.reason) == ("ok", None), (folder / "log.txt").read_text()
    seen = rank_environments(folder)
    assert [(variables["ON_HOST"], variables["RINGSIDE_LOCAL_RANK"]) for variables in seen.values()] == [
        ("gros-1", "0"), ("gros-1", "1"), ("gros-2", "0"), ("gros-2", "1"),
    ]  # fmt: skip
    assert {variables["OMP_NUM_THREADS"] for variables in seen.values()} == {"1"}
    assert {(variables["FROM_SETUP"], variables["SECRET"]) for variables in seen.values()} == {
        ("a module", None)
    }
    ranks = launch.make_launcher(oar, spec(2, 2))
    assert ranks.hosts == ["gros-1", "gros-2"] and ranks.job is not None and ranks.job["number"] == "4711"
    assert all_ended(folder)


def test_local_ranks_have_disjoint_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {4, 5, 8, 9})
    folder = tmp_path / "attempt-1"
    outcome = run(
        replace(load_site("local"), time_limit_s=60.0), folder, "wait_for_all()", nodes=2, ranks_per_node=1
    )
    assert outcome.status == "ok"
    assert [(variables["RINGSIDE_LOCAL_RANK"], variables["RINGSIDE_CORES"]) for variables in rank_environments(folder).values()] == [
        ("0", "4"), ("0", "5"),
    ]  # fmt: skip


def test_local_ranks_see_the_visible_accelerators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visible = {"CUDA_VISIBLE_DEVICES": "1,3", "ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": None}
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    for name, value in visible.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    site = replace(load_site("local"), time_limit_s=60.0)
    assert run(site, tmp_path / "attempt-1", "wait_for_all()", ranks_per_node=1).status == "ok"
    seen = rank_environments(tmp_path / "attempt-1").values()
    assert seen and all({name: variables[name] for name in visible} == visible for variables in seen)


@pytest.mark.parametrize("name", ["oar", "pbs", "local"])
def test_only_the_owner_sees_values_of_variables(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    site: Site = load_site("local") if name == "local" else request.getfixturevalue(name)
    value = "tok\"en'; $(id) \\ é\nsecond line"
    site = replace(site, time_limit_s=60.0, variables=(("SECRET", value),))
    inspect = """
import stat
file = Path(sys.argv[1], ".variables.sh")
modes = [oct(stat.S_IMODE(file.stat().st_mode)), str(file.stat().st_uid == os.getuid())]
everything = b"".join(p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists())
Path(sys.argv[1], f"seen{rank}").write_text(json.dumps([*modes, b"tok" + b'"en' in everything]))
wait_for_all()
"""
    folder = tmp_path / "attempt-1"
    assert run(site, folder, inspect).status == "ok", (folder / "log.txt").read_text()
    assert {variables["SECRET"] for variables in rank_environments(folder).values()} == {value}
    assert [json.loads(file.read_text()) for file in folder.glob("seen*")] == [["0o600", "True", False]] * 4
    assert not (folder / ".variables.sh").exists()


@pytest.mark.parametrize("name", ["oar", "pbs"])
def test_node_without_a_path_loses_the_attempt(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, put_program: Callable[[str, str], None]
) -> None:
    put_program("sleep", "#!/bin/sh\n")  # the check of paths waits between its tries
    site: Site = request.getfixturevalue(name)
    folder, planned = tmp_path / "attempt-1", spec(2, 1)
    folder.mkdir()
    environment = {"python": {"executable": str(tmp_path / "no" / "python")}, "variables": {}}
    with pytest.raises(AttemptLost) as lost:
        launch.run_ranks(launch.make_launcher(site, planned), environment, folder, planned, site)
    assert lost.value.reason.code == "inaccessible"
    if name == "oar":  # oarsh also returns the message of a rank's node
        assert lost.value.reason.facts == {
            "node": os.uname().nodename,
            "path": str(tmp_path / "no" / "python"),
        }
    else:
        assert lost.value.reason.facts["node"] in ("gros-1", "gros-2")
    assert not (folder / ".variables.sh").exists() and all_ended(folder)


def test_processes_in_other_sessions_are_ended(tmp_path: Path) -> None:
    site, folder = replace(load_site("local"), time_limit_s=60.0), tmp_path / "attempt-1"
    leave = """
import subprocess
left = subprocess.Popen(["sh", "-c", "sleep 300; echo " + sys.argv[1]], start_new_session=True)
wait_for_all()
"""
    assert run(site, folder, leave, ranks_per_node=1).status == "ok"
    assert all_ended(folder)


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A control group of version 1: its frozen processes cannot be killed."""
    group = Path(f"/sys/fs/cgroup/freezer/ringside-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no such control group can be made here")
    yield group
    (group / "freezer.state").write_text("THAWED")
    end = time.monotonic() + 10
    while group.exists() and time.monotonic() < end:
        with contextlib.suppress(OSError):
            group.rmdir()


def test_ranks_that_cannot_be_killed_lose_the_attempt(
    freezer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "KILL_TIMEOUT_S", 0.5)
    freeze = f"""
Path("{freezer}/cgroup.procs").write_text(str(os.getpid()))
Path("{freezer}/freezer.state").write_text("FROZEN")
"""
    site = replace(load_site("local"), time_limit_s=1.0)
    with pytest.raises(AttemptLost) as lost:
        run(site, tmp_path / "attempt-1", freeze, nodes=1, ranks_per_node=1)
    assert lost.value.reason.code == "does-not-end"


@pytest.fixture(params=["oar", "pbs", "local"])
def any_site(request: pytest.FixtureRequest) -> Site:
    """A site that starts ranks on this machine."""
    if request.param != "local":
        site: Site = request.getfixturevalue(request.param)
        return site
    return replace(load_site("local"), time_limit_s=60.0)


def test_failed_rank_is_named_and_the_others_are_killed(
    any_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.2)
    folder = tmp_path / "attempt-1"
    outcome = run(
        any_site, folder, "wait_for_all()\nif rank == 1:\n    sys.exit(3)\ntime.sleep(300)", ranks_per_node=1
    )
    host = "gros-2" if any_site.launcher != "local" else None
    assert outcome.status == "failed" and code_and_facts(outcome.reason) == failure(1, host, 3)
    assert all_ended(folder)


def test_ranks_over_the_time_limit_are_ended(any_site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "attempt-1"
    body = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwait_for_all()\ntime.sleep(300)"
    outcome = run(replace(any_site, time_limit_s=3.0), folder, body)
    assert outcome.status == "timeout" and code_and_facts(outcome.reason) == (
        "time-limit",
        {"time_limit_s": 3.0},
    )
    assert all_ended(folder)


def test_rank_without_its_connection_is_killed(
    oar: Site, tmp_path: Path, put_program: Callable[[str, str], None]
) -> None:
    put_program("oarsh", OARSH.replace("exec setsid --wait", "timeout 2 setsid --wait"))
    folder = tmp_path / "attempt-1"
    outcome = run(oar, folder, "time.sleep(300)", ranks_per_node=1)
    assert outcome.status == "failed", "its oarsh ended although the rank had not"
    assert all_ended(folder)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("ssh: connect to host gros-2 port 6667: No route to host", 255),
        ("Connection to gros-2 closed by remote host.", 255),
        ("client_loop: send disconnect: Broken pipe", 255),
        ("Timeout, server gros-2 not responding.", 255),
        ("oarsh: Cannot find cpuset file : /dev/cpuset/oar/user_4711/tasks", 61),
    ],
)
def test_unreachable_node_loses_the_attempt(
    oar: Site, tmp_path: Path, put_program: Callable[[str, str], None], message: str, status: int
) -> None:
    put_program("oarsh", f'#!/bin/sh\n[ "$1" = gros-1 ] && exit 0\necho "{message}" >&2\nexit {status}\n')
    with pytest.raises(AttemptLost) as lost:
        run(oar, tmp_path / "attempt-1", "", ranks_per_node=1)
    assert code_and_facts(lost.value.reason) == ("node-unreachable", {"rank": 1, "host": "gros-2"})
    assert message in str(lost.value)


def test_a_rank_that_is_killed_on_its_node_is_a_failure(
    oar: Site, tmp_path: Path, put_program: Callable[[str, str], None]
) -> None:
    put_program("oarsh", "#!/bin/sh\nexit 255\n")  # as ssh does if the remote process was killed
    outcome = run(oar, tmp_path / "attempt-1", "", ranks_per_node=1)
    seen_first = [failure(rank, f"gros-{rank + 1}", 255) for rank in (0, 1)]
    assert outcome.status == "failed" and code_and_facts(outcome.reason) in seen_first


@pytest.mark.parametrize("end", ["kill -TERM $$", "exit 143", "kill -KILL $$"])
def test_only_ranks_that_the_scheduler_terminates_are_lost(
    oar: Site, tmp_path: Path, put_program: Callable[[str, str], None], end: str
) -> None:
    put_program("oarsh", f"#!/bin/sh\n{end}\n")
    if end == "kill -KILL $$":
        assert run(oar, tmp_path / "attempt-1", "", ranks_per_node=1).status == "failed"
        return
    with pytest.raises(AttemptLost) as lost:
        run(oar, tmp_path / "attempt-1", "", ranks_per_node=1)
    assert lost.value.reason.code == "ranks-terminated" and lost.value.reason.facts["rank"] in (0, 1)


def test_rank_killed_beside_a_live_peer_is_not_lost(
    oar: Site, tmp_path: Path, put_program: Callable[[str, str], None]
) -> None:
    peer_error = "RuntimeError: [gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.2]:5122"
    put_program("oarsh", f'#!/bin/sh\n[ "$1" = gros-1 ] && {{ echo "{peer_error}"; exit 1; }}\nexit 255\n')
    assert run(oar, tmp_path / "attempt-1", "", ranks_per_node=1).status == "failed"


@pytest.mark.parametrize("state", ["Finishing", "Error", "Terminated", "toError"])
def test_end_of_the_job_loses_the_attempt(
    oar: Site, tmp_path: Path, put_program: Callable[[str, str], None], state: str
) -> None:
    put_program("oarsh", "#!/bin/sh\nexit 137\n")
    put_program("oarstat", OARSTAT.format(state=state))
    with pytest.raises(AttemptLost) as lost:
        run(oar, tmp_path / "attempt-1", "", ranks_per_node=1)
    assert code_and_facts(lost.value.reason) == ("job-ended", {"job": "4711", "state": state})


@pytest.mark.parametrize(("state", "code"), [("Running", "time-limit"), ("Error", "job-ended")])
def test_job_that_is_gone_at_the_time_limit_loses_the_attempt(
    oar: Site, tmp_path: Path, put_program: Callable[[str, str], None], state: str, code: str
) -> None:
    put_program("oarstat", OARSTAT.format(state=state))
    folder, limited = tmp_path / "attempt-1", replace(oar, time_limit_s=0.5)
    if state == "Running":
        outcome = run(limited, folder, "time.sleep(300)", ranks_per_node=1)
        assert outcome.status == "timeout" and code_and_facts(outcome.reason) == (code, {"time_limit_s": 0.5})
    else:
        with pytest.raises(AttemptLost) as lost:
            run(limited, folder, "time.sleep(300)", ranks_per_node=1)
        assert lost.value.reason.code == code
    assert all_ended(folder)


def test_mpirun_has_all_interfaces_of_the_site(
    oar: Site, tmp_path: Path, put_program: Callable[[str, str], None]
) -> None:
    put_program("mpirun", f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/arguments\n")
    site, planned, folder = replace(oar, interface="eno1,eno2"), spec(2, 1), tmp_path / "attempt-1"
    folder.mkdir()
    environment = {"python": {"executable": sys.executable}, "variables": {}}
    launch.run_ranks(launch.make_launcher(site, planned, mpi=True), environment, folder, planned, site)
    arguments = (tmp_path / "arguments").read_text().split("\n")
    assert arguments[arguments.index("oob_tcp_if_include") + 1] == "eno1,eno2"
    assert arguments[arguments.index("--host") + 1] == "gros-1:1,gros-2:1"


def test_missing_mpirun_fails_with_one_line(oar: Site, tmp_path: Path) -> None:
    """With one: tests/cluster/test_oar.py."""
    (tmp_path / "programs").mkdir()
    for name in ("sh", "env"):
        (tmp_path / "programs" / name).symlink_to(f"/usr/bin/{name}")
    environment = {
        "python": {"executable": sys.executable},
        "variables": {"PATH": str(tmp_path / "programs")},
    }
    folder, planned = tmp_path / "attempt-1", spec(2, 1)
    folder.mkdir()
    outcome = launch.run_ranks(
        launch.make_launcher(oar, planned, mpi=True), environment, folder, planned, oar, program="rank"
    )
    assert outcome.status == "failed"
    assert code_and_facts(outcome.reason) == ("starter-failed", {"program": "mpirun", "exit_status": 1})
    (line,) = (folder / "log.txt").read_text().splitlines()
    assert line.startswith("Error: ") and "mpirun" in line


def test_launchers_need_a_job_with_enough_nodes(oar: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as refused:
        launch.make_launcher(oar, spec(4, 1))
    assert (refused.value.code, refused.value.got) == ("too-few-nodes", 3)
    assert refused.value.file == os.environ["OAR_NODEFILE"]
    for variable, site, name in (
        ("OAR_NODEFILE", oar, "grid5000"),
        ("PBS_NODEFILE", load_site("pbs-example"), "pbs-example"),
        ("FLUX_URI", load_site("flux-example"), "flux-example"),
        ("SLURM_JOB_ID", load_site("virtual"), "virtual"),
    ):
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(InputError) as refused:
            launch.make_launcher(site, spec(2, 1))
        error = refused.value
        assert (error.code, error.key, error.got) == ("outside-of-job", "launcher", site.launcher)
        assert error.file == f"config/sites/{name}.yaml" and "snakemake --profile " in error.hint


def test_pbs_starts_every_rank_and_gathers_their_logs(pbs: Site, tmp_path: Path) -> None:
    folder = tmp_path / "attempt 1"
    outcome = run(pbs, folder, "wait_for_all()\nprint('output of', rank)")
    log = (folder / "log.txt").read_text()
    assert (outcome.status, outcome.reason) == ("ok", None), log
    assert [(variables["ON_HOST"], variables["RINGSIDE_LOCAL_RANK"]) for variables in rank_environments(folder).values()] == [
        ("gros-1", "0"), ("gros-1", "1"), ("gros-2", "0"), ("gros-2", "1"),
    ]  # fmt: skip
    assert log.splitlines() == [f"output of {rank}" for rank in range(4)]
    assert not list(folder.glob("log-*")) and all_ended(folder)
    ranks = launch.make_launcher(pbs, spec(2, 2))
    assert (
        ranks.hosts == ["gros-1", "gros-2"] and ranks.job is not None and ranks.job["number"] == "4711.head"
    )


@pytest.mark.parametrize(
    "message", ["=>> PBS: job killed: mem 4194304kb exceeded limit 2097152kb", "Cgroup mem limit exceeded"]
)
def test_rank_that_pbs_kills_for_memory_is_oom(pbs: Site, tmp_path: Path, message: str) -> None:
    body = f"print({message!r}, flush=True)\nos.kill(os.getpid(), 9) if rank == 1 else None"
    outcome = run(pbs, tmp_path / "attempt-1", body, ranks_per_node=1)
    assert outcome.status == "oom" and outcome.reason is not None
    assert (outcome.reason.code, dict(outcome.reason.facts)) == oom_reason(1, "gros-2")


def test_task_that_pbs_cannot_start_loses_the_attempt(
    pbs: Site, tmp_path: Path, put_program: Callable[[str, str], None]
) -> None:
    message = 'pbs_tmrsh: tm_poll(spawn): host "gros-2" err TM_ESYSTEM 17000'
    put_program("pbs_tmrsh", f"#!/bin/sh\n[ $1 = gros-1 ] && exit 0\necho '{message}' >&2\nexit 255\n")
    with pytest.raises(AttemptLost) as lost:
        run(pbs, tmp_path / "attempt-1", "", ranks_per_node=1)
    assert code_and_facts(lost.value.reason) == (
        "node-unreachable",
        {"job": "4711.head", "hosts": ["gros-2"]},
    )
    first = lost.value.__context__
    assert isinstance(first, AttemptLost) and message in str(first)
    assert code_and_facts(first.reason) == ("node-unreachable", {"rank": 1, "host": "gros-2"})


def test_silent_death_of_a_node_loses_the_attempt(
    pbs: Site, tmp_path: Path, put_program: Callable[[str, str], None]
) -> None:
    """The task manager waits for a dead node. Only an attempt to kill its ranks shows that it is gone."""
    put_program("pbs_tmrsh", TMRSH.replace("shift", "shift; [ $1$host = pkillgros-2 ] && exit 255"))
    with pytest.raises(AttemptLost) as lost:
        run(replace(pbs, time_limit_s=1.0), tmp_path / "attempt-1", "time.sleep(4)", ranks_per_node=1)
    assert code_and_facts(lost.value.reason) == (
        "node-unreachable",
        {"job": "4711.head", "hosts": ["gros-2"]},
    )


@pytest.mark.parametrize("state", ["E", "F"])
def test_end_of_the_pbs_job_loses_the_attempt(
    pbs: Site, tmp_path: Path, put_program: Callable[[str, str], None], state: str
) -> None:
    put_program("qstat", QSTAT.format(state=state))
    with pytest.raises(AttemptLost) as lost:
        run(pbs, tmp_path / "attempt-1", "sys.exit(9)", ranks_per_node=1)
    assert code_and_facts(lost.value.reason) == ("job-ended", {"job": "4711.head", "state": state})


def flux_launcher() -> Launcher:
    return launch.make_launcher(replace(load_site("flux-example"), setup=()), spec(2, 1))


def test_flux_gets_the_geometry_of_the_run(flux: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = flux_launcher()
    assert ranks.hosts == ["node1", "node2"]
    assert ranks.job == {
        "number": "fpEk7nF", "submitted_at": "2026-11-24T22:05:01.665Z",
        "started_at": "2026-11-24T22:05:01.692Z",
    }  # fmt: skip
    monkeypatch.delenv("FLUX_ENCLOSING_ID")
    alone = launch.make_launcher(load_site("flux-example"), spec(3, 1))
    assert alone.job is not None and isinstance(alone.job["number"], str)
    program = Program(["python", "-m", "rank", "/attempt"], flux / "variables.sh")
    (process,) = ranks.start(program, flux / "log.txt")
    assert process.wait() == 3 and code_and_facts(ranks.explain([3], flux / "log.txt")) == failure(
        1, "node2", 3
    )
    ranks.kill_ranks()
    calls = (flux / "calls").read_text()
    assert (
        "submit --job-name=ringside-a.b.r1 --nodes=2 --ntasks=2 --cores-per-task=1 "
        "--requires=host:node1,node2"
    ) in calls
    assert "job kill --signal=SIGKILL f3PcqrF1\njob wait-event --timeout=10 f3PcqrF1 clean\n" in calls


@pytest.mark.parametrize(
    ("device", "replicas", "expected"),
    [("cpu", 1, []), ("cuda", 1, ["--gpus-per-task=1"]), ("cuda", 4, ["--gpus-per-task=4"])],
)
def test_flux_gives_a_rank_a_gpu_for_each_replica(
    flux: Path, device: str, replicas: int, expected: list[str]
) -> None:
    site = replace(load_site("flux-example"), setup=(), device="cuda", devices_per_node=4)
    run_spec = {**spec(1, 1), "device": device, "replicas_per_rank": replicas}
    ranks = launch.make_launcher(site, run_spec)
    ranks.start(Program(["true"], flux / "none"), flux / "log.txt")
    ranks.kill_ranks()
    (submit,) = [call for call in (flux / "calls").read_text().splitlines() if call.startswith("submit ")]
    assert [word for word in submit.split() if "gpus" in word] == expected


@pytest.mark.parametrize(
    ("events", "state", "message", "facts"),
    [
        (EXCEPTION % ("exec", "node failure on node3 (rank 2)"), "RUN", "node failure on node3 (rank 2)",
         {"type": "exec"}),
        (EXCEPTION % ("cancel", ""), "RUN", "cancel", {"type": "cancel"}),
        (START, "CLEANUP", "CLEANUP", {"job": "fpEk7nF", "state": "CLEANUP"}),
    ],
)  # fmt: skip
def test_lost_node_or_instance_of_flux_loses_the_attempt(
    flux: Path, events: str, state: str, message: str, facts: dict[str, str]
) -> None:
    ranks = flux_launcher()
    ranks.start(Program(["true"], flux / "none"), flux / "log.txt")
    (flux / "events.json").write_text(f"{START}\n{events}\n")
    (flux / "state").write_text(state)
    with pytest.raises(AttemptLost) as lost:
        ranks.raise_if_lost(flux / "log.txt")
    assert code_and_facts(lost.value.reason) == ("flux-exception" if "type" in facts else "job-ended", facts)
    assert message in str(lost.value)
    ranks.kill_ranks()


def test_a_task_that_flux_saw_killed_is_a_failure(flux: Path) -> None:
    note = "bash: task rank 1 on host node2 exited (Killed) and exit-timeout=10s has expired"
    ranks = flux_launcher()
    ranks.start(Program(["true"], flux / "none"), flux / "log.txt")
    (flux / "events.json").write_text(f"{START}\n{EXCEPTION % ('exec', note)}\n")
    ranks.raise_if_lost(flux / "log.txt")
    (flux / "exec.json").write_text(TASK % (9, 9, 137) + "\n")
    assert code_and_facts(ranks.explain([137], flux / "log.txt")) == failure(1, "node2", -9)
    (flux / "exec.json").write_text("")
    assert ranks.explain([137], flux / "log.txt") == note
    ranks.kill_ranks()


def test_ranks_that_flux_does_not_start_lose_the_attempt(flux: Path) -> None:
    note = "unsatisfiable request: need 2 node(s) with 100 cores each, only 0 eligible"
    (flux / "events.json").write_text(EXCEPTION % ("alloc", note) + "\n")
    ranks = flux_launcher()
    with pytest.raises(AttemptLost) as lost:
        ranks.start(Program(["true"], flux / "none"), flux / "log.txt")
    assert str(lost.value) == note


def test_down_nodes_lose_the_attempt_and_too_few_are_refused(flux: Path) -> None:
    (flux / "hostlist_bytes").write_text("5")
    with pytest.raises(AttemptLost) as lost:
        flux_launcher()
    assert code_and_facts(lost.value.reason) == ("nodes-down", {"up": ["node1"], "needed": 2})
    with pytest.raises(InputError) as refused:
        launch.make_launcher(load_site("flux-example"), spec(4, 1))
    assert (refused.value.code, refused.value.file) == ("too-few-nodes", "flux resource list")


def slurm_site() -> Site:
    """Return a Slurm site whose network is not shaped."""
    return replace(load_site("virtual"), placement="distinct-nodes")


@pytest.fixture
def slurm(put_program: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """The launcher inside a Slurm job on three nodes."""
    put_program("scontrol", SCONTROL)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    return launch.make_launcher(slurm_site(), spec(2, 1))


@pytest.fixture(autouse=True)
def own_time_zone() -> Any:
    """Restore this machine's time zone."""
    yield
    time.tzset()


def test_a_slurm_job_is_read_as_slurm_describes_it(slurm: Launcher) -> None:
    assert isinstance(slurm, Slurm) and slurm.hosts == ["node1", "node2"]
    assert slurm.job == {
        "number": "17", "submitted_at": "2026-01-05T09:00:00.000Z", "started_at": "2026-01-05T10:30:00.000Z",
    }  # fmt: skip
    with pytest.raises(InputError) as refused:
        launch.make_launcher(slurm_site(), spec(4, 1))
    assert (refused.value.code, refused.value.file, refused.value.got) == ("too-few-nodes", "Slurm job 17", 3)


def test_measurement_before_a_run_has_its_own_step(slurm: Launcher) -> None:
    """Slurm's accounting finds the energy of a step by its name."""
    step = launch.make_step_launcher(slurm_site(), spec(2, 1), {}, "idle")
    assert isinstance(slurm, Slurm) and isinstance(step, Slurm)
    assert (slurm.name, step.name) == ("ringside-a.b.r1", "ringside-idle.a.b.r1")


@pytest.mark.parametrize(
    "description",
    [JOB.replace("StartTime=2026-01-05T11:30:00", "StartTime=Unknown"), "JobId=17 JobName=ringside", ""],
)
def test_job_that_slurm_does_not_describe_loses_the_attempt(
    slurm: Launcher, put_program: Callable[[str, str], None], description: str
) -> None:
    put_program("scontrol", SCONTROL.replace(JOB, description))
    with pytest.raises(AttemptLost) as lost:
        launch.make_launcher(slurm_site(), spec(2, 1))
    assert lost.value.reason.code == "scheduler-silent"


def test_state_that_slurm_does_not_report_loses_the_attempt(
    slurm: Launcher, put_program: Callable[[str, str], None], tmp_path: Path
) -> None:
    put_program("scontrol", SCONTROL.replace("JobState=RUNNING", "JobState"))
    with pytest.raises(AttemptLost) as lost:
        slurm.raise_if_lost(tmp_path / "log.txt")
    assert lost.value.reason.code == "scheduler-silent"


def test_comment_of_a_job_is_not_read_as_a_field(
    slurm: Launcher, put_program: Callable[[str, str], None]
) -> None:
    put_program("scontrol", SCONTROL.replace(JOB, f"{JOB} Comment=as NodeList=node9 StartTime=never"))
    assert launch.make_launcher(slurm_site(), spec(2, 1)).job == slurm.job


@pytest.mark.parametrize(
    ("message", "stands"),
    [
        (["srun: error: node2: task 1: Killed"], failure(1, "node2", -9)),
        (["srun: error: node2: task 1: Exited with exit code 3"],
         failure(1, "node2", 3)),
        (["srun: error: node2: tasks 1-2: Exited with exit code 1"],
         failure(1, "node2", 1)),
        (["srun: error: node[1-2]: tasks 0-1: Exited with exit code 1"],
         failure(0, "node[1-2]", 1)),
        (
            [
                (
                    "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=17.0. Some of your processes "
                    "may have been killed."
                ),
                "srun: error: node2: task 1: Out Of Memory",
                "srun: Terminating StepId=17.0",
                "srun: error: node1: task 0: Killed",
            ],
            oom_reason(1, "node2"),
        ),
        (
            [
                "[2026-09-14T17:14:38.784] error: Detected 1 oom_kill event in StepId=17.1. Some of the step "
                "tasks have been OOM Killed.",
                "srun: error: node2: tasks 0-2,5,7: Terminated",
            ],
            oom_reason(None, None),
        ),
        (
            [
                "slurmstepd: error: StepId=17.0 exceeded memory limit (734003200 > 52428800), being killed",
                "srun: error: node2: task 3: Killed",
            ],
            oom_reason(3, "node2"),
        ),
        (["a rank prints: slurmstepd: error: Detected 1 oom_kill event in StepId=17.1.",
          "srun: error: node2: task 1: Killed"], failure(1, "node2", -9)),
        (["srun: error: node2: task 1: Segmentation fault (core dumped)"],
         failure(1, "node2", -11)),
        (["Traceback (most recent call last):", "RuntimeError: no luck"],
         ("starter-failed", {"program": "srun", "exit_status": 137})),
        (["a rank prints: srun: error: node9: task 9: Killed"],
         ("starter-failed", {"program": "srun", "exit_status": 137})),
    ],
)  # fmt: skip
def test_first_task_error_of_srun_is_the_reason(
    slurm: Launcher, tmp_path: Path, message: list[str], stands: tuple[str, dict[str, Any]]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text(
        "\n".join(["starting", *message, "srun: error: Timed out waiting for job step to complete"]) + "\n"
    )
    assert code_and_facts(slurm.explain([137], log)) == stands


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("device", "replicas", "gpu_bind", "expected"),
    [
        ("cpu", 1, "closest", ["--distribution=block"]),
        ("cuda", 1, None, ["--distribution=block:block"]),
        ("cuda", 1, "closest", ["--distribution=block:block", "--gpu-bind=single:1"]),
        ("cuda", 4, "closest", ["--distribution=block:block", "--gpu-bind=per_task:4"]),
        # The last rank of a node trains on cores, so there are fewer accelerators than ranks.
        ("hybrid", 1, "closest", ["--distribution=block:block"]),
    ],
)
def test_srun_places_ranks_near_their_gpus(
    tmp_path: Path,
    put_program: Callable[[str, str], None],
    device: str,
    replicas: int,
    gpu_bind: Any,
    expected: list[str],
) -> None:
    put_program("srun", f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/words\n")
    site = slurm_site()
    site = replace(site, scheduler=replace(site.scheduler, gpu_bind=gpu_bind))
    ranks = launch.make_launcher(site, {**spec(2, 1), "device": device, "replicas_per_rank": replicas})
    (process,) = ranks.start(Program(["true"], tmp_path / "none"), tmp_path / "log.txt")
    assert process.wait() == 0
    words = (tmp_path / "words").read_text().splitlines()
    assert [word for word in words if word.startswith(("--distribution", "--gpu"))] == expected
    assert "--cpu-bind=cores" in words


@pytest.mark.parametrize(("code", "is_lost"), [(INACCESSIBLE_STATUS, True), (3, False)])
def test_status_79_of_srun_is_an_inaccessible_path(
    slurm: Launcher, tmp_path: Path, put_program: Callable[[str, str], None], code: int, is_lost: bool
) -> None:
    """The line of node-check can be missing in the log."""
    message = f"srun: error: node2: task 1: Exited with exit code {code}"
    put_program("srun", f"#!/bin/sh\necho a rank; echo '{message}' >&2\nexit {code}\n")
    put_program("squeue", "#!/bin/sh\n")
    if is_lost:
        with pytest.raises(AttemptLost) as lost:
            run(slurm_site(), tmp_path / "attempt-1", "", ranks_per_node=1)
        assert lost.value.reason.code == INACCESSIBLE and lost.value.reason.facts["node"] == "node2"
    else:
        outcome = run(slurm_site(), tmp_path / "attempt-1", "", ranks_per_node=1)
        assert code_and_facts(outcome.reason) == failure(1, "node2", code)


def test_failure_before_the_deadline_is_not_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.05)
    processes: Any = [SimpleNamespace(poll=lambda: 3), SimpleNamespace(poll=lambda: None)]
    assert launch._wait(processes, time.monotonic()) == (RunStatus.FAILED, [3, None])
    assert launch._wait(processes[1:], time.monotonic()) == (RunStatus.TIMEOUT, ())


@pytest.mark.usefixtures("slurm")
def test_srun_that_started_no_rank_loses_the_attempt(
    tmp_path: Path, put_program: Callable[[str, str], None]
) -> None:
    messages = "srun: error: Slurm job 34 has expired\nsrun: Check SLURM_JOB_ID environment variable."
    put_program("srun", f"#!/bin/sh\necho '{messages}' >&2\nexit 1\n")
    put_program("squeue", "#!/bin/sh\n")
    with pytest.raises(AttemptLost, match="SLURM_JOB_ID") as lost:
        run(slurm_site(), tmp_path / "attempt-1", "", ranks_per_node=1)
    assert lost.value.reason.code == "not-started"


@pytest.mark.parametrize(
    "message",
    [
        "srun: error: Node failure on node2",
        "srun: error: Unable to create step for job 17: Job/step already completing or completed",
        "srun: error: Unable to confirm allocation for job 17: Invalid job id specified",
    ],
)
def test_node_or_job_that_is_gone_loses_the_attempt(slurm: Launcher, tmp_path: Path, message: str) -> None:
    log = tmp_path / "log.txt"
    log.write_text(f"srun: error: node2: task 1: Killed\n{message}\n")
    with pytest.raises(AttemptLost, match=message):
        slurm.raise_if_lost(log)


@pytest.mark.parametrize(
    ("state", "is_lost"), [("OUT_OF_MEMORY", False), ("TIMEOUT", True), ("PREEMPTED", True)]
)
def test_job_out_of_memory_does_not_lose_the_attempt(
    slurm: Launcher, put_program: Callable[[str, str], None], tmp_path: Path, state: str, is_lost: bool
) -> None:
    put_program("scontrol", SCONTROL.replace("JobState=RUNNING", f"JobState={state}"))
    with pytest.raises(AttemptLost) if is_lost else contextlib.nullcontext():
        slurm.raise_if_lost(tmp_path / "log.txt")


SACCT = (
    "17|ringside-a|900|x\n17.batch|batch|900\n17.0|ringside-a|111\n17.1|ringside-a|{}\n17.2|ringside-b|222"
)


@pytest.mark.parametrize(
    ("message", "joules", "reason"),
    [
        (SACCT.format(48210), 48210.0, None),
        (SACCT.format(0), None, ("no-meter", {"answer": "0"})),
        (SACCT.format(""), None, ("no-meter", {"answer": ""})),
        (SACCT.format(2**64 - 2), None, ("no-meter", {"answer": "18446744073709551614"})),
        ("17|ringside-a|900", None, ("no-step", {"step": "ringside-a", "job": "17"})),
    ],
    ids=["joules", "0", "empty", "unknown", "no step"],
)
def test_step_energy_is_read_from_sacct(
    message: str,
    joules: float | None,
    reason: tuple[str, dict[str, str]] | None,
    put_program: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slurm_launcher, "time", SimpleNamespace(sleep=lambda _: None))
    put_program("sacct", f"#!/bin/sh\ncat <<'END'\n{message}\nEND\n")
    energy, note = slurm_launcher.step_energy("17", "ringside-a")
    assert energy == joules and (note and code_and_facts(note)) == reason


def test_missing_accounting_gives_a_reason(slurm: Launcher, put_program: Callable[[str, str], None]) -> None:
    put_program("sacct", "#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n")
    (meter,) = launch.scheduler_meters(slurm_site(), slurm)
    assert (meter["source"], meter["scope"], meter["window"], meter["joules"]) == (
        "slurm",
        "node",
        "run",
        None,
    )
    assert meter["reason"] == "Slurm accounting storage is disabled"
    assert launch.scheduler_meters(load_site("local"), slurm) == []


def test_silent_scheduler_loses_the_attempt(
    slurm: Launcher, put_program: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(
        "scontrol",
        "#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n",
    )
    monkeypatch.setattr(shell, "time", SimpleNamespace(sleep=lambda _: None))
    with pytest.raises(AttemptLost) as lost:
        launch.make_launcher(slurm_site(), spec(2, 1))
    reason = lost.value.reason
    assert (reason.code, reason.facts["program"]) == ("scheduler-silent", "scontrol")
    assert reason == "scontrol: slurm_load_jobs error: Unable to contact slurm controller"


def test_a_sites_pythonpath_comes_after_our_modules() -> None:
    site = replace(load_site("local"), variables=(("PYTHONPATH", "/opt/site"),))
    variables = rank_variables(site, {"cores_per_rank": 1, "device": "cpu"})
    assert variables["PYTHONPATH"] == f"{SCRIPTS}:/opt/site"


def test_installed_python_has_our_modules_and_those_of_setup(tmp_path: Path) -> None:
    site, folder = replace(load_site("local"), cores=2), tmp_path / "attempt"
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a_module_of_theirs.py").touch()
    folder.mkdir()
    (folder / "rank.py").write_text(f"{RANK}import a_module_of_theirs, common.errors\n")
    setup = (f"export PYTHONPATH={tmp_path / 'theirs'}:{folder}", "export FROM_SETUP=theirs")
    python = {"executable": sys.executable}
    environment = {"python": python, "installed": python, "variables": {}, "setup": setup}
    ranks = launch.make_launcher(site, spec(1, 1), setup=setup)
    outcome = launch.run_ranks(ranks, environment, folder, spec(1, 1), site, program="rank")
    assert outcome.status == "ok", (folder / "log.txt").read_text()
    assert rank_environments(folder)[0]["FROM_SETUP"] == "theirs"
