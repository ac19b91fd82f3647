"""Generate runs of parallelization strategies from known costs, which prediction.mesh_step has to recover.

The loops are independent of the prediction's code.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from declared.mesh import mesh_of
from declared.models import model_graph
from models.division import stages
from support import known_physics as physics

NOISE = 0.02
STRATEGIES = ("data", "sharded", "tensor", "pipeline2", "data2-tensor2", "pipeline4")
CNN = model_graph("small-cnn", "digits")
FLAT, HIDDEN, CLASSES = 4096, 128, 10
CONVOLVED = 64 * (9 * 32 + 9 * 32 * 64)
DENSE = FLAT * HIDDEN + HIDDEN * CLASSES
CONVOLUTION_BYTES = 4 * (9 * 32 + 32 + 9 * 32 * 64 + 64)  # of weights of convolutions
DIVIDED_BYTES = 4 * (FLAT * HIDDEN + HIDDEN + HIDDEN * CLASSES)
MESH = "pytorch-mesh"
LEVELS = {
    "sync_every": 1,
    "microbatches": 4,
    "schedule": "gpipe",
    "sharding": "parameters",
    "tensor_sharding": "layers",
    "optimizer": "sgd",
    "momentum": 0.9,
}
BENCHMARKED_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "point_to_point")


@dataclass(frozen=True)
class Meshes(physics.Truth):
    """Strategies for small-cnn without overlapped communication.

    Updates take no time: without accumulation they cannot be separated from batches.
    """

    update_s: float = 0.0
    dispatch_s: float = 0.0  # time of the library for each message within layers

    def collective(self, name, size, nodes, rate):
        """Return the time in s that a collective benchmark measures."""
        if name == "point_to_point":
            return self.step_s + size * max(1 / (self.share * rate), self.byte_s)
        return self.all_reduce(size, nodes, rate) / (1 if name == "all_reduce" else 2)

    def of_mesh(self, mesh, batch, rate):
        """Return times of one step in s: computation, messages between layers, messages of parameters."""
        t, p = mesh.tensor, mesh.pipeline
        own = CONVOLUTION_BYTES + DIVIDED_BYTES / t + 4 * CLASSES
        communicated = self.update_s * own / (CONVOLUTION_BYTES + DIVIDED_BYTES + 4 * CLASSES) / mesh.sharded
        if mesh.sharded > 1:
            communicated += 2 * self.collective("all_gather", own, mesh.sharded, rate)
            communicated += self.collective("reduce_scatter", own, mesh.sharded, rate)
        if mesh.data > 1 and p == 1:
            communicated += self.all_reduce(own, mesh.data, rate)
        if p == 1:
            share = (CONVOLVED + DENSE / t) / (CONVOLVED + DENSE)
            times = [self.dispatch_s + self.all_reduce(4 * batch * size, t, rate) for size in (CLASSES, FLAT)]
            summed = sum(times) if t > 1 else 0.0
            return self.batch_s + self.sample_s * batch * share, summed, communicated
        micro, cut = batch / LEVELS["microbatches"], stages(CNN, p)
        times = [
            self.batch_s * len(stage.operators) / len(CNN.operators)
            + self.sample_s * micro * sum(operator.macs for operator in stage.operators) / (CONVOLVED + DENSE)
            for stage in cut
        ]
        bytes_ = [
            4 * sum(math.prod(shape) for operator in stage.operators for shape in operator.weights.values())
            for stage in cut
        ]
        boundary = max(4 * micro * math.prod(stage.operators[-1].shape) for stage in cut[:-1])
        handed = 2 * (LEVELS["microbatches"] + p - 2) * self.collective("point_to_point", boundary, p, rate)
        update = self.update_s * max(bytes_) / (CONVOLUTION_BYTES + DIVIDED_BYTES + 4 * CLASSES)
        return played(times, LEVELS["microbatches"]), handed, update

    def epoch(self, mesh, batch, rate):
        """Return the time of an epoch of `SAMPLES` in s."""
        steps = physics.SAMPLES / (batch * mesh.replicas)
        computed, waited, communicated = self.of_mesh(mesh, batch, rate)
        ranks = physics.HARTER[mesh.ranks]
        return steps * (computed + waited + communicated + self.sigma * computed * ranks)


def played(stage_times, microbatches):
    """Return when the last backward pass ends; a forward pass takes a third of a stage's time.

    Each pass starts when its input is ready and its stage is free.
    """
    ends, free = {}, [0.0] * len(stage_times)
    for passed, (share, order) in {"forward": (1 / 3, 1), "backward": (2 / 3, -1)}.items():
        for micro in range(microbatches):
            needed = 0.0 if order > 0 else ends["forward", len(stage_times) - 1, microbatches - 1]
            for stage in range(len(stage_times))[::order]:
                needed = free[stage] = max(free[stage], needed) + share * stage_times[stage]
                ends[passed, stage, micro] = needed
    return max(free)


def runs(truth, parallelism, nodes=(1, 2, 4), rates=physics.RATES, batches=(32, 128), seed=3):
    """Return runs of small-cnn on one node, and with each strategy on several nodes."""
    rng = np.random.default_rng(seed)
    frames = [
        physics.runs(
            truth, nodes=(1,), rates=rates[-1:], batches=batches, noise=NOISE, framework="pytorch-single"
        )
    ]
    for level, n, rate in itertools.product(parallelism, [n for n in nodes if n > 1], rates):
        try:
            mesh = mesh_of(level, n)
        except ValueError:
            continue
        frame = physics.runs(truth, nodes=(n,), rates=(rate,), batches=batches, framework=MESH).astype(object)
        frame["parallelism"], frame["replicas"], frame["microbatches"] = level, mesh.replicas, 1
        if mesh.pipeline > 1:
            frame["microbatches"], frame["schedule"] = LEVELS["microbatches"], LEVELS["schedule"]
        frame["steps"] = frame["n_allreduces"] = physics.SAMPLES // (frame["local_batch"] * mesh.replicas)
        frame["effective_batch"] = frame["local_batch"] * mesh.replicas
        frame["samples_trained"] = frame["steps"] * frame["local_batch"] * mesh.replicas
        seconds = [truth.epoch(mesh, batch, rate) for batch in frame["local_batch"]]
        frame["epoch_time_s"] = np.array(seconds) * (1 + NOISE * rng.standard_normal(len(frame)))
        frame["cell"], frame["run_id"] = frame["cell"] + level, frame["run_id"] + level
        frames.append(frame)
    return physics.joined(*frames)
