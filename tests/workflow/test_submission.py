"""Profiles translate job states of PBS and Flux to Snakemake's, and pass a job its variables.

qsub, qstat and flux are small scripts; their output was recorded from OpenPBS 23.06 and Flux 0.88.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from common.files import CHECKOUT
from common.shell import find_inaccessible_path

QSTAT = '#!/bin/sh\n[ "$1" = -x ] && cat history || cat said\nexit 153\n'
OVER = "qstat: 7.head Job has finished, use -x or -H to obtain historical job information"
UNKNOWN_JOB = "qstat: Unknown Job Id 7.head"
REFUSED = "Connection refused\nqstat: cannot connect to server head (errno=15010)"
QSUB = (
    "#!/bin/sh\n"
    'printf "%s\\0" "$@" > asked\n'
    "cat > job.sh\n"
    "PBS_JOBID=7.head sh job.sh < /dev/null\n"
    "echo 7.head\n"
)


@pytest.fixture
def called(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that calls a script of a profile in a folder of its own, with programs on PATH."""

    def call(script: str, *arguments: str, **programs: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name, text in programs.items():
            (tmp_path / "bin" / name).write_text(text)
            (tmp_path / "bin" / name).chmod(0o755)
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "RINGSIDE_SESSION": "a, b'c"}
        command = [CHECKOUT / "profiles" / script, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )

    return call


@pytest.mark.parametrize(
    ("answer", "history", "own", "expected"),
    [
        ("    job_state = Q", "", None, "running"), ("    job_state = R", "", "0", "running"),
        ("    job_state = E\n    Exit_status = 0", "", "0", "running"), (UNKNOWN_JOB, "", "0", "success"),
        (UNKNOWN_JOB, "", "75", "failed"),
        (OVER, "    job_state = F\n    Exit_status = 0", "0", "success"),
        (OVER, "    job_state = F\n    Exit_status = 7", "7", "failed"),
        (OVER, "    job_state = F\n    Exit_status = 271", None, "failed"),
        (OVER, "    job_state = F\n    Exit_status = -3", None, "failed"),
    ],
)  # fmt: skip
def test_what_pbs_says_of_a_job(
    called: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path, answer: str, history: str, own: str | None, expected: str,
) -> None:  # fmt: skip
    (tmp_path / "said").write_text(f"{answer}\n")
    (tmp_path / "history").write_text(f"{history}\n")
    if own:
        (tmp_path / ".snakemake" / "pbs").mkdir(parents=True)
        (tmp_path / ".snakemake" / "pbs" / "7.head.status").write_text(f"{own}\n")
    done = called("pbs/status", "7.head", qstat=QSTAT)
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


@pytest.mark.parametrize(("answer", "times"), [(UNKNOWN_JOB, 3), (REFUSED, 100)])
def test_job_that_did_not_end_is_given_time_and_then_up(
    called: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, answer: str, times: int
) -> None:
    (tmp_path / "said").write_text(answer)
    assert called("pbs/status", "7.head", qstat=QSTAT).stdout == "running\n"
    (tmp_path / ".snakemake" / "pbs" / "7.head.unknown").write_text("x\n" * (times - 1))
    done = called("pbs/status", "7.head")
    assert done.stdout == "failed\n" and answer.splitlines()[0] in done.stderr


def test_a_job_of_pbs_knows_what_it_has_to_and_says_how_it_ended(
    called: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "script.sh").write_text('#!/bin/sh\necho "$RINGSIDE_SESSION, in $PWD"\nexit 5\n')
    (tmp_path / "script.sh").chmod(0o755)
    done = called("pbs/submit", "-l", "select=2:ncpus=4", "-q", "workq", "script.sh", qsub=QSUB)
    assert (done.stdout, done.returncode) == ("7.head\n", 0), done.stderr
    arguments = (tmp_path / "asked").read_text().split("\0")[:-1]
    assert arguments[-4:] == ["-l", "select=2:ncpus=4", "-q", "workq"] and "-r" in arguments
    written = tmp_path / ".snakemake" / "pbs"
    assert (written / "7.head.txt").read_text() == f"a, b'c, in {tmp_path}\n"
    assert (written / "7.head.status").read_text() == "5\n"
    done = called(
        "pbs/submit", "-q", "nothere", "script.sh", qsub="#!/bin/sh\necho 'qsub: Unknown queue' >&2\nexit 1\n"
    )
    assert done.returncode == 1 and "qsub: Unknown queue" in done.stderr


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("SCHED", "running"), ("RUN", "running"), ("CLEANUP", "running"), ("COMPLETED", "success"),
        ("FAILED", "failed"), ("CANCELED", "failed"), ("TIMEOUT", "failed"),
    ],
)  # fmt: skip
def test_what_flux_says_of_a_job(
    called: Callable[..., subprocess.CompletedProcess[str]], state: str, expected: str
) -> None:
    done = called("flux/status", "f1234", flux=f"#!/bin/sh\necho {state}\n")
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")


def test_a_job_that_flux_does_not_know_is_given_time(
    called: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    flux = "#!/bin/sh\necho 'JobID f1234 unknown' >&2\nexit 1\n"
    done = called("flux/status", "f1234", flux=flux)
    assert (
        done.stdout == "running\n" and "flux does not describe job f1234: JobID f1234 unknown" in done.stderr
    )
    (tmp_path / ".snakemake" / "flux" / "f1234.unknown").write_text("x\n" * 99)
    assert called("flux/status", "f1234").stdout == "failed\n"


@pytest.mark.parametrize(
    ("script", "programs"),
    [
        ("pbs/status", {"qstat": (
            "#!/bin/sh\n"
            "echo '    job_state = F'\n"
            "echo '    exec_host = n7/0+n8/0'\n"
            "echo '    Exit_status = 79'\n"
        )}),
        ("oar/status", {"oarstat": (
            "#!/bin/sh\n"
            "echo '    state = Terminated'\n"
            "echo '    assigned_hostnames = n7+n8'\n"
            "echo '    exit_code = 20224 (79)'\n"
        )}),
        ("oar/status", {"oarstat": (
            "#!/bin/sh\n"
            "echo '    state = Error'\n"
            "echo '    assigned_hostnames = n7'\n"
            "echo '    events = 2026-11-27> WORKING_DIRECTORY'\n"
        )}),
        ("flux/status", {"flux": "#!/bin/sh\necho FAILED 79 n7\n"}),
    ],
)  # fmt: skip
def test_a_node_without_the_checkout_is_named_in_the_jobs_log(
    called: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    script: str,
    programs: dict[str, str],
) -> None:
    for _ in range(2):
        assert called(script, "17", **programs).stdout == "failed\n"
    log = (tmp_path / ".snakemake" / script.partition("/")[0] / "17.txt").read_text()
    assert log == f"ringside: node n7 cannot access {tmp_path}\n"


OARSUB = """#!/bin/sh
for last; do :; done
OAR_JOB_ID=17 sh -c "$last" > job.txt 2>&1 < /dev/null
echo OAR_JOB_ID=17
"""
FLUX = """#!/bin/sh
case "$1" in
    batch) cat > job.sh; echo 'a word of a plugin'; sh job.sh > job.txt 2>&1; echo $? > code; echo f17 ;;
    job) echo "$4" ;;
esac
"""


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("name", ["oar", "pbs", "flux"])
def test_every_job_first_looks_what_its_node_sees(
    called: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, blind: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("RINGSIDE_NODE_PATHS", f"{tmp_path}\n{tmp_path}/it's{' gone' if blind else ''}")
    (tmp_path / "it's").touch()
    (tmp_path / "script.sh").write_text("#!/bin/sh\ntouch done\n")
    (tmp_path / "script.sh").chmod(0o755)
    done = called(f"{name}/submit", "script.sh", oarsub=OARSUB, qsub=QSUB, flux=FLUX, sleep="#!/bin/sh\n")
    assert (
        done.returncode == 0 and done.stdout.strip() == {"oar": "17", "pbs": "7.head", "flux": "f17"}[name]
    ), done.stderr
    assert (tmp_path / "done").exists() is not blind
    log = tmp_path / ".snakemake" / "pbs" / "7.head.txt" if name == "pbs" else tmp_path / "job.txt"
    note = find_inaccessible_path(log.read_text())
    assert (note.facts["path"] if note else None) == (f"{tmp_path}/it's gone" if blind else None)
    status = {"oar": ".snakemake/oar/17.status", "pbs": ".snakemake/pbs/7.head.status", "flux": "code"}[name]
    assert (tmp_path / status).read_text() == ("79\n" if blind else "0\n")
