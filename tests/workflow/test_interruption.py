"""Given a campaign under way, when Snakemake is killed or its terminal is closed, then nothing finished is
lost or repeated.
"""

import csv
import os
import pty
import select
import signal
import subprocess
import time

from support.checkout import THREE_RUNS, Checkout, wait_for


def test_sigkill_of_snakemake_loses_nothing(fresh) -> None:  # type: ignore[no-untyped-def]
    checkout: Checkout = fresh(THREE_RUNS)
    first = subprocess.Popen(
        ["snakemake", "figures"], cwd=checkout.folder, env=checkout.environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: len(checkout.records()) >= 1 and len(checkout.attempts()) > len(checkout.records()), 600)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    finished = checkout.records()
    assert (checkout.results / "preview" / "figures" / "residuals.png").exists(), (
        "drawn before the second block began"
    )

    assert checkout.snakemake("-n", "figures").status == 0, "who only looks needs no lock"
    refused = checkout.snakemake("figures")
    assert refused.status != 0
    (line,) = [line for line in refused.output.splitlines() if line.startswith("ringside: ")]
    assert "./ringside unlock" in line

    unlocked = checkout.program("ringside", "unlock")
    assert unlocked.returncode == 0, unlocked.stderr
    done = checkout.snakemake("records")
    assert done.status == 0, done.output
    assert "preview" not in checkout.snakemake("-n", "figures").jobs
    assert len(checkout.records()) == 3
    assert all(attempt.endswith("/attempt-1") for attempt in checkout.attempts()), (
        "the orphan's run counts, too"
    )
    assert set(finished) <= set(checkout.records())
    with open(checkout.results / "runs.csv") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["ok"] * 3


def test_a_closed_terminal_ends_a_campaign_and_loses_nothing(fresh) -> None:  # type: ignore[no-untyped-def]
    checkout: Checkout = fresh(THREE_RUNS)
    process, terminal = pty.fork()
    if process == 0:  # in a session of its own
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may themselves run under nohup
        os.chdir(checkout.folder)
        os.execvpe("snakemake", ["snakemake", "records"], checkout.environment)  # noqa: S606 (it has to be this process)

    def second_run_is_under_way() -> bool:
        while select.select([terminal], [], [], 0)[0]:
            os.read(terminal, 1 << 16)
        return len(checkout.records()) == 1 and len(checkout.attempts()) == 2

    wait_for(second_run_is_under_way, 600)
    os.close(terminal)  # the kernel sends SIGHUP
    ended = time.monotonic()
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 1 and time.monotonic() - ended < 60
    finished = checkout.records()
    assert len(finished) < 3, "no further run began"

    done = checkout.snakemake("records")
    assert done.status == 0, done.output
    assert set(finished) < set(checkout.records()) and len(checkout.records()) == 3
