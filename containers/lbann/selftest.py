"""Train LBANN for one epoch on synthetic data, as two MPI ranks.

environments.two_ranks starts two of these programs.

LBANN has its own launcher, so the first of the two starts mpirun, and the other only reports that it started.
"""

import json
import os
import re
import subprocess
from pathlib import Path

RANKS = os.environ["RINGSIDE_SIZE"]
MEETING = Path(os.environ["RINGSIDE_MEETING"])
PROGRAM = os.environ.get("RINGSIDE_PROGRAM", "lbann")
OPEN_MPI = {  # that root may start it, and more ranks than cores; other MPI libraries ignore it
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}
EXPERIMENT = """
data_reader {
  reader {
    name: "synthetic"
    role: "train"
    shuffle: true
    fraction_of_data_to_use: 1.0
    validation_fraction: 0.25
    num_samples: 64
    synth_dimensions: "4"
    num_labels: 2
  }
}
model {
  objective_function { layer_term { scale_factor: 1.0 layer: "loss" } }
  num_epochs: 1
  layer { name: "samples" children: "dense" input { data_field: "samples" } }
  layer { name: "dense" parents: "samples" children: "probabilities" fully_connected { num_neurons: 2 has_bias: true } }
  layer { name: "probabilities" parents: "dense" children: "loss" softmax { } }
  layer { name: "labels" children: "loss" input { data_field: "labels" } }
  layer { name: "loss" parents: "probabilities" parents: "labels" cross_entropy { } }
  callback { print { } }
  callback { timer { } }
}
optimizer { sgd { learn_rate: 0.1 } }
trainer { mini_batch_size: 16 random_seed: 1 }
"""


def main() -> None:
    """Train, and write what LBANN says of its version."""
    found = {"framework": "lbann"}
    if os.environ["RINGSIDE_RANK"] == "0":
        file = MEETING / "experiment.prototext"
        file.write_text(EXPERIMENT)
        # mpirun's children are in process groups of their own: if it is killed the kernel ends them
        command = [
            "mpirun",
            "-n",
            RANKS,
            "setpriv",
            "--pdeathsig",
            "KILL",
            PROGRAM,
            f"--prototext={file.name}",
        ]
        variables = {**os.environ, **OPEN_MPI, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=False, cwd=MEETING, env=variables
        )
        print(done.stdout)
        timed = re.search(r"training epoch 0 run time : [0-9.]+(e[-+]?[0-9]+)?s", done.stdout)
        version = re.search(r"LBANN version:? ([0-9]\S*)", done.stdout)
        if done.returncode or not timed or not version:
            raise SystemExit(
                f"{PROGRAM} ended with status {done.returncode}, and timed no epoch as LBANN does"
            )
        found["framework"] = f"lbann {version[1]}"
    (MEETING / f"rank{os.environ['RINGSIDE_RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
