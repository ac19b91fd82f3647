"""Train like the worker, but always with Gloo, since NCCL refuses two ranks on one accelerator."""

from dataclasses import replace
from pathlib import Path

from ranks.libraries.pytorch import collectives
from ranks.worker.__main__ import run
from ranks.worker.context import Context
from ranks.worker.process import as_rank

join = collectives.join


def as_on_processors(context: Context) -> str:
    return join(
        replace(context, rank_input={**context.rank_input, "spec": {**context.spec, "device": "cpu"}})
    )


def train(folder: Path) -> None:
    collectives.join = as_on_processors
    run(folder)


if __name__ == "__main__":
    as_rank(train)
