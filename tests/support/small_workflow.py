"""The smallest workflow that uses `invocation.content_check`, run by a real Snakemake."""

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common.files import CHECKOUT
from common.shell import capture

SCRIPTS = CHECKOUT / "workflow" / "scripts"
LONG_AGO_S = 10 * 365 * 86400.0

SNAKEFILE = """\
import logging
import sys

sys.path.insert(0, "{scripts}")

from invocation.content_check import ContentCheck

CONTENT = ContentCheck(
    rules, workflow.is_main_process, workflow.output_settings.dryrun, "--touch" in sys.argv
)
logging.getLogger("snakemake.logging").addFilter(CONTENT.filter)
changed = CONTENT.changed


rule all:
    input:
        "results/s/sum.txt",


rule part:
    input:
        data="data/{{name}}.txt",
        changed=changed("part", ["program.py"]),
    output:
        "results/s/{{name}}.txt",
    wildcard_constraints:
        name="a|b",
    params:
        word=lambda wildcards: "one",
    shell:
        "sleep 0.01; cat {{input.data}} > {{output}}; echo {{params.word}} >> {{output}}"


rule sum:
    input:
        parts=expand("results/s/{{name}}.txt", name=["a", "b"]),
        changed=changed("sum", lambda wildcards: ["program.py", "other.py"]),
    output:
        "results/s/sum.txt",
    shell:
        "sleep 0.01; cat {{input.parts}} > {{output}}"


onsuccess:
    CONTENT.finish_all()
"""


class SmallWorkflow:
    """The workflow in a folder.

    Args:
        folder: An empty folder.
        command: How Snakemake is called.
    """

    def __init__(self, folder: Path, command: Sequence[str] = (sys.executable, "-m", "snakemake")) -> None:
        self.folder, self._command = folder, command
        for name in ("data", "profiles/default"):
            (folder / name).mkdir(parents=True)
        self.write("Snakefile", SNAKEFILE.format(scripts=SCRIPTS))
        self.write(
            "profiles/default/config.yaml", (CHECKOUT / "profiles" / "default" / "config.yaml").read_text()
        )
        for file in ("data/a.txt", "data/b.txt", "program.py", "other.py"):
            self.write(file, f'"""{file}"""\nNAME = "{file}"\n')

    def write(self, file: str, text: str, age_s: float = LONG_AGO_S) -> None:
        """Write a file and date it back; a negative age is a date to come."""
        path = self.folder / file
        path.write_text(text)
        os.utime(path, (time.time() - age_s,) * 2)

    def read(self, file: str) -> str:
        """Return a file's text."""
        return (self.folder / file).read_text()

    def run(self, *options: str, status: int = 0) -> dict[str, int]:
        """Call Snakemake and return how many jobs of each rule it planned."""
        command = [*self._command, "--cores", "1", *options]
        environment = {name: value for name, value in os.environ.items() if name != "SNAKEMAKE_PROFILE"}
        done = capture(command, cwd=self.folder, env=environment, timeout=120)
        assert done.returncode == status, done.stdout + done.stderr
        table = (done.stdout + done.stderr).partition("Job stats:")[2].partition("total")[0]
        return {name: int(count) for name, count in re.findall(r"^(part|sum) +(\d+)$", table, re.MULTILINE)}
