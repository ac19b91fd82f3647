"""Run inside a framework's environment: train as the worker does, then save the weights before and after."""

import os
import sys
from pathlib import Path

import numpy as np

from runs.worker.__main__ import run
from runs.worker.process import bind_to_launcher

if __name__ == "__main__":
    bind_to_launcher()
    folder = Path(sys.argv[1])
    trainer = run(folder)
    if trainer.context.rank == 0:
        np.savez(folder / "before.npz", **trainer.context.initial_weights())
        np.savez(folder / "after.npz", **trainer.weights())
    trainer.context.group.barrier()
    os._exit(0)
