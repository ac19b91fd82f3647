"""Collect the records of a study in runs.csv, one row per run of the design, and epochs.csv, one per epoch.

Only records under the current keys count. If a run has only a record of other software, code, data or
settings, it is missing, and its row has the reason.
"""

import contextlib
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from common.cores import all_cores
from common.errors import InputError, InputErrors, raise_if_machine_error
from common.files import display_path, written_whole
from common.notes import Note
from common.options import run_program
from common.run_status import NO_RECORD_STATUSES, RunStatus
from common.schemas import column_rules
from common.tables import read_table, write_table
from common.text import number_of
from declared.datasets import NEXT, TOKENS, kind, targets
from declared.factors import UNTRACED
from plan.binding import read_binding
from plan.campaign import Campaign, load_campaign
from plan.design import Run
from plan.identity import PlannedRun
from ranks.worker.epoch_timer import COLUMNS
from records.missing import MissingRecord, Situation, describe_missing
from records.next_commands import (
    CONFIGURED,
    CampaignArguments,
    arguments_for,
    cluster_commands,
    repeat_command,
    repeat_notes,
    run_command,
)
from records.record_checks import find_contradiction, load_record
from records.run_rows import planned_row, recorded_row
from runs import phases
from runs.attempts import attempt_path
from runs.epochs import read_lines
from runs.reasons import EXECUTABLE_PREFIXES, is_disturbed

LAST_EPOCH_COLUMNS = (
    "train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "samples_trained", "steps",
    "n_allreduces",
)  # fmt: skip
MEAN_COLUMNS = ("epoch_time_s", "imbalance_s", "validation_time_s")
MAX_NAMED_EPOCHS = 10
MAX_NAMED_RUNS = 20
HEADER = ",".join(["run_id", "key", *COLUMNS]) + "\n"
MAX_LOSS = 700.0  # exp() of a larger number overflows
MIN_RUNS_FOR_PROCESSES = 4  # with fewer traced runs, starting processes takes longer than reading
RUNS_PER_CHUNK = 1000  # limits memory: a process holds their epochs
_NOT_FINITE = re.compile(r"(?<=,)-?(?:nan|inf)(?=,|$)")


def read_planned_record(run_folder: Path, planned_run: PlannedRun, site: str) -> dict[str, Any]:
    """Return the final record of a run, checked against its schema and the plan.

    Args:
        run_folder: The folder of the run, runs/<run_id>/<key>.
        planned_run: The run.
        site: The site to which the study's results are bound.

    Raises:
        InputError: If the record is broken, or differs from the plan (`record_checks.find_contradiction`).
    """
    record = load_record(file := run_folder / "record.json")
    if record["status"] == RunStatus.BROKEN:
        reason = record["reason"]
        raise InputError(
            "broken-file", f"is broken ({reason})", file=file, got=reason, hint=repeat_hint(run_folder)
        )
    if difference := find_contradiction(record, planned_run, site):
        problem = f"is not of this run, or was changed by hand: {difference}"
        raise InputError("wrong-record", problem, file=file, got=difference, hint=repeat_hint(run_folder))
    return record


def epoch_lines(run_folder: Path, record: dict[str, Any], n_epochs: int, n_warm_up: int) -> str:
    """Return the lines of a run for epochs.csv, in which numbers that are not finite are empty.

    Args:
        run_folder: The folder of the run, runs/<run_id>/<key>.
        record: The record of the run.
        n_epochs: Number of epochs that the run must have.
        n_warm_up: Number of epochs at the beginning that must be marked as warm-up.

    Raises:
        InputError: If the table is broken, or epochs are missing, misnumbered, wrongly marked or not timed.
    """
    table = attempt_path(run_folder, record["attempt"]) / "epochs.csv"
    make_error = partial(InputError, file=table, hint=repeat_hint(run_folder))
    try:
        lines = read_lines(table) if table.exists() else []
        if "n" in "".join(lines):  # nan, inf
            lines = [_NOT_FINITE.sub("", line) for line in lines]
    except (OSError, ValueError) as error:
        raise_if_machine_error(error, table)
        raise make_error("broken-file", f"is broken ({error})", got=str(error)) from None
    if record["status"] == RunStatus.OK and len(lines) != n_epochs:
        raise make_error(
            "missing-epochs", f"has {number_of(len(lines), 'epoch')}", got=len(lines), expected=[n_epochs]
        )
    if record["status"] == RunStatus.OK:
        numbers = [line.partition(",")[0] for line in lines]
        if numbers != [str(number) for number in range(1, n_epochs + 1)]:
            listed = ", ".join(numbers[:MAX_NAMED_EPOCHS])
            expected = f"1 to {n_epochs}"
            raise make_error(
                "misnumbered-epochs", f"epochs are numbered {listed}", got=numbers, expected=expected
            )
        fields = (line.split(",", 3) for line in reversed(lines))
        if not any(warm_up == "false" and time for _, warm_up, time, _ in fields):
            raise make_error("no-timed-epoch", "no epoch is timed, all are warm-up")
    if mark := find_wrong_mark(lines, n_warm_up):
        problem = (
            f"epoch {mark['epoch']} has warm_up {mark['warm_up']}, the study's warmup_epochs is {n_warm_up}"
        )
        raise make_error("wrong-warm-up", problem, got=mark)
    start = f"{run_folder.parent.name},{run_folder.name},"
    return "".join([f"{start}{line}\n" for line in lines])


def find_wrong_mark(lines: Sequence[str], n_warm_up: int) -> dict[str, Any] | None:
    """Return number and mark of the first epoch with a wrong warm-up mark, None if all are right."""
    for number, line in enumerate(lines, start=1):
        marked = line.split(",", 2)[1]
        if marked != ("true" if number <= n_warm_up else "false"):
            return {"epoch": number, "warm_up": marked}
    return None


def repeat_hint(run_folder: Path) -> str:
    """Return a hint with the command that repeats the run in a folder results/<study>/runs/<run_id>/<key>."""
    study = run_folder.parts[-4] if len(run_folder.parts) > 3 else ""
    return f"repeat it: {repeat_command(run_folder.parent.name, CampaignArguments(study))}"


def summarize_epochs(epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that epochs add to their run, indexed by run_id.

    MEAN_COLUMNS are arithmetic means over the timed epochs; they are missing if the number is missing in one
    of them.
    """
    timed = epochs[~epochs["warm_up"].astype(bool)].groupby("run_id", sort=False)
    columns = (
        epochs.groupby("run_id", sort=False)[list(LAST_EPOCH_COLUMNS)]
        .nth(-1)
        .set_axis(epochs["run_id"].unique())
    )
    numbers = timed[list(MEAN_COLUMNS)]
    columns[list(MEAN_COLUMNS)] = numbers.mean().where(numbers.count().eq(timed.size(), axis=0))
    columns["epoch_time_median_s"] = timed["epoch_time_s"].median()
    return columns


def aggregate_records(campaign: Campaign, epochs_csv: Path) -> pd.DataFrame:
    """Return the rows of runs.csv in planned order, and write epochs.csv in the same order.

    Raises:
        InputErrors: If records are broken or contradict the plan; one error for each record.
    """
    rows, epoch_columns = read_records(campaign, epochs_csv)
    runs = pd.DataFrame(rows, columns=list(column_rules("runs", campaign.study.factors)))
    columns = pd.concat(epoch_columns).reindex(runs["run_id"]).set_axis(runs.index)
    runs[columns.columns] = columns
    runs["without_phases"] = damaged_phases(runs, campaign.results / "runs")
    runs["throughput_samples_s"] = runs["samples_per_epoch"] / runs["epoch_time_s"]
    return runs.assign(**token_columns(runs, [run.dataset for run in campaign.runs]))


def read_records(campaign: Campaign, epochs_csv: Path) -> tuple[list[dict[str, Any]], list[pd.DataFrame]]:
    """Read all records on all cores, and write epochs.csv completely or not at all.

    Returns:
        The rows of runs.csv in planned order, and the columns that epochs add (`summarize_epochs`).

    Raises:
        InputErrors: If records are broken or contradict the plan; one error for each record.
    """
    chunks = [
        campaign.runs[first : first + RUNS_PER_CHUNK]
        for first in range(0, len(campaign.runs), RUNS_PER_CHUNK)
    ]
    rows: list[dict[str, Any]] = []
    epoch_columns: list[pd.DataFrame] = []
    errors: list[InputError] = []
    with written_whole(epochs_csv) as partial_table, contextlib.ExitStack() as stack:
        map_chunks: Callable[..., Iterable[Any]] = map
        if len(chunks) > 1:
            map_chunks = stack.enter_context(all_cores()).map
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".epochs-", dir=partial_table.parent))
        files = [Path(folder) / f"{number}.csv" for number in range(len(chunks))]
        with open(partial_table, "wb") as merged:
            merged.write(HEADER.encode())
            for (chunk_rows, chunk_columns, chunk_errors), file in zip(
                map_chunks(read_chunk, repeat(campaign), chunks, files), files, strict=True
            ):
                rows += chunk_rows
                epoch_columns += chunk_columns
                errors += chunk_errors
                if errors:
                    continue
                with open(file, "rb") as lines:
                    lines.readline()
                    shutil.copyfileobj(lines, merged, 2**20)
                file.unlink()
        if errors:
            raise InputErrors(errors)
    return rows, epoch_columns


def token_columns(runs: pd.DataFrame, data: Sequence[Mapping[str, Any]]) -> dict[str, pd.Series]:
    """Return the columns that only runs on token sequences have; `data` has the data set of each row."""
    length = pd.Series(
        [entry["shape"][0] if kind(entry) == TOKENS else None for entry in data], runs.index, float
    )
    loss = runs["validation_loss"].where([targets(entry) == NEXT for entry in data]).astype(float)
    return {
        "throughput_tokens_s": runs["throughput_samples_s"].astype(float) * length,
        "perplexity": np.exp(loss.where(loss < MAX_LOSS)),
    }


def damaged_phases(runs: pd.DataFrame, runs_folder: Path) -> pd.Series:
    """Return why phases of successful traced runs are unusable, beginning with the file; None for others.

    Later stages read this column and do not check phases again. `runs_folder` is results/<study>/runs.
    """
    traced = runs[(runs["status"] == RunStatus.OK) & (runs["trace"] != UNTRACED)]
    map_runs: Callable[..., Iterable[str | None]] = map
    with contextlib.ExitStack() as stack:
        if len(traced) >= MIN_RUNS_FOR_PROCESSES:
            map_runs = stack.enter_context(all_cores()).map
        damages = list(map_runs(find_phase_damage, traced.to_dict("records"), repeat(runs_folder)))
    column = pd.Series(damages, index=traced.index, dtype=object).reindex(runs.index)
    return column.where(column.notna(), None)


def find_phase_damage(run: dict[str, Any], runs_folder: Path) -> str | None:
    """Return why the phases of a run are unusable, None if they are usable."""
    attempt = attempt_path(runs_folder / run["run_id"] / run["key"], int(run["attempt"]))
    if pd.isna(run["steps"]):
        return f"{attempt.name}/epochs.csv: does not say how many steps an epoch has"
    damage = phases.damage_reason(attempt, int(run["ranks"]), int(run["epochs"]), int(run["steps"]))
    return damage and f"{attempt.name}/{damage}"


def read_chunk(
    campaign: Campaign, runs: Sequence[Run], epochs_csv: Path
) -> tuple[list[dict[str, Any]], list[pd.DataFrame], list[InputError]]:
    """Write the epochs of runs to `epochs_csv`; return their rows, the columns that epochs add, and errors.

    The columns are those of `summarize_epochs`. `epochs_csv` is complete only if there is no error.
    """
    errors: list[InputError] = []
    rows, lines, site = [], {}, (read_binding(campaign.results) or {"site": campaign.site.name})["site"]
    for run in runs:
        row = planned_row(campaign, run)
        rows.append(row)
        if reason := campaign.not_executable_reason(run):
            row |= MissingRecord(Situation.NOT_EXECUTABLE, reason).columns
            continue
        planned_run = campaign.planned_run(run)
        row |= {"key": planned_run.key, **planned_run.digests}
        run_folder = campaign.results / "runs" / run.run_id / row["key"]
        if (run_folder / "record.json").exists():
            try:
                record = read_planned_record(run_folder, planned_run, site)
                lines[run_folder] = epoch_lines(
                    run_folder, record, run.levels["epochs"], run.levels["warmup_epochs"]
                )
                row |= recorded_row(record, run.levels)
            except InputError as error:
                errors.append(error)
        else:
            row |= describe_missing(run_folder / "record.json").columns
    try:
        return rows, [summarize_epochs(epochs_table(lines.values(), epochs_csv))], errors
    except InputError:
        for run_folder, text in lines.items():  # Find out which run has a wrong line.
            try:
                epochs_table([text], epochs_csv)
            except InputError as error:
                detail = str(error).partition(": ")[2]
                problem = f"epochs.csv of its attempt is broken ({detail})"
                errors.append(
                    InputError(
                        "broken-file", problem, file=run_folder, got=detail, hint=repeat_hint(run_folder)
                    )
                )
        return rows, [], errors


def epochs_table(lines: Iterable[str], file: Path) -> pd.DataFrame:
    """Write lines of epochs to `file`, and return them as a table.

    Raises:
        InputError: If a line violates the schema.
    """
    file.write_text(HEADER + "".join(lines), encoding="utf-8")
    return read_table(file, "epochs")


def summarize(
    runs: pd.DataFrame,
    arguments: CampaignArguments = CONFIGURED,
    run_missing: str = "",
    site: str = "the site's file",
) -> list[Note]:
    """Return notes about the runs that are not ok, and the commands that repeat or execute them.

    Args:
        runs: The rows of runs.csv.
        arguments: The study and the site that the commands have to name.
        run_missing: The command that executes missing runs, if it is not ./ringside run.
        site: The file of the site, for the message.
    """
    counts = Counter(runs.status)
    text = f"{number_of(len(runs), 'run')}: " + ", ".join(f"{counts[status]} {status}" for status in counts)
    lines = [Note("runs", text, runs=len(runs), **counts)]
    not_ok = runs[runs.status != RunStatus.OK]
    for row in not_ok.head(MAX_NAMED_RUNS).itertuples():
        text = f"  {row.run_id}: {row.status}: {row.reason}"
        lines.append(Note("run-not-ok", text, run=row.run_id, status=row.status, reason=row.reason))
    if (n_more := len(not_ok) - MAX_NAMED_RUNS) > 0:
        lines.append(Note("more-not-ok", f"  and {n_more} more, in runs.csv", runs=n_more))
    disturbed = sum(map(is_disturbed, not_ok.reason.dropna()))
    if disturbed and not counts[RunStatus.OK]:
        text = (
            f"{'all' if disturbed == len(runs) else disturbed} were disturbed and none is ok: end other "
            "programs on the machine, or raise max_other_cpu_share (other programs) or max_steal_share (a "
            f"hypervisor) in {site}; captions have the shares"
        )
        lines.append(Note("all-disturbed", text, runs=disturbed, site=site))
    lines += without_phases_notes(runs, arguments)
    lines += repeat_notes(counts, arguments)
    if not_ok.loc[not_ok.status.isin(NO_RECORD_STATUSES), "reason"].str.startswith(EXECUTABLE_PREFIXES).any():
        command = run_missing or run_command(arguments)
        lines.append(Note("to-run", f"to run what is missing: {command}", command=command))
    return lines


def without_phases_notes(runs: pd.DataFrame, arguments: CampaignArguments) -> list[Note]:
    """Return notes about the runs whose phases are unusable, with the commands that repeat them."""
    lines = []
    for row in (damaged := runs[runs.without_phases.notna()]).head(MAX_NAMED_RUNS).itertuples():
        command = repeat_command(row.run_id, arguments)
        damage = f"results/{row.study}/runs/{row.run_id}/{row.key}/{row.without_phases}"
        text = f"  {damage}; it counts as a run without phases; repeat it: {command}"
        lines.append(Note("run-without-phases", text, run=row.run_id, damage=damage, command=command))
    if (n_more := len(damaged) - MAX_NAMED_RUNS) > 0:
        lines.append(
            Note("more-without-phases", f"  and {n_more} more without phases, in runs.csv", runs=n_more)
        )
    return lines


def main(*, study: str, site: str, runs: Path, epochs: Path) -> None:
    """Aggregate the records of a study into runs.csv and epochs.csv.

    Args:
        study: name of a file in config/studies/
        site: name of a file in config/sites/
        runs: runs.csv
        epochs: epochs.csv
    """
    campaign = load_campaign({"study": study, "site": site, "records": "available"})
    table = aggregate_records(campaign, epochs)
    write_table(table, "runs", runs)
    command = cluster_commands(campaign.site.launcher, study, site)
    print("\n".join(summarize(table, arguments_for(study, site), command, display_path(campaign.site.file))))


if __name__ == "__main__":
    sys.exit(run_program(main))
