"""LBANN (Van Essen et al. 2015), a program that reads an experiment file and prints its measurements.

LBANN's master times the epochs (`timing_scope: master`). Ringside's worker runs on the same cores and reads
the counters of the nodes.
"""

import itertools
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from ranks.frameworks.lbann import experiment, program, timeline
from ranks.frameworks.lbann.output import PARTS, Output, UnreadableError, finite, row
from ranks.worker.context import Context
from ranks.worker.devices import rank_accelerators
from ranks.worker.epoch_timer import EpochTimer
from ranks.worker.node import accelerator
from ranks.worker.phases import UNTRACED, WINDOW_STEPS
from ranks.worker.trainer import NONE, UNFUSED, TrainingProgram

READY = "Callbacks:"  # heading of the last section that LBANN prints before it trains


def environment(context: Context) -> dict[str, str]:
    """Return variables for MPI, which LBANN starts."""
    return program.variables(context)


class LbannProgram(TrainingProgram):
    """Training by LBANN, with output that rank 0 reads. The constructor starts LBANN and awaits its model."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.transport = "mpi" if context.ranks > 1 else "none"
        if context.spec["device"] == "cuda":
            (name,) = rank_accelerators(context)
            self.device = accelerator(int(name) if name.isdecimal() else 0)
        self._output = Output()
        self._program: program.Program | None = None
        self._trained_at: list[float] = []  # when each epoch's training metrics were complete
        folder = Path(tempfile.mkdtemp(prefix="lbann-"))
        if context.rank == 0 or program.starts_itself(context):
            file = experiment.write(context, folder)
            if context.rank == 0:
                shutil.copyfile(file, context.folder / file.name)
        if command := program.command(context):
            self._program = program.Program(command, folder)
        if context.rank == 0:
            while READY not in self._line():
                pass

    def train(self, timer: EpochTimer) -> None:
        """Train all epochs, and report each to `timer`."""
        self.context.phases.enter(UNTRACED)  # LBANN's timeline has the phases of training.
        for number in range(self.context.levels["epochs"]):
            timer.record_epoch(self._epoch(number) if self.context.rank == 0 else None)
        while self._program and (line := self._program.line()) is not None:
            self._output.read_line(line)
        if len(self._output.epochs) > self.context.levels["epochs"]:
            raise UnreadableError(f"LBANN went on after {self.context.levels['epochs']} epochs")
        if self.context.phases.is_traced:
            self._trace()

    def _trace(self) -> None:
        """Record the phases of this rank from LBANN's timeline.

        The timeline counts from the start of training, the same moment on all ranks. Rank 0 derives this
        moment from LBANN's output: LBANN prints an epoch's metrics after the last step, never before.
        """
        context, group, phases = self.context, self.context.group, self.context.phases
        steps = group.broadcast([epoch.steps for epoch in self._output.epochs])
        file = context.folder / timeline.FILE.format(context.rank)
        times = timeline.read(file)
        first = dict(enumerate(itertools.accumulate([0, *steps[:-1]]), start=1))
        traced_steps = list(timeline.phases(times, first))
        began = 0.0
        if context.rank == 0:
            ended = {epoch: step[-1][-1] for epoch, _, step in traced_steps}
            began = min(at - ended[epoch] for epoch, at in enumerate(self._trained_at, start=1))
        offsets = group.broadcast(group.clock_offsets())
        zero = group.broadcast(began) + offsets[context.rank][0]
        last = first[len(steps)]
        phases.use_profiler(
            timeline.Layers(times, range(last, min(last + WINDOW_STEPS, last + steps[-1])), zero)
        )
        for epoch, step, parts in traced_steps:
            if step == 1:
                phases.open_epoch(epoch)
            phases.step()
            for phase, start, end in parts:
                phases.put(phase, zero + start, zero + end)
        phases.close_epoch()
        file.unlink()

    def _epoch(self, number: int) -> dict[str, Any]:
        """Return epoch `number`, from 0, once it is complete."""
        while not self._output.has_epoch(number):
            self._line()
        return row(self._output.epochs[number], self.context.spec["samples_per_epoch"])

    def _line(self) -> str:
        """Return the next line that LBANN prints.

        Raises:
            RuntimeError: If LBANN has ended.
        """
        line = self._program.line() if self._program else None
        if line is None:
            done = sum(epoch.complete for epoch in self._output.epochs)
            raise RuntimeError(
                f"LBANN ended after {done} of {self.context.levels['epochs']} epochs: "
                f"{self._program and self._program.last_words}"
            )
        self._output.read_line(line)
        epochs = self._output.epochs
        if len(epochs) > len(self._trained_at) and set(epochs[-1].train) == PARTS:
            self._trained_at.append(time.monotonic())
        return line

    def library_version(self) -> str:
        """Return names and versions of the libraries that train.

        LBANN prints its version; only rank 0 has it.
        """
        return ", ".join(f"{name} {version}" for name, version in self._output.versions.items())

    def settings(self) -> dict[str, str]:
        """Return the settings of this rank by name, after the last epoch.

        LBANN reports none of them, so they are the settings of its experiment.
        """
        context, levels = self.context, self.context.levels
        settings = {
            "optimizer implementation": f"LBANN {levels['optimizer']}",
            "compiler": NONE,
            "mixed precision": NONE,
            "float32 products": "float32",
            "input pipeline": "LBANN's data reader, one thread",
            "threads": str(context.spec["cores_per_rank"]),
        }
        if context.graph.vocabulary is None:
            settings["memory format"] = "channels first"
        return settings | ({"attention": UNFUSED} if context.graph.head_sizes else {})

    def memory_peak_bytes(self) -> int:
        """Return the peak memory of this rank. It is the peak of the programs that this rank started."""
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024

    def program_report(self) -> dict[str, Any]:
        """Return what only ranks can report (`measured.program_report` in record.json)."""
        return {
            "objective": [finite(epoch.train["objective function"]) for epoch in self._output.epochs],
            "steps_s": [epoch.steps_s for epoch in self._output.epochs],
            "forward_share": self._output.share("forward prop*"),
            "backward_share": self._output.share("back prop*"),
        }


def trainer(context: Context) -> TrainingProgram:
    """Return LBANN, started, with its model built."""
    return LbannProgram(context)
