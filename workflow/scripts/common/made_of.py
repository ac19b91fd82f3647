"""What each product was made of: by which command, of which files, each with the SHA-256 of its content; in a file of its own.

Dates lie: `cp -p`, `rsync -a`, an unpacked archive, a clock that was set back. A product is taken for what the workflow would
make now where its command, the content of all that it was made of, and its own content are the same; else Snakemake makes it
again, whatever the dates say. This goes for the jobs of all rules that say which code makes their output (their input `code`).
"""

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import print_error, system_error
from common.files import digest_file, digest_text, write_json
from common.normal_form import digest_source

RECORD = "record.json"
TABLES = ("epochs.csv", "phases.csv", "clocks.csv")  # of an attempt
FOLDER = "made_of"  # in results/<study>, in which there are the same names again, and .json


@dataclass(frozen=True)
class Made:
    """`command`: that of the rule, without line ends, and `params`, what it is told; `inputs`, `outputs`: SHA-256 by path."""

    command: str
    params: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def place(output: str) -> Path:
    """Where it stands of a job whose first output this is: results/<study>/made_of/<the same name>.json."""
    results, study, *rest = Path(output).parts
    return Path(results, study, FOLDER, *rest).with_name(f"{rest[-1]}.json")


def read(file: Path) -> Made | None:
    """What is kept in a file; None where there is none, or another version of us wrote it, or it is broken."""
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return Made(said["command"], *(dict(said[name]) for name in ("params", "inputs", "outputs")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def content(file: Path) -> str:
    """Return the SHA-256 of what a file holds: of a module what it does, of a run's record also the tables beside it."""
    if file.name != RECORD:
        return digest_source(file)
    tables = (path for path in sorted(file.parent.glob("attempt-*/*.csv")) if path.name in TABLES)
    return digest_text(" ".join(map(digest_file, [file, *filter(Path.is_file, tables)])))


def digests(files: Iterable[str], digest: Callable[[Path], str] = content) -> dict[str, str]:
    """SHA-256 by path; "" where there is no such file."""
    return {file: digest(Path(file)) if Path(file).is_file() else "" for file in files}


def watch(workflow: Any, stale: Iterable[str]) -> None:
    """Have this Snakemake decide by content, and keep what it makes of what. `stale`: files that are to be made again anyway.

    Called while rules are read. Snakemake has no plug-in for it: methods of its graph of jobs, of its memory and of jobs are extended;
    that an input has a date to come is no failure of the job. Snakemake removes what a job is to make before it starts; here it lies
    aside until the job has ended, and is there again if the job failed, as on a full disk. Nothing is known of what it was made of then, so
    that it is made again next time.
    """
    from snakemake.dag import DAG
    from snakemake.jobs import Job

    by_date, known = DAG.update_needrun, functools.cache(content)
    kept = _Kept(forget=known.cache_clear)
    clear, clean_up = Job.remove_existing_output, Job.cleanup

    async def put_aside(job: Any) -> None:
        for file in _earlier(job):
            with contextlib.suppress(OSError):
                os.replace(file, _aside(file))
        await clear(job)

    async def put_back(job: Any, *args: Any, **named: Any) -> None:
        await clean_up(job, *args, **named)
        for file in _earlier(job):
            with contextlib.suppress(OSError):
                os.replace(_aside(file), file)

    Job.remove_existing_output, Job.cleanup = put_aside, put_back
    Job.postprocess = functools.partialmethod(Job.postprocess, check_output_mtime=False)

    async def by_content(dag: Any, *args: Any, **named: Any) -> None:
        dag.max_checksum_file_size = sys.maxsize  # what has a later date is looked into, however large
        try:
            force(dag, stale, known)  # which is asked again after every checkpoint
        except OSError as error:
            print_error(system_error(error))
            sys.exit(2)
        if not kept.attached and not workflow.dryrun and not workflow.touch:
            kept.attach(dag, workflow.persistence)
        await by_date(dag, *args, **named)

    DAG.update_needrun = by_content


def force(dag: Any, stale: Iterable[str] = (), known: Callable[[Path], str] = content) -> None:
    """Have all jobs run whose products are not what they would make of what is there now, and those that make `stale` files. `known`:
    SHA-256 of a file."""
    dag.forcefiles.update(file for file in stale if Path(file).exists())
    for job in dag.jobs:
        if any(file.flags.get("checkpoint_target") for file in job.input):  # nobody knows yet what it will be made of
            continue
        there = _watched(job) and all(Path(file).exists() for file in job.output)  # else it runs anyway
        if there and read(place(job.output[0])) != _made(job, known):
            dag.forcefiles.update(job.output)


class _Kept:
    """What the jobs that are under way began with."""

    def __init__(self, forget: Callable[[], None]) -> None:
        """`forget`: what was known of files, for a job has begun or ended."""
        self.attached, self._forget = False, forget
        self._begun: dict[Any, Made] = {}

    def attach(self, dag: Any, memory: Any) -> None:
        """Be told by Snakemake's graph and memory of every job that starts and that has succeeded."""
        started, finish = memory.started, dag.finish

        def starts(job: Any, *args: Any, **named: Any) -> None:
            started(job, *args, **named)
            self._forget()
            self._starts(job)

        async def ends(job: Any, *args: Any, **named: Any) -> None:
            self._forget()
            self._ends(job)
            for file in _earlier(job):
                with contextlib.suppress(OSError):
                    _aside(file).unlink(missing_ok=True)
            await finish(job, *args, **named)

        memory.started, dag.finish, self.attached = starts, ends, True

    def _starts(self, job: Any) -> None:
        if _watched(job):
            with contextlib.suppress(OSError):
                place(job.output[0]).unlink(missing_ok=True)
                self._begun[job] = _made(job)

    def _ends(self, job: Any) -> None:
        """What the system refuses is left: what is not known to be made of what is there is made again."""
        before = self._begun.pop(job, None)
        if before:
            with contextlib.suppress(OSError):
                made = _made(job)
                if made.inputs == before.inputs:  # else nobody knows which of both it was made of
                    write_json(place(job.output[0]), asdict(made))


def _watched(job: Any) -> bool:
    return not job.is_group() and hasattr(job.input, "code") and bool(job.output)


def _earlier(job: Any) -> list[Path]:
    """Return the products of a watched job, of which earlier ones are kept while it works."""
    return [Path(file) for file in job.output] if _watched(job) else []


def _aside(file: Path) -> Path:
    return file.with_name(f".{file.name}.before")


def _made(job: Any, digest: Callable[[Path], str] = content) -> Made:
    """Return what a job would be made of now.

    Of an `ancient` input the name says what it is, so its content does not count. Code is `ancient` for Snakemake, whose dates and
    checksums would make everything again when a comment changes, but what it does counts here.
    """
    code = [job.input.code] if isinstance(job.input.code, str) else job.input.code
    inputs = sorted({*(str(file) for file in job.input if not file.is_ancient), *map(str, code)})
    params = {name: str(value) for name, value in job.params.items()}
    command = " ".join(job.rule.shellcmd.split())
    return Made(command, params, digests(inputs, digest), digests(map(str, job.output), digest))
