"""Real trainings of a few steps in the frameworks' environments; tests share each configuration."""

import csv
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common import prefork_server
from common.files import hold_lock
from common.notes import Note
from common.program_sources import SCRIPTS
from common.shell import Program, export_lines
from datasets.prepare import prepare
from declared.environments import read
from declared.factors import factor_table
from declared.frameworks import framework_names, has_own_algorithm, load_framework
from launchers import launch
from launchers.protocol import Launcher
from launchers.rank_command import WORKER
from launchers.variables import kept_variables
from runs.rank_input import rank_input
from support.installed_site import SITE as TEST_SITE
from support.one_run import one_run

SITE = replace(TEST_SITE, cores=2, nodes=4, time_limit_s=300.0)
TWO_DEVICES = replace(SITE, nodes=1, ranks_per_node=2)
SEED = 20261120
TESTS = Path(__file__).resolve().parents[1]
MAX_NAME = 200  # characters of a training's folder, to which locks append
TRAINED = "trained"  # a file in the folder of a successful training
TEMPORARY = "tmp"  # folder of temporary files of ranks
PLAIN = {
    "model": "small-cnn",
    "dataset": "digits",
    "nodes": 1,
    "sync_every": 1,
    "epochs": 1,
    "warmup_epochs": 0,
}
# Every framework that can be trained at this site and whose weights can be saved. LBANN trains in a program
# of its own, and pytorch-strategy needs a strategy (test_strategy_training.py).
FRAMEWORKS = tuple(
    framework.name
    for framework in map(load_framework, framework_names())
    if framework.has_adapter
    and not framework.mpi
    and not framework.strategies
    and read(framework.environment).available(SITE.realization)
)
SAME_WEIGHTS = tuple(
    name for name in FRAMEWORKS if not has_own_algorithm(name)
)  # train one model to the same weights
DISTRIBUTED = tuple(name for name in FRAMEWORKS if load_framework(name).distributed)
REPLICAS = dict.fromkeys((*DISTRIBUTED, "tensorflow-mirrored"), 2)  # other frameworks have one replica
IN_CI = ("pytorch-ddp", "tensorflow-multiworker", "horovod-tensorflow")  # one for each launcher and library
# test_deepspeed.py checks the first daily; the second is jax on one device.
ELSEWHERE = ("deepspeed", "jax-single")
DAILY = tuple(name for name in FRAMEWORKS if name not in ELSEWHERE)


def framework_params(names: Iterable[str], in_ci: Sequence[str] = IN_CI) -> list[Any]:
    """Return frameworks as parameters of pytest; those not in `in_ci` run only in `make frameworks-test`."""
    return [pytest.param(name, marks=[pytest.mark.every_framework] * (name not in in_ci)) for name in names]


def able(names: Iterable[str], **levels: Any) -> tuple[str, ...]:
    """Return the frameworks that can train with these levels."""
    of_factors = {name: factor["default"] for name, factor in factor_table().items() if "default" in factor}
    return tuple(name for name in names if load_framework(name).supports({**of_factors, **PLAIN, **levels}))


def shared(framework: str) -> dict[str, int]:
    """Return the levels that give a framework two replicas, {} if it cannot have them."""
    if framework in DISTRIBUTED:
        return {"nodes": 2}
    return {"devices_per_node": 2} if framework in REPLICAS else {}


def of_64(framework: str) -> dict[str, int]:
    """Return levels with a global batch of 64 on as many replicas as the framework can have."""
    return {"batch_size": 64 // REPLICAS.get(framework, 1), **shared(framework)}


@functools.cache
def server(python: str, libraries: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> str:
    """Return the name of a server that forks programs with a framework's libraries imported.

    The libraries are imported with these environment variables.
    """
    preloaded = [f"ranks.libraries.{library}" for library in libraries]
    return prefork_server.start_server(preloaded, python, {**kept_variables(), **dict(variables)})


class WarmRanks:
    """A launcher that forks ranks from a process that has imported the framework's libraries.

    Importing takes longer than the trainings of tests.
    """

    def __init__(self, ranks: Launcher, libraries: Sequence[str]) -> None:
        self.inner, self.libraries = ranks, tuple(libraries)
        self.hosts, self.job = ranks.hosts, ranks.job

    def start(self, program: Program, log: Path) -> list[subprocess.Popen[bytes]]:
        """See Launcher."""
        python, _, *arguments = program.command
        words = shlex.split(program.variables.read_text())
        variables = dict(word.split("=", 1) for word in words if word != "export")
        shared = tuple(sorted((name, value) for name, value in variables.items() if name != "TMPDIR"))
        with open(program.variables, "a") as lines:
            lines.write(
                export_lines({prefork_server.SERVER_VARIABLE: server(python, self.libraries, shared)})
            )
        return self.inner.start(
            replace(program, command=[python, "-IS", prefork_server.__file__, *arguments]), log
        )

    def raise_if_lost(self, log: Path) -> None:
        """See Launcher."""
        self.inner.raise_if_lost(log)

    def explain(self, exit_statuses: Sequence[int | None], log: Path) -> Note:
        """See Launcher."""
        return self.inner.explain(exit_statuses, log)

    def kill_ranks(self) -> None:
        """See Launcher."""
        self.inner.kill_ranks()


class Trainings:
    """Train on demand, each configuration once: pytest's workers share `folder`."""

    def __init__(self, folder: Path, environments: Any, program: str = "trained") -> None:
        self.folder, self.environments, self.program = folder, environments, program
        self._trained = functools.cache(self._train)

    def train(self, framework: str, **levels: Any) -> Path:
        """Train with these levels unless that was done already, and return the attempt's folder.

        Defaults are one epoch of small-cnn on digits.
        """
        return self._trained(framework, tuple(sorted(levels.items())))

    def weights(self, framework: str, **levels: Any) -> dict[str, np.ndarray]:
        """Return the weights after a training in the canonical layout."""
        return weights(self.train(framework, **levels) / "after.npz")

    def losses(self, framework: str, **levels: Any) -> list[float]:
        """Return the training loss of each epoch of a training."""
        return [float(row["train_loss"]) for row in epochs(self.train(framework, **levels))]

    def _train(self, framework: str, level_items: tuple[tuple[str, Any], ...]) -> Path:
        levels = dict(level_items)
        name = ".".join([framework, *(f"{name}={level}" for name, level in level_items)]).replace("/", "_")
        if len(name) > MAX_NAME:
            name = f"{name[:MAX_NAME]}.{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        folder = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder.with_name(f"{folder.name}.lock"), lambda: None):
            if not (folder / TRAINED).exists():
                shutil.rmtree(folder, ignore_errors=True)  # a training that failed
                self._train_in(folder, framework, levels)
                (folder / TRAINED).touch()
        return folder

    def _train_in(self, folder: Path, framework: str, levels: dict[str, Any]) -> None:
        (folder / TEMPORARY).mkdir(parents=True)
        site = TWO_DEVICES if levels.get("devices_per_node") else SITE
        run, planned = one_run(
            site, levels.pop("seed", SEED), step_times=True, **{**PLAIN, "framework": framework, **levels}
        )
        data = self.folder / "data" / run.levels["dataset"]
        with hold_lock(self.folder / f"{data.name}.lock", lambda: None):
            prepare(run.levels["dataset"], data)
        described = load_framework(framework)
        environment = self.environments(described.environment)
        ranks: Launcher = launch.make_launcher(site, planned, setup=environment.get("setup", ()))
        spec = rank_input(planned, described, environment, run.graph.to_json(), data, ranks.hosts)
        (folder / "rank_input.json").write_text(json.dumps(spec))
        variables = {
            **environment["variables"],
            "PYTHONPATH": os.pathsep.join(map(str, (SCRIPTS, TESTS / "unit" / "ranks", TESTS))),
            # Its rounding may push a relu over its kink, and all that follows with it.
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "TMPDIR": str(folder / TEMPORARY),
        }
        program = WORKER if described.mpi else self.program  # LBANN's weights cannot be saved
        if not described.mpi and not environment.get("installed"):
            ranks = WarmRanks(ranks, described.libraries)
        outcome = launch.run_ranks(
            ranks, {**environment, "variables": variables}, folder, planned, site, program=program
        )
        assert outcome.status == "ok", f"{outcome.reason}: {(folder / 'log.txt').read_text()[-3000:]}"


def weights(file: Path) -> dict[str, np.ndarray]:
    """Read weights that trained.py has saved."""
    return dict(np.load(file))


def epochs(folder: Path) -> list[dict[str, str]]:
    """Return the rows of an attempt's epochs.csv."""
    with open(folder / "epochs.csv", encoding="utf-8") as table:
        return list(csv.DictReader(table))


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float) -> None:
    """Assert that all weights agree within an absolute `tolerance`."""
    assert list(actual) == list(expected)
    for name, weight in actual.items():
        np.testing.assert_allclose(weight, expected[name], atol=tolerance, rtol=0, err_msg=name)


def assert_alike(folder: Path, reference: Path, tolerance: float, least_moved: float = 0.0) -> None:
    """Assert that two trainings end with the same weights, some of which changed by more than the tolerance."""
    after, before = weights(folder / "after.npz"), weights(folder / "before.npz")
    assert_same(after, weights(reference / "after.npz"), tolerance)
    assert max(float(np.abs(before[name] - weight).max()) for name, weight in after.items()) > least_moved


def assert_same_epoch(folder: Path, reference: Path) -> None:
    """Assert that two trainings of one epoch have the same samples, losses and accuracies."""
    (row,), (expected,) = epochs(folder), epochs(reference)
    assert row["samples_trained"] == expected["samples_trained"], "each sample counts once"
    for column in ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy"):
        values = [float(values_by_column[column] or -1) for values_by_column in (row, expected)]
        assert values[0] == pytest.approx(values[1], abs=1e-3), column
