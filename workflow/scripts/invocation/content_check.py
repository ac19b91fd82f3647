"""Decide by content which products Snakemake makes again, through inputs and events of its log alone.

Snakemake compares dates. A rule whose product rests on content has one more input, `changed`, a function: it
returns nothing where the product's record (`common.content_digests`) is what the rule would make the product
of now, else a mark: a file of this process with a date in the future, so that Snakemake takes the product for
out of date. Where other input changes while Snakemake runs, because a job makes it anew, Snakemake knows that
by itself.

When a job begins, its marks and all other inputs that have a date to come get today's: Snakemake refuses
output that is older than an input. When it has succeeded, the record is written, unless an input changed
meanwhile. Snakemake is quiet about jobs that succeed if its caller wants it to be (--quiet progress). So a
job also counts as successful as soon as one begins that reads its output, and at the end of a successful
call.
"""

import atexit
import contextlib
import functools
import inspect
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from common.content_digests import ProductRecord, digest_content, digest_files, read_record, record_path
from common.files import write_json

Wildcards = Any  # Snakemake's, whose attributes are the values
Code = Sequence[str] | Callable[[Wildcards], Sequence[str]]
FUTURE_S = 100 * 365 * 86400.0
MARK_SUFFIX = ".changed"


class ContentCheck:
    """Compare products with their records while Snakemake plans, and write these records while it runs jobs.

    Args:
        rules: Snakemake's global `rules`.
        active: Whether this process plans. Only this one looks at files: those that run single jobs do not.
        dry_run: Whether nothing runs.
        touch: Whether files get other dates in place of jobs that run (--touch): records stay as they are.
    """

    def __init__(self, rules: Any, active: bool, dry_run: bool = False, touch: bool = False) -> None:
        self._rules, self._active, self._dry_run, self._touch = rules, active, dry_run, touch
        self._code: dict[str, Code] = {}
        self._begun: dict[int, tuple[str, Mapping[str, str], ProductRecord]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._digest = functools.cache(digest_content)
        atexit.register(self.put_back)

    def changed(self, rule: str, code: Code) -> Callable[[Wildcards], list[str]]:
        """Return the function for the input `changed` of a rule.

        Args:
            rule: The rule's name.
            code: The files of its program, or a function of the wildcards that returns them.
        """
        self._code[rule] = code

        def mark_changed(wildcards: Wildcards) -> list[str]:
            if not self._active:
                return []
            product = self.describe(rule, dict(wildcards.items()))
            exists = all(product.outputs.values())  # otherwise Snakemake makes it anyway
            return self.mark() if exists and read_record(_record_of(product)) != product else []

        return mark_changed

    def mark(self) -> list[str]:
        """Return an input with a date to come, so that Snakemake makes again what depends on it."""
        if not self._active:
            return []
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="ringside-")
        descriptor, file = tempfile.mkstemp(MARK_SUFFIX, dir=self._folder.name)
        os.close(descriptor)
        os.utime(file, (time.time() + FUTURE_S,) * 2)
        return [file]

    def describe(self, name: str, wildcards: Mapping[str, str]) -> ProductRecord:
        """Return what a job of the rule `name` would make its product of now.

        An `ancient` input has what it is in its path, so its content does not count. Parameters that are
        functions of inputs or outputs follow from these.
        """
        rule, values = getattr(self._rules, name), SimpleNamespace(**wildcards)
        mark = rule.input.get("changed")
        items = (item(values) if callable(item) else item for item in rule.input if item is not mark)
        data = [_fill(file, wildcards) for item in items for file in _flatten(item) if not _is_ancient(file)]
        code = self._code[name]
        inputs = sorted({*data, *(code(values) if callable(code) else code)})
        params = {
            key: value(values) if callable(value) else value
            for key, value in rule.params.items()
            if _follows_from_wildcards(value)
        }
        return ProductRecord(
            " ".join(rule.rule.shellcmd.split()),
            {key: str(value) for key, value in params.items()},
            digest_files(inputs, self._digest),
            digest_files([_fill(file, wildcards) for file in rule.output], self._digest),
        )

    def filter(self, record: logging.LogRecord) -> bool:
        """Follow the jobs as a filter of Snakemake's log, which lets everything pass."""
        event = getattr(getattr(record, "event", None), "name", "")
        facts = vars(record)
        if not self._active or self._dry_run:
            return True
        if event == "JOB_INFO":
            self._begin(facts["jobid"], facts["rule_name"], facts["wildcards"], facts["input"])
        elif event == "JOB_FINISHED":
            self._finish([facts["job_id"]])
        return True

    def finish_all(self) -> None:
        """Write the records of all jobs that have begun: Snakemake has ended, and none has failed."""
        self._finish(list(self._begun))

    def put_back(self) -> None:
        """Put earlier products of jobs that did not succeed in their places again, when this process ends."""
        for _, _, product in self._begun.values():
            for file in product.outputs:
                with contextlib.suppress(OSError):
                    if os.path.exists(file):
                        _aside(file).unlink(missing_ok=True)
                    else:
                        os.replace(_aside(file), file)

    def _begin(self, job: int, rule: str, wildcards: Mapping[str, str], inputs: Sequence[str]) -> None:
        """Prepare the inputs of a job that is about to run, and record their digests."""
        self._finish(
            [
                job_id
                for job_id, (_, _, product) in self._begun.items()
                if not product.outputs.keys().isdisjoint(inputs)
            ]
        )
        _correct_dates(inputs)
        self._digest.cache_clear()
        if rule in self._code and not self._touch:
            with contextlib.suppress(OSError):
                product = self.describe(rule, wildcards)
                _record_of(product).unlink(missing_ok=True)
                self._begun[job] = rule, wildcards, product
                _put_aside(product)

    def _finish(self, jobs: Iterable[int]) -> None:
        """Write the records of jobs that have succeeded.

        A record that the system refuses is missing, so its product is made again.
        """
        for job in jobs:
            if job in self._begun:
                rule, wildcards, before = self._begun.pop(job)
                self._digest.cache_clear()
                for file in before.outputs:
                    _aside(file).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    product = self.describe(rule, wildcards)
                    if product.inputs == before.inputs:  # otherwise nobody knows which of both it was made of
                        write_json(_record_of(product), asdict(product))


def _put_aside(product: ProductRecord) -> None:
    """Keep a product until its job has ended: Snakemake removes it before the job begins, which may fail."""
    for file in product.outputs:
        with contextlib.suppress(OSError):
            os.replace(file, _aside(file))


def _aside(file: str) -> Path:
    return Path(file).with_name(f".{Path(file).name}.before")


def _record_of(product: ProductRecord) -> Path:
    return record_path(next(iter(product.outputs)))


def _correct_dates(files: Iterable[str]) -> None:
    """Give files that have a date to come today's."""
    now = time.time()
    for file in files:
        with contextlib.suppress(OSError):
            if os.stat(file).st_mtime > now:
                os.utime(file, (now, now))


def _flatten(item: str | Sequence[str]) -> Sequence[str]:
    return [item] if isinstance(item, str) else item


def _fill(pattern: str, wildcards: Mapping[str, str]) -> str:
    """Return a file's path with the values of wildcards in place of their names."""
    return str(pattern).format(**wildcards) if wildcards else str(pattern)


def _is_ancient(file: str) -> bool:
    return "ancient" in getattr(file, "flags", {})


def _follows_from_wildcards(value: Any) -> bool:
    """Return whether a parameter is a value or a function of the wildcards alone."""
    return not callable(value) or len(inspect.signature(value).parameters) == 1
