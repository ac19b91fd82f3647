"""Make Snakemake rebuild products by content instead of dates, with only inputs and events of its log.

Snakemake compares dates. Rules whose products are compared by content have an additional input, the function
`changed`. It compares the product's record (`common.content_digests`) with the rule's current command, inputs
and outputs. If they are the same, it returns no file. Otherwise it returns a mark, a temporary file with a
date in the future, so that Snakemake rebuilds the product. If a job rebuilds an input during the call,
Snakemake itself rebuilds the product.

When a job begins, its marks and all other inputs dated in the future get the current date, because Snakemake
refuses outputs that are older than inputs. When the job has succeeded, the record is written, unless an input
has changed meanwhile. With --quiet progress, Snakemake does not log that a job has succeeded. So a job also
counts as successful when a job begins that reads its output, and at the end of a successful call.
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

Wildcards = Any  # Snakemake's wildcards: an object with their values as attributes
SourceFiles = Sequence[str] | Callable[[Wildcards], Sequence[str]]
FUTURE_S = 100 * 365 * 86400.0
MARK_SUFFIX = ".changed"


class ContentCheck:
    """Compare products with their records while Snakemake plans, and write records while it runs jobs.

    Args:
        rules: Snakemake's global `rules`.
        active: Whether this process plans; processes that run single jobs do not check anything.
        dry_run: Whether nothing runs.
        touch: Whether Snakemake only changes dates (--touch); then records are not changed.
    """

    def __init__(self, rules: Any, active: bool, dry_run: bool = False, touch: bool = False) -> None:
        self._rules, self._active, self._dry_run, self._touch = rules, active, dry_run, touch
        self._sources: dict[str, SourceFiles] = {}
        self._begun: dict[int, tuple[str, Mapping[str, str], ProductRecord]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._digest = functools.cache(digest_content)
        atexit.register(self.restore_products)

    def changed(self, rule: str, code: SourceFiles) -> Callable[[Wildcards], list[str]]:
        """Return the function for the input `changed` of a rule.

        Args:
            rule: The rule's name.
            code: The source files of its program, or a function of the wildcards that returns them.
        """
        self._sources[rule] = code

        def mark_changed(wildcards: Wildcards) -> list[str]:
            if not self._active:
                return []
            product = self.describe(rule, dict(wildcards.items()))
            exists = all(product.outputs.values())  # Snakemake builds a missing product in any case.
            return self.mark() if exists and read_record(_product_record_path(product)) != product else []

        return mark_changed

    def mark(self) -> list[str]:
        """Return a new mark, a file dated in the future; [] in a process that does not plan."""
        if not self._active:
            return []
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="ringside-")
        descriptor, file = tempfile.mkstemp(MARK_SUFFIX, dir=self._folder.name)
        os.close(descriptor)
        os.utime(file, (time.time() + FUTURE_S,) * 2)
        return [file]

    def describe(self, name: str, wildcards: Mapping[str, str]) -> ProductRecord:
        """Return the record of a rule's product with the current command, inputs and outputs.

        The content of `ancient` inputs does not count, since their paths have digests. Parameters that are
        functions of inputs or outputs are left out, since these files determine them.

        Args:
            name: The rule's name.
            wildcards: The values of its wildcards.
        """
        rule, values = getattr(self._rules, name), SimpleNamespace(**wildcards)
        mark = rule.input.get("changed")
        items = (item(values) if callable(item) else item for item in rule.input if item is not mark)
        data = [
            _fill_wildcards(file, wildcards)
            for item in items
            for file in _flatten(item)
            if not _is_ancient(file)
        ]
        code = self._sources[name]
        inputs = sorted({*data, *(code(values) if callable(code) else code)})
        params = {
            key: value(values) if callable(value) else value
            for key, value in rule.params.items()
            if _depends_on_wildcards_only(value)
        }
        return ProductRecord(
            " ".join(rule.rule.shellcmd.split()),
            {key: str(value) for key, value in params.items()},
            digest_files(inputs, self._digest),
            digest_files([_fill_wildcards(file, wildcards) for file in rule.output], self._digest),
        )

    def filter(self, record: logging.LogRecord) -> bool:
        """Follow the beginnings and ends of jobs in Snakemake's log; a filter that passes every record."""
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
        """Write the records of all remaining jobs; call it after Snakemake has ended without a failure."""
        self._finish(list(self._begun))

    def restore_products(self) -> None:
        """Restore the saved products of jobs that did not succeed; called when this process ends."""
        for _, _, product in self._begun.values():
            for file in product.outputs:
                with contextlib.suppress(OSError):
                    if os.path.exists(file):
                        _saved_path(file).unlink(missing_ok=True)
                    else:
                        os.replace(_saved_path(file), file)

    def _begin(self, job: int, rule: str, wildcards: Mapping[str, str], inputs: Sequence[str]) -> None:
        """Prepare for a job that is about to run: finish the jobs before it, and save its old product."""
        self._finish(
            [
                job_id
                for job_id, (_, _, product) in self._begun.items()
                if not product.outputs.keys().isdisjoint(inputs)
            ]
        )
        _reset_future_dates(inputs)
        self._digest.cache_clear()
        if rule in self._sources and not self._touch:
            with contextlib.suppress(OSError):
                product = self.describe(rule, wildcards)
                _product_record_path(product).unlink(missing_ok=True)
                self._begun[job] = rule, wildcards, product
                _save_product(product)

    def _finish(self, jobs: Iterable[int]) -> None:
        """Write the records of jobs that have succeeded.

        If a record cannot be written, it is missing, and the next call rebuilds the product.
        """
        for job in jobs:
            if job in self._begun:
                rule, wildcards, before = self._begun.pop(job)
                self._digest.cache_clear()
                for file in before.outputs:
                    _saved_path(file).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    product = self.describe(rule, wildcards)
                    # If an input changed during the job, it is unknown which version the job has read.
                    if product.inputs == before.inputs:
                        write_json(_product_record_path(product), asdict(product))


def _save_product(product: ProductRecord) -> None:
    """Keep a copy of a product until its job has succeeded: Snakemake removes the product before the job."""
    for file in product.outputs:
        with contextlib.suppress(OSError):
            os.replace(file, _saved_path(file))


def _saved_path(file: str) -> Path:
    return Path(file).with_name(f".{Path(file).name}.before")


def _product_record_path(product: ProductRecord) -> Path:
    return record_path(next(iter(product.outputs)))


def _reset_future_dates(files: Iterable[str]) -> None:
    """Set the dates of files that are dated in the future to now."""
    now = time.time()
    for file in files:
        with contextlib.suppress(OSError):
            if os.stat(file).st_mtime > now:
                os.utime(file, (now, now))


def _flatten(item: str | Sequence[str]) -> Sequence[str]:
    return [item] if isinstance(item, str) else item


def _fill_wildcards(pattern: str, wildcards: Mapping[str, str]) -> str:
    """Return a path with the values of wildcards in place of their names."""
    return str(pattern).format(**wildcards) if wildcards else str(pattern)


def _is_ancient(file: str) -> bool:
    return "ancient" in getattr(file, "flags", {})


def _depends_on_wildcards_only(value: Any) -> bool:
    """Return whether a parameter is a constant or a function of only the wildcards."""
    return not callable(value) or len(inspect.signature(value).parameters) == 1
