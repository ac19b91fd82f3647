"""What `make predict` asks: how many nodes are worth it, for a study or for a model that was not measured.

From a study (--from results/<study>: its computation, its law of the network, what is hidden, the waiting, with intervals
of a parametric bootstrap), or from numbers alone, which needs no campaign: a model's size, the time of a step on one
device, the network. Both may be mixed: --from with --step-time puts another model on the study's network.
"""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from common.arguments import OneLineParser
from common.errors import InputError
from models.graph import BYTES
from prediction import exchange, law

RATES = (1.0, 10.0, 25.0, 100.0)  # Gbit/s
MOST_NODES = 1024
DEFAULT_FRAMEWORK = "pytorch-ddp"
MOST_BYTES, MOST_SAMPLES, MOST = 1e15, 10**15, 10**9  # of gradients, of an epoch, of anything else that is counted
OF_STEP: dict[str, Any] = {
    "batch_size": 32,
    "samples": 1281167,
    "dataset": "synthetic-224x224x3-1000",
    "sync_every": 1,
    "framework": None,
}
OF_NETWORK: dict[str, Any] = {"latency": 30e-6, "share": 0.9, "algorithm": "ring", "hidden": 0.0, "scatter": 0.0}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = OneLineParser(prog="make predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--from", dest="study", type=Path, metavar="FOLDER", help="results/<study>, or a folder of docs/campaigns/"
    )
    model = made.add_argument_group("a model that was not measured")
    model.add_argument(
        "--step-time",
        type=_number("--step-time", 1e-9, 1e6),
        metavar="S",
        help="seconds of a training step on one device",
    )
    model.add_argument(
        "--batch-size",
        type=_whole("--batch-size", MOST),
        metavar="N",
        help=f"samples of that step (default {OF_STEP['batch_size']})",
    )
    model.add_argument(
        "--samples",
        type=_whole("--samples", MOST_SAMPLES),
        metavar="N",
        help="samples of an epoch (default: ImageNet's)",
    )
    model.add_argument("--model", help="a model of make models; with --dataset, which gives its samples and classes")
    model.add_argument("--dataset", help=f"default: {OF_STEP['dataset']}")
    model.add_argument(
        "--parameters",
        type=_number("--parameters", 1, MOST_BYTES / BYTES),
        metavar="N",
        help="instead of --model: parameters of 4 bytes",
    )
    model.add_argument(
        "--gradient-bytes",
        type=_number("--gradient-bytes", 1, MOST_BYTES),
        metavar="N",
        help="instead of --model: bytes that are exchanged",
    )
    model.add_argument(
        "--sync-every",
        type=_whole("--sync-every", MOST),
        metavar="K",
        help=f"batches per exchange (default {OF_STEP['sync_every']})",
    )
    network = made.add_argument_group("the network; with --from all but the rates are the study's")
    network.add_argument(
        "--rate",
        type=_number("--rate", 1e-6, 1e6),
        nargs="+",
        default=RATES,
        metavar="G",
        help="links, Gbit/s (default 1 10 25 100)",
    )
    network.add_argument(
        "--latency",
        type=_number("--latency", 0, 1e3),
        metavar="S",
        help=f"of a message to the next node (default {OF_NETWORK['latency']:g})",
    )
    network.add_argument(
        "--share",
        type=_number("--share", 1e-6, 1),
        help=f"of the link's rate that all-reduce reaches (default {OF_NETWORK['share']})",
    )
    network.add_argument(
        "--algorithm", choices=law.GROWTH, help=f"how latency grows with nodes (default {OF_NETWORK['algorithm']})"
    )
    network.add_argument(
        "--framework",
        choices=exchange.described(),
        help=f"whose messages (default {DEFAULT_FRAMEWORK}, or the study's one)",
    )
    network.add_argument(
        "--hidden", type=_number("--hidden", 0, 1), help="share of the backward pass that hides messages (default 0)"
    )
    network.add_argument(
        "--scatter", type=_number("--scatter", 0, 1e3), help="s.d. of a batch's time over itself (default 0)"
    )
    made.add_argument(
        "--nodes",
        type=_whole("--nodes", MOST),
        default=MOST_NODES,
        metavar="N",
        help="the largest number of nodes (default 1024)",
    )
    made.add_argument(
        "--out", type=Path, metavar="STEM", help="where to write table and figure; default: the table is printed alone"
    )
    return made


def _number(option: str, least: float, most: float) -> Callable[[str], float]:
    """What reads a number from `least` to `most`."""

    def number(text: str) -> float:
        value = float(text)
        if np.isnan(value):
            raise InputError("wrong-type", f"{text} is not a number", file=option, got=text)
        _limited(option, text, value, least, most)
        return value

    return number


def _whole(option: str, most: int) -> Callable[[str], int]:
    """What reads a whole number from 1 to `most`."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise InputError("wrong-type", f"{text!r} is not a whole number", file=option, got=text) from None
        _limited(option, text, value, 1, most)
        return value

    return whole


def _limited(option: str, text: str, value: float, least: float, most: float) -> None:
    if value < least:
        raise InputError("out-of-range", f"{text} is too small", file=option, got=value, expected=f"at least {least:g}")
    if value > most:
        raise InputError("out-of-range", f"{text} is too large", file=option, got=value, expected=f"at most {most:g}")


def asked(argv: list[str] | None, of: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """The command line (of `parser`, or of one made of it) with its defaults. InputError where its numbers do not make a question, or some mean nothing in it."""
    args = (of or parser()).parse_args(argv)
    sizes = [name for name in ("model", "parameters", "gradient_bytes") if getattr(args, name) is not None]
    if args.step_time is None and (sizes or not args.study):
        expected = "seconds of a training step on one device"
        hint = "or name a study with --from"
        raise InputError("missing-key", "is missing", file="--step-time", expected=expected, hint=hint)
    if args.step_time is not None and len(sizes) != 1:
        given = [f"--{name.replace('_', '-')}" for name in sizes]
        raise InputError(
            "conflicting-keys" if given else "missing-key",
            "give one of --model, --parameters and --gradient-bytes: the size of an exchange",
            got=given,
        )
    if args.study:
        _refuse(args, OF_NETWORK, "with --from: it is taken from the study's sweeps and runs", "leave it out")
    if args.step_time is None:
        _refuse(
            args,
            OF_STEP,
            "with --from alone, which answers for the models of the study",
            "add --step-time to ask about another model",
        )
    elif args.model is None:
        size = f"--{sizes[0].replace('_', '-')}"
        _refuse(args, ["dataset"], f"with {size}, which gives the size of an exchange", "leave it out")
    for name, default in (OF_STEP | OF_NETWORK).items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    if args.samples < args.batch_size:
        problem, expected = f"{args.samples} is too small", f"at least the batch size, {args.batch_size}"
        raise InputError("out-of-range", problem, file="--samples", got=args.samples, expected=expected)
    return args


def _refuse(args: argparse.Namespace, names: Iterable[str], why: str, hint: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError("conflicting-keys", f"cannot be used {why}", file=option, hint=hint)
