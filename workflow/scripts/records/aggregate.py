"""Records to tables: one row of runs.csv for every run of the design, whether or not it succeeded, and one of epochs.csv per epoch.

Only the current keys count: a record that was made of other software, code, data or settings is not taken, and said so.
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
from common.errors import InputError, InputErrors, refuse_machine_error
from common.files import shown, written_whole
from common.notes import Note
from common.options import run_program
from common.schemas import schema
from common.tables import read_table, write_table
from common.text import number_of
from declared.datasets import NEXT, TOKENS, kind, targets
from declared.factors import UNTRACED
from plan.binding import read_binding
from plan.campaign import Campaign, load_campaign
from plan.design import Run
from plan.identity import Planned, link_rate
from plan.recorded import contradiction, record_of
from ranks.worker.meter import COLUMNS
from records.ways import CONFIGURED, Named, named_for, repeat_command, run_command, to_repeat, ways_to_run
from runs import phases
from runs.attempts import numbered, why_absent
from runs.epochs import read_lines

MEASURED = (
    "node_memory_bytes", "transport", "startup_s", "import_s", "first_step_s", "memory_peak_bytes", "device_memory_peak_bytes",
    "throttled_s", "sent_bytes", "energy_device_j", "energy_package_j", "energy_node_j", "energy_j", "energy_scope",
    "foreign_cpu_share", "steal_share", "paused_s", "python_version", "library_version",
)  # fmt: skip
RECORDED = (
    "site", "session", "status", "reason", "attempt", "started_at", "ended_at", "placement", "timing_scope",
    "cores_per_rank", "oversubscribed", "max_foreign_cpu_share", "wall_s",
)  # fmt: skip
LAST_EPOCH = (
    "train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "samples_trained", "steps", "exchanges",
)  # fmt: skip
MEANS = ("epoch_time_s", "imbalance_s", "validation_time_s")
TO_RUN = ("absent: ", "old: ")  # how the reasons begin of rows that can be run here (runs.attempts.why_absent)
NAMED = 10  # numbers of epochs in a message
NAMED_RUNS = 20
HEADER = ",".join(["run_id", "key", *COLUMNS]) + "\n"
LARGEST_LOSS = 700.0  # whose perplexity is a number
SEVERAL = 4  # traced runs, from which on a second process is worth its start
AT_ONCE = 1000  # runs that one process reads, whose epochs it holds in memory
_NOT_FINITE = re.compile(r"(?<=,)-?(?:nan|inf)(?=,|$)")


def planned_row(campaign: Campaign, run: Run) -> dict[str, Any]:
    """What is known of a run before it ran."""
    geometry = vars(run.geometry)
    return {
        "run_id": run.run_id,
        "study": campaign.study.name,
        "cell": run.cell,
        "replicate": run.replicate,
        "block": run.block,
        "order_key": run.order_key,
        "seed": run.seed,
        **run.levels,
        **{
            name: geometry[name]
            for name in ("ranks", "replicas", "local_batch", "effective_batch", "samples_per_epoch")
        },
        "cpu_share": campaign.site.cpu_share,
        "cpu_shares": "/".join(f"{share:g}" for share in campaign.site.cpu_shares[: run.geometry.nodes]) or None,
        "bandwidth_bytes_s": link_rate(campaign.site, run.levels),
        "base": run.framework.base,
    }


def read_record(folder: Path, wanted: Planned, site: str) -> dict[str, Any]:
    """The published record of a run. InputError when it is broken, or not of this run (`plan.recorded.contradiction`)."""
    record = record_of(file := folder / "record.json")
    if record["status"] == "broken":
        reason = record["reason"]
        raise InputError("broken-file", f"is broken ({reason})", file=shown(file), got=reason, hint=_advice(folder))
    if said := contradiction(record, wanted, site):
        problem = f"is not of this run, or was changed by hand: {said}"
        raise InputError("wrong-record", problem, file=shown(file), got=said, hint=_advice(folder))
    return record


def epoch_lines(folder: Path, record: dict[str, Any], epochs_wanted: int, warm_up: int) -> str:
    """The lines of the record's epochs as those of the study's epochs.csv; a number that is not finite is an empty field.

    InputError when there are too few, they are not numbered 1, 2, ..., others than the first `warm_up` are marked as warm-up, none is
    timed, or the attempt's table is broken.
    """
    table = numbered(folder, record["attempt"]) / "epochs.csv"
    refused = partial(InputError, file=table, hint=_advice(folder))
    try:
        lines = read_lines(table) if table.exists() else []
        if "n" in "".join(lines):  # nan, inf
            lines = [_NOT_FINITE.sub("", line) for line in lines]
    except (OSError, ValueError) as error:
        refuse_machine_error(error, table)
        raise refused("broken-file", f"is broken ({error})", got=str(error)) from None
    if record["status"] == "ok" and len(lines) != epochs_wanted:
        raise refused(
            "missing-epochs", f"has {number_of(len(lines), 'epoch')}", got=len(lines), expected=[epochs_wanted]
        )
    if record["status"] == "ok":
        numbers = [line.partition(",")[0] for line in lines]
        if numbers != [str(number) for number in range(1, epochs_wanted + 1)]:
            told = ", ".join(numbers[:NAMED])
            expected = f"1 to {epochs_wanted}"
            raise refused("misnumbered-epochs", f"epochs are numbered {told}", got=numbers, expected=expected)
        fields = (line.split(",", 3) for line in reversed(lines))
        if not any(warm_up == "false" and time for _, warm_up, time, _ in fields):
            raise refused("no-timed-epoch", "no epoch is timed, all are warm-up")
    if wrong := _marked_wrong(lines, warm_up):
        problem = f"epoch {wrong['epoch']} has warm_up {wrong['warm_up']}, the study's warmup_epochs is {warm_up}"
        raise refused("wrong-warm-up", problem, got=wrong)
    start = f"{folder.parent.name},{folder.name},"
    return "".join([f"{start}{line}\n" for line in lines])


def _marked_wrong(lines: Sequence[str], warm_up: int) -> dict[str, Any] | None:
    """Return number and mark of the first epoch whose mark says otherwise than that the first `warm_up` are warm-up."""
    for number, line in enumerate(lines, start=1):
        marked = line.split(",", 2)[1]
        if marked != ("true" if number <= warm_up else "false"):
            return {"epoch": number, "warm_up": marked}
    return None


def _advice(folder: Path) -> str:
    """What repeats the run whose record lies in `folder`: results/<study>/runs/<run_id>/<key>."""
    study = folder.parts[-4] if len(folder.parts) > 3 else ""
    return f"repeat it: {repeat_command(folder.parent.name, Named(study))}"


def recorded_row(record: dict[str, Any]) -> dict[str, Any]:
    """What a record adds to a row."""
    measured = record["measured"] or {}
    job = record["job"] or {}
    before = "; ".join(f"{a['attempt']}: {a['reason']}" for a in record["unfinished_attempts"])
    return {
        **{name: record[name] for name in RECORDED},
        **{name: measured.get(name) for name in MEASURED},
        **{f"step_time_{name}_s": value for name, value in (measured.get("step_time_s") or {}).items()},
        **{f"idle_{scope}_w": watts for scope, watts in (measured.get("idle_w") or {}).items()},
        **_shares(measured.get("shares") or []),
        **_reference(record.get("reference")),
        "deployment": record.get("deployment"),
        "modules": "; ".join((record.get("installed") or {}).get("modules", [])) or None,
        "job": job.get("number"),
        "submitted_at": job.get("submitted_at"),
        "job_started_at": job.get("started_at"),
        "unfinished_attempts": before or None,
        "hosts": " ".join(measured.get("hosts", [])) or None,
        **{
            name: "; ".join(dict.fromkeys(measured.get(name, []))) or None for name in ("devices", "drivers", "systems")
        },
    }


def _shares(shares: Sequence[dict[str, Any]]) -> dict[str, str | None]:
    """How a step's samples were divided among the ranks, and how fast these are, as a row has it."""
    speeds = [share["samples_s"] for share in shares]
    return {
        "rank_samples": "/".join(str(share["samples"]) for share in shares) or None,
        "rank_speeds": "/".join(f"{speed:.6g}" for speed in speeds) or None if None not in speeds else None,
    }


def _reference(said: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a row has of the work beside a run: seconds of the slowest node, at both ends and of both together."""
    if not said:
        return {}
    before, after = (max(said[end].values()) if said[end] else None for end in ("before", "after"))
    return {
        "reference_kind": said["kind"],
        "reference_s": None if before is None or after is None else (before + after) / 2,
        "reference_before_s": before,
        "reference_after_s": after,
        "waited_s": said["waited_s"],
    }


def of_epochs(epochs: pd.DataFrame) -> pd.DataFrame:
    """What the epochs of a run add to its row, by run_id. MEANS are arithmetic means without the warm-up, missing where an
    epoch lacks the number."""
    timed = epochs[~epochs["warm_up"].astype(bool)].groupby("run_id", sort=False)
    made = epochs.groupby("run_id", sort=False)[list(LAST_EPOCH)].nth(-1).set_axis(epochs["run_id"].unique())
    numbers = timed[list(MEANS)]
    made[list(MEANS)] = numbers.mean().where(numbers.count().eq(timed.size(), axis=0))
    made["epoch_time_median_s"] = timed["epoch_time_s"].median()
    return made


def aggregate(campaign: Campaign, epochs_csv: Path) -> pd.DataFrame:
    """The rows of runs.csv in planned order. Writes epochs.csv, in the same order, whole or not at all.

    Many runs are read on all cores. InputErrors where records are broken, or not of their runs.
    """
    parts = [campaign.runs[first : first + AT_ONCE] for first in range(0, len(campaign.runs), AT_ONCE)]
    rows: list[dict[str, Any]] = []
    added: list[pd.DataFrame] = []
    refused: list[InputError] = []
    with written_whole(epochs_csv) as partial, contextlib.ExitStack() as stack:
        several: Callable[..., Iterable[Any]] = map
        if len(parts) > 1:
            several = stack.enter_context(all_cores()).map
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".epochs-", dir=partial.parent))
        files = [Path(folder) / f"{number}.csv" for number in range(len(parts))]
        with open(partial, "wb") as whole:
            whole.write(HEADER.encode())
            for (of_part, of_epochs, wrong), file in zip(
                several(_read, repeat(campaign), parts, files), files, strict=True
            ):
                rows += of_part
                added += of_epochs
                refused += wrong
                if refused:
                    continue
                with open(file, "rb") as part:
                    part.readline()
                    shutil.copyfileobj(part, whole, 2**20)
                file.unlink()
        if refused:
            raise InputErrors(refused)
    runs = pd.DataFrame(rows, columns=list(schema("runs")["properties"]))
    of_run = pd.concat(added).reindex(runs["run_id"]).set_axis(runs.index)
    runs[of_run.columns] = of_run
    runs["without_phases"] = without_phases(runs, campaign.results / "runs")
    runs["throughput_samples_s"] = runs["samples_per_epoch"] / runs["epoch_time_s"]
    return runs.assign(**of_tokens(runs, [run.dataset for run in campaign.runs]))


def of_tokens(runs: pd.DataFrame, data: Sequence[Mapping[str, Any]]) -> dict[str, pd.Series]:
    """What rows tell of sequences of tokens alone; `data`: the entry of each row's data set."""
    length = pd.Series([entry["shape"][0] if kind(entry) == TOKENS else None for entry in data], runs.index, float)
    loss = runs["validation_loss"].where([targets(entry) == NEXT for entry in data]).astype(float)
    return {
        "throughput_tokens_s": runs["throughput_samples_s"].astype(float) * length,
        "perplexity": np.exp(loss.where(loss < LARGEST_LOSS)),
    }


def without_phases(runs: pd.DataFrame, records: Path) -> pd.Series:
    """Of every successful traced run, why what it kept of its phases cannot be used, file first; None where it can, and of other runs.

    Here alone phases are held against their run; all that comes later goes by this column. `records`: results/<study>/runs.
    """
    some = runs[(runs["status"] == "ok") & (runs["trace"] != UNTRACED)]
    several: Callable[..., Iterable[str | None]] = map
    with contextlib.ExitStack() as stack:
        if len(some) >= SEVERAL:
            several = stack.enter_context(all_cores()).map
        said = list(several(_without_phases, some.to_dict("records"), repeat(records)))
    return pd.Series(said, index=some.index, dtype=object).reindex(runs.index).where(lambda found: found.notna(), None)


def _without_phases(run: dict[str, Any], records: Path) -> str | None:
    attempt = numbered(records / run["run_id"] / run["key"], int(run["attempt"]))
    if pd.isna(run["steps"]):
        return f"{attempt.name}/epochs.csv: does not tell how many steps an epoch has"
    said = phases.damage(attempt, int(run["ranks"]), int(run["epochs"]), int(run["steps"]))
    return said and f"{attempt.name}/{said}"


def _read(
    campaign: Campaign, runs: Sequence[Run], epochs_csv: Path
) -> tuple[list[dict[str, Any]], list[pd.DataFrame], list[InputError]]:
    """The rows of these runs, what their epochs add to them (`of_epochs`), and what is wrong with records, a line each.

    Writes their part of epochs.csv unless something is wrong.
    """
    wrong: list[InputError] = []
    rows, lines, site = [], {}, (read_binding(campaign.results) or {"site": campaign.site.name})["site"]
    for run in runs:
        row = planned_row(campaign, run)
        rows.append(row)
        if reason := campaign.lacks(run):
            row |= {"status": "missing", "reason": reason}
            continue
        wanted = campaign.planned(run)
        row |= {"key": wanted.key, **wanted.digests}
        folder = campaign.results / "runs" / run.run_id / row["key"]
        if (folder / "record.json").exists():
            try:
                record = read_record(folder, wanted, site)
                lines[folder] = epoch_lines(folder, record, run.levels["epochs"], run.levels["warmup_epochs"])
                row |= recorded_row(record)
            except InputError as error:
                wrong.append(error)
        else:
            row |= {"status": "missing", "reason": why_absent(folder / "record.json")}
    try:
        return rows, [of_epochs(_table(lines.values(), epochs_csv))], wrong
    except InputError:
        for folder, own in lines.items():  # which of them it was
            try:
                _table([own], epochs_csv)
            except InputError as error:
                what = str(error).partition(": ")[2]
                problem = f"epochs.csv of its attempt is broken ({what})"
                wrong.append(InputError("broken-file", problem, file=folder, got=what, hint=_advice(folder)))
        return rows, [], wrong


def _table(lines: Iterable[str], file: Path) -> pd.DataFrame:
    """The table of these lines, which are left in `file`. InputError where they break its schema."""
    file.write_text(HEADER + "".join(lines), encoding="utf-8")
    return read_table(file, "epochs")


def summary(runs: pd.DataFrame, named: Named = CONFIGURED, way: str = "", site: str = "the site's file") -> list[Note]:
    """Return what a person should know, a line each: how many rows are ok, which are not and why, and the command that repeats them.

    Args:
        runs: The rows of runs.csv.
        named: The study and the site that a command has to name.
        way: The command that runs what is missing, where it is not ./ringside run.
        site: The file of the site.
    """
    counts = Counter(runs.status)
    text = f"{number_of(len(runs), 'run')}: " + ", ".join(f"{counts[status]} {status}" for status in counts)
    lines = [Note("runs", text, runs=len(runs), **counts)]
    not_ok = runs[runs.status != "ok"]
    for row in not_ok.head(NAMED_RUNS).itertuples():
        text = f"  {row.run_id}: {row.status}: {row.reason}"
        lines.append(Note("run-not-ok", text, run=row.run_id, status=row.status, reason=row.reason))
    if (more := len(not_ok) - NAMED_RUNS) > 0:
        lines.append(Note("more-not-ok", f"  and {more} more, in runs.csv", runs=more))
    disturbed = int(not_ok.reason.str.startswith("disturbed: ").fillna(False).sum())
    if disturbed and not counts["ok"]:
        text = (
            f"{'all' if disturbed == len(runs) else disturbed} were disturbed and none is ok: end other programs on the machine, or "
            f"raise max_foreign_cpu_share (other programs) or max_steal_share (a hypervisor) in {site}; captions say how much it was"
        )
        lines.append(Note("all-disturbed", text, runs=disturbed, site=site))
    for row in (lost := runs[runs.without_phases.notna()]).head(NAMED_RUNS).itertuples():
        command = repeat_command(row.run_id, named)
        damage = f"results/{row.study}/runs/{row.run_id}/{row.key}/{row.without_phases}"
        text = f"  {damage}; it counts as a run without phases; repeat it: {command}"
        lines.append(Note("run-without-phases", text, run=row.run_id, damage=damage, command=command))
    if (more := len(lost) - NAMED_RUNS) > 0:
        lines.append(Note("more-without-phases", f"  and {more} more without phases, in runs.csv", runs=more))
    lines += to_repeat(counts, named)
    if not_ok.loc[not_ok.status == "missing", "reason"].str.startswith(TO_RUN).any():
        command = way or run_command(named)
        lines.append(Note("to-run", f"to run what is missing: {command}", command=command))
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
    table = aggregate(campaign, epochs)
    write_table(table, "runs", runs)
    way = ways_to_run(campaign.site.launcher, study, site)
    print("\n".join(summary(table, named_for(study, site), way, shown(campaign.site.file))))


if __name__ == "__main__":
    sys.exit(run_program(main))
