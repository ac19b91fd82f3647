"""Given nodes that do not see what jobs need, when a campaign submits its first job, then it stops with one
line and status 3.

qsub and qstat are small scripts: the "node" is this machine, with the submitting machine's mark removed from
its cache.
"""

import os
from collections.abc import Callable
from pathlib import Path

from support.checkout import THREE_RUNS, Checkout

QSUB = """\
#!/bin/bash
PATH={bin}:$PATH
rm -f {cache}/.seen-by-*
echo $(($(cat {bin}/count 2> /dev/null || echo 0) + 1)) > {bin}/count
cat > {bin}/job.sh
PBS_JOBID=7.head bash {bin}/job.sh < /dev/null
echo $? > {bin}/status
echo 7.head
"""
QSTAT = """\
#!/bin/sh
echo "Job Id: 7.head"
echo "    job_state = F"
echo "    exec_host = gros-1/0+gros-2/0"
echo "    Exit_status = $(cat {bin}/status)"
"""


def test_first_job_on_a_blind_node_stops_the_campaign(fresh: Callable[..., Checkout], tmp_path: Path) -> None:
    checkout, cache = fresh(THREE_RUNS), tmp_path / "cache"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "qsub": QSUB,
        "qstat": QSTAT,
        "pbs_tmrsh": "#!/bin/sh\n",
        "sleep": "#!/bin/sh\n",
    }.items():
        (programs / name).write_text(text.format(bin=programs, cache=cache) if "{bin}" in text else text)
        (programs / name).chmod(0o755)
    checkout.edit("config/sites/pbs-example.yaml", "cache: ~/.cache/ringside", f"cache: {cache}")
    profile = checkout.path("profiles/pbs/config.yaml")
    profile.write_text(profile.read_text().replace("between-status-checks: 10", "between-status-checks: 1"))
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = checkout.snakemake(
        "--profile", "profiles/pbs", "runs", program=["env", f"PATH={path}", "snakemake"]
    )
    assert done.status == 3, done.output
    lines = [line for line in done.output.splitlines() if "cannot access" in line]
    assert len(lines) == 1 and f"node {os.uname().nodename} cannot access {cache};" in lines[0], done.output
    assert (programs / "count").read_text() == "2\n", "an environment and a data set at once, neither again"
    assert (programs / "status").read_text() == "79\n"
