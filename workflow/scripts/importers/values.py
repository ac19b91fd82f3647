"""List the values that a file can have for a run, with usual column names and parsers of their texts."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from training_logs.log import decimal, natural_number, unix_time

MAX_UNIX_TIME = 1e10  # larger numbers are milliseconds
# Level of the factor `precision` -> its names in libraries.
PRECISION_ALIASES = {
    "fp32": ("fp32", "float32", "32", "32-true", "single", "no"),
    "tf32": ("tf32",),
    "amp": ("amp", "bf16", "bfloat16", "fp16", "float16", "half", "mixed", "mixed-precision", "16-mixed",
            "bf16-mixed", "amp-bf16", "amp-fp16", "16"),
    "bf16": ("bf16-true",),
}  # fmt: skip
SUCCESS = ("ok", "success", "succeeded", "complete", "completed", "finished", "passed", "done", "0", "true")


@dataclass(frozen=True)
class Value:
    """A property of a run that a file can have.

    Attributes:
        meaning: A description for help and errors.
        parse: Converts the text of a cell; raises ValueError, with what was expected, if it cannot.
        columns: Usual names of its column, in lower case, separated by blanks.
        time: Whether it is a time, which can have several units.
    """

    meaning: str
    parse: Callable[[str], Any]
    columns: str = ""
    time: bool = False


def to_name(text: str) -> str:
    """Return a name of a framework, model or data set as a level: a-z, 0-9 and single hyphens."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name:
        raise ValueError("a name with letters or digits")
    return name[:100].rstrip("-")


def to_count(text: str) -> int:
    """Return a whole number from 1 on; 8.0 is accepted."""
    number = natural_number(decimal(text))
    if number is None:
        raise ValueError("a whole number of 1 or more")
    return number


def to_total(text: str) -> int:
    """Return a whole number from 0 on."""
    number = decimal(text)
    if number is None or number < 0 or number != int(number):
        raise ValueError("a whole number of 0 or more")
    return int(number)


def to_level(text: str) -> int | float | str:
    """Return a level of a user's factor: an integer, a number or a word."""
    number = decimal(text)
    return text if number is None else int(number) if number == int(number) else number


def to_number(text: str) -> float:
    """Return a number above 0."""
    number = decimal(text)
    if number is None or not 0 < number < float("inf"):
        raise ValueError("a number above 0")
    return number


def to_precision(text: str) -> str:
    """Return the level of `precision` for a library's name of it."""
    name = to_name(text)
    for level, names in PRECISION_ALIASES.items():
        if name in names:
            return level
    raise ValueError("fp32, tf32, amp, bf16 or fp16")


def to_moment(text: str) -> float:
    """Return a date or a Unix time in s or ms as Unix time."""
    number = decimal(text)
    moment = unix_time(text) if number is None else number / (1000 if number > MAX_UNIX_TIME else 1)
    if moment is None or not 0 < moment < MAX_UNIX_TIME:
        raise ValueError("a date or a Unix time")
    return moment


def to_text(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.split())


VALUES: Mapping[str, Value] = {
    "framework": Value("framework", to_name, "framework library"),
    "model": Value("model", to_name, "model benchmark network"),
    "dataset": Value("data set", to_name, "dataset data_set"),
    "precision": Value("precision", to_precision, "precision dtype amp"),
    "nodes": Value("number of nodes", to_count, "nodes n_nodes num_nodes number_of_nodes"),
    "devices_per_node": Value(
        "devices of a node",
        to_count,
        "devices_per_node gpus_per_node ngpus_per_node accelerators_per_node ntasks_per_node",
    ),
    "devices": Value(
        "number of all devices",
        to_count,
        "devices n_devices gpus n_gpus num_gpus ngpus world_size ranks n_ranks gpu_count",
    ),
    "local_batch": Value(
        "samples of a replica in one micro-batch",
        to_number,
        "local_batch batch_size local_batch_size micro_batch micro_batch_size "
        "per_device_batch_size batch_size_per_gpu batch_per_gpu device_batch_size mbs",
    ),
    "sync_every": Value(
        "gradient accumulation steps",
        to_count,
        "sync_every accumulation gradient_accumulation_steps accumulation_steps grad_accum "
        "gradient_accumulation",
    ),
    "global_batch": Value(
        "samples of an optimizer step",
        to_number,
        "global_batch global_batch_size effective_batch effective_batch_size gbs train_batch_size",
    ),
    "data_parallel": Value("data-parallel replicas", to_count, "data_parallel dp data_parallel_size"),
    "sharded_parallel": Value("ranks of a sharded axis", to_count, "sharded_parallel fsdp dp_shard"),
    "tensor_parallel": Value("ranks of a tensor axis", to_count, "tensor_parallel tp tensor_parallel_size"),
    "pipeline_parallel": Value(
        "stages of a pipeline", to_count, "pipeline_parallel pipeline pp pipeline_parallel_size"
    ),
    "context_parallel": Value("ranks that share a sequence", to_count, "context_parallel cp"),
    "seconds": Value(
        "time of an optimizer step",
        to_number,
        "seconds step_s step_time_s step_seconds step_time step_time_ms step_ms iteration_time "
        "iteration_time_ms iter_time time_per_step step_median_s",
        time=True,
    ),
    "epoch_s": Value(
        "time of an epoch", to_number, "epoch_s epoch_time_s epoch_time epoch_seconds", time=True
    ),
    "run_s": Value("time to train", to_number, "run_s time_to_train time_to_train_s run_seconds", time=True),
    "samples_per_s": Value(
        "samples/s of all devices",
        to_number,
        "samples_per_s samples_per_second samples/s throughput throughput_samples_s images_per_s "
        "images/s images_per_second img/s sequences_per_s sequences/s",
    ),
    "tokens_per_s": Value(
        "tokens/s of all devices", to_number, "tokens_per_s tokens_per_second tokens/s throughput_tokens_s"
    ),
    "device_tokens_per_s": Value(
        "tokens/s of one device", to_number, "tps tokens_per_second_per_gpu tokens/s/gpu device_tokens_per_s"
    ),
    "sequence_length": Value(
        "tokens of a sample", to_count, "sequence_length sequence seq_len seq_length seqlen"
    ),
    "samples_per_epoch": Value("samples of an epoch", to_count, "samples_per_epoch train_samples"),
    "parameters": Value("parameters of the model", to_number, "parameters n_parameters params n_params"),
    "gradient_bytes": Value("bytes of its gradients", to_number, "gradient_bytes"),
    "bandwidth_gbit_s": Value("link rate of a node in Gbit/s", to_number, "bandwidth_gbit_s"),
    "inside_bandwidth_gbit_s": Value(
        "link rate inside a node in Gbit/s", to_number, "inside_bandwidth_gbit_s"
    ),
    "device": Value("model of the devices", to_text, "device gpu accelerator device_model"),
    "hosts": Value("host names", to_text, "hosts host hostname"),
    "started_at": Value("when the run began", to_moment, "started_at started start_time date timestamp"),
    "status": Value("whether the run succeeded", to_text, "status result"),
    "reason": Value("why it did not", to_text, "reason error"),
    "evaluations": Value("number of evaluations", to_total, "evaluations evals"),
}
