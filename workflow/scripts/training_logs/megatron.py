"""Read logs of Megatron-LM, and of programs that print lines in its format for each logging interval.

    [2026-05-03 10:00:12] iteration  10/ 1000 | consumed samples:  160 | elapsed time per iteration (ms):
    820.7 | learning rate: 4.0E-05 | global batch size:  16 | lm loss: 1.072453E+01 | ...

(one line). The time is the mean over the interval. Before the first interval, Megatron prints its arguments:

      global_batch_size ............................... 16
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from training_logs.log import (
    Log,
    LogError,
    Step,
    StepCollector,
    decimal,
    drop_unknown,
    natural_number,
    plain_lines,
    positive,
    unix_time,
)

MARK = "elapsed time per iteration (ms):"
_ITERATION = re.compile(r"(?:\[([\d-]{10} [\d:]{8}[.\d]*)\]\s*)?\biteration\s+(\d+)/\s*(?:\d+|infinity) \|")
_ARGUMENT = re.compile(r"\s*(\w+) \.{2,} (\S.*)")
_LOADED = re.compile(r"load(?:ed|ing) checkpoint .{0,1000}? at iteration (\d{1,15})\b")
_STARTS = ("[before the start of training step]", "training ...")
ARGUMENTS = {
    "world_size": "devices",
    "global_batch_size": "global_batch",
    "micro_batch_size": "local_batch",
    "seq_length": "sequence_length",
    "data_parallel_size": "data_parallel",
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel",
}


def read(lines: Iterable[str]) -> Log:
    """Return the steps and facts of a log.

    Raises:
        LogError: If it has no line with a time.
    """
    collector, damaged, last = StepCollector(), 0, 0  # last: number of lines
    arguments: dict[str, str] = {}
    for number, _, text in plain_lines(lines):
        last = number
        if "iteration " in text and "|" in text:
            for match, fields in _intervals(text):
                step = _step(match, fields)
                if step is None:
                    damaged += 1
                else:
                    collector.add(step)
                    if batch := natural_number(fields.get("global batch size")):
                        arguments.setdefault("global_batch_size", str(batch))
        elif argument := _ARGUMENT.match(text):
            arguments.setdefault(argument[1], argument[2].strip())
        elif any(start in text for start in _STARTS):
            collector.restart()
        elif loaded := _LOADED.search(text):
            collector.restart(int(loaded[1]))
    if not len(collector):
        raise LogError(0, f"has no interval in {last} lines", f"lines with 'iteration N/N | ... {MARK} T |'")
    steps, sequence = collector.steps(), natural_number(arguments.get("seq_length"))
    if sequence:
        steps = tuple(
            replace(step, tokens=step.samples * sequence) if step.samples else step for step in steps
        )
    facts = {fact: natural_number(arguments.get(name)) for name, fact in ARGUMENTS.items()}
    return Log(
        steps,
        drop_unknown(
            {
                "framework": "megatron-lm",
                **facts,
                "precision": _precision(arguments),
                "accumulation": _accumulation(facts),
                "started_at": steps[0].started_at,
                "restarts": collector.restarts,
                "damaged_lines": damaged,
            }
        ),
    )


def _intervals(text: str) -> Iterable[tuple[re.Match[str], dict[str, str]]]:
    """Yield the intervals of a line, with their fields by name.

    A line has two intervals if a line break is lost. A field without a final | is cut off and left out.
    """
    matches = list(_ITERATION.finditer(text))
    for place, match in enumerate(matches):
        end = matches[place + 1].start() if place + 1 < len(matches) else len(text)
        fields = text[match.end() : end].split("|")[:-1]
        yield (
            match,
            {name.strip(): value.strip() for name, _, value in (field.partition(":") for field in fields)},
        )


def _step(match: re.Match[str], fields: dict[str, str]) -> Step | None:
    milliseconds = positive(fields.get(MARK.rstrip(":")))
    if milliseconds is None or len(match[2]) > 15:
        return None
    seconds, ended = milliseconds / 1000, unix_time(match[1] or "")
    return Step(
        int(match[2]),
        seconds,
        samples=positive(fields.get("global batch size")),
        loss=decimal(fields.get("lm loss")),
        started_at=None if ended is None else ended - seconds,
    )


def _precision(arguments: dict[str, str]) -> str | None:
    """Return fp8, bf16, fp16 or fp32; None if the log does not have the arguments."""
    if arguments.get("fp8", "None") not in ("None", "False"):
        return "fp8"
    switched_on = [name for name in ("bf16", "fp16") if arguments.get(name) == "True"]
    return switched_on[0] if switched_on else "fp32" if "bf16" in arguments else None


def _accumulation(facts: dict[str, int | None]) -> int | None:
    """Return global batch / (micro-batch x data-parallel replicas); None if it is unknown or not whole."""
    batch, micro, replicas = (facts[name] for name in ("global_batch", "local_batch", "data_parallel"))
    if batch and micro and replicas and not batch % (micro * replicas):
        return batch // (micro * replicas)
    return None
