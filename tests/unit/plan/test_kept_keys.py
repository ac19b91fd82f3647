"""Keys under which campaigns are kept: a change here makes every user measure again, so it needs a reason.

The reasons, newest first (also in the commit that changes kept_keys.yaml, by
`python tests/unit/plan/test_kept_keys.py`):

27. The libraries of PyTorch, TensorFlow and JAX are packages with a file for each job, trainers name the types of weights and
    messages, descriptions of frameworks have clearer keys, and timings of parts no longer have a precision that
    changes nothing; benchmarks and timings depend on all modules of models that ranks import (November 2026).
26. DeepSpeed's adapter sets the type of weights where other trainers do (November 2026).
25. Descriptions of frameworks name the levels that they can train with, instead of the defaults of all other
    factors, and the input of ranks is the file rank_input.json (November 2026).
24. Trainers of PyTorch and TensorFlow refuse a level of precision that they do not know (November 2026).
23. The framework tensorflow-dtensor is gone, and names and messages in the code of ranks and models are clearer
    (November 2026).
22. A tensor axis divides vocabulary and sequence, too, by the factor tensor_sharding, so that every spec has
    a new field (November 2026).
21. Models have mixtures of experts, and ranks report the share of tokens that these dropped (November 2026).
20. The type in which gradients are summed is a factor, so that every spec has a new field (November 2026).
19. Recipes of training: AdamW, clipping, label smoothing, schedules and checkpointing are factors, so that
    every spec has new fields; TensorFlow adds weight decay after the all-reduce (November 2026).
18. FSDP builds on the meta device and shards blocks, ZeRO 3 builds within zero.Init, and device memory is that
    of timed epochs without validation; dropout of PyTorch draws from a generator that is seeded after
    construction (November 2026).
17. Training of language models counts no correct labels, cuDNN times algorithms of convolutions, DDP's gradients
    are views of its buckets, and ranks collect warnings. The factor autotune came with it, so that every
    spec has a new field (November 2026).
16. Frameworks are `heterogeneous`, no longer `unlike`, in their descriptions (November 2026).
15. A framework's description names its baseline `baseline`, no longer `base` (November 2026).
14. The collective benchmark is a program of this name, and tensors that Horovod and Tarantella send in it are
    named after it (November 2026).
13. Names in the code of ranks, their libraries and adapters are the terms of the field (November 2026).
12. datasets.prepare and the programs that builds run have other names in their code; data and images are the
    same (November 2026).
11. Names in the code of models are the terms of the field (November 2026).
10. What ranks execute is a package of its own: their modules have other names (November 2026).
9. Version 0.2.0: digests are of what code does, not of how it is worded, and older digests are not named any more (November 2026).
8. Strategies run on accelerators, too: the group of their messages differs from the group of their all-reduces
   (November 2026).
7. LBANN's adapter writes models of sequences; what it writes for images is unchanged, but the adapter is part of its
   runs' keys (November 2026).
6. PyTorch's optimizers of distributed parameters get each rank's own part of them; pytorch-mesh wraps one
   rank, too (November 2026).
5. JAX and DTensor share files that say which weights a tensor axis divides and how ranks validate together, so
   that the code of JAX differs (November 2026).
4. Adapters give collectives for the benchmarks, in place of sums alone. A benchmark's spec names its
   collective; runs train as before, but adapters are in their keys (November 2026).
3. Ranks can partition more than samples (meshes): a rank asks which samples its replica has, and PyTorch's
   adapters may make the backward pass and the optimizer step (DeepSpeed). Factors microbatches, schedule and
   sharding came with it, so that every spec has a new field (November 2026).
2. Models have operators of sequences, samples may be sequences of tokens: the code of every rank differs (November
   2026). Data keep their digests.
1. Ranks mark the phases of their training and read meters of energy each in its scope; PyTorch's batches are
   sent ahead to accelerators; ranks may be heterogeneous. Factors trace and shares came with it, so that
   every spec has new fields (November 2026).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from common.files import write_text
from datasets.identity import data_digest
from declared.datasets import datasets
from declared.environments import locked, tools
from declared.frameworks import framework_names
from declared.site import Site, load_site
from declared.study import load_study
from environments.identity import environment_digest
from plan.collective_benchmarks import required_benchmarks
from plan.design import plan_design
from plan.identity import code_digest, plan_run

KEPT_KEYS = Path(__file__).with_name("kept_keys.yaml")
ABI = "cp311-linux_x86_64"
STUDIES = {"tf-strategies-virtual": "virtual", "prediction-virtual": "virtual-six"}


def site(name: str) -> Site:
    return replace(load_site(name), cores=2, python_abi=ABI)


def keys() -> dict[str, Any]:
    """Return the keys of a run of each framework and of the benchmarks in two kept campaigns, and all digests."""
    result: dict[str, Any] = {}
    for study, site_name in STUDIES.items():
        described, at = load_study(study), site(site_name)
        runs = sorted(plan_design(described, at), key=lambda run: run.run_id)
        firsts = {run.framework.name: run for run in reversed(runs)}
        result[study] = {
            "runs": {run.run_id: plan_run(described, at, run).key for run in firsts.values()},
            "benchmarks": {benchmark.name: benchmark.key(at) for benchmark in required_benchmarks(runs)},
        }
    at = site("local")
    result["data"] = {name: data_digest(name)[:12] for name in (*datasets(), "synthetic-8x8x1-10-64")}
    result["code"] = {name: code_digest(name, "small-cnn", "digits")[:12] for name in framework_names()}
    result["environments"] = {
        f"{name} {variant}": environment_digest(name, variant, at.realization)[:12]
        for name in (*locked(), *tools())
        for variant in (("cpu",) if name in tools() else ("cpu", "cuda"))
    }
    images = replace(at, deployment="apptainer")
    result["images"] = {name: environment_digest(name, "cpu", images.realization)[:12] for name in locked()}
    return result


def test_keys_of_kept_campaigns_are_unchanged() -> None:
    assert keys() == yaml.safe_load(KEPT_KEYS.read_text())


if __name__ == "__main__":
    write_text(KEPT_KEYS, yaml.safe_dump(keys(), sort_keys=True))
