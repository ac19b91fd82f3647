"""Check that Extra-P finds the function behind five points.

environments.two_ranks starts two of these programs.
"""

import json
import os
from pathlib import Path

from extrap.entities.callpath import Callpath
from extrap.entities.coordinate import Coordinate
from extrap.entities.experiment import Experiment
from extrap.entities.measurement import Measurement
from extrap.entities.metric import Metric
from extrap.entities.parameter import Parameter
from extrap.modelers.model_generator import ModelGenerator


def main() -> None:
    """Model 3 + 2 p, and write what it gives for p = 64."""
    experiment, callpath, metric = Experiment(), Callpath("main"), Metric("time")
    experiment.add_parameter(Parameter("p"))
    experiment.add_callpath(callpath)
    experiment.add_metric(metric)
    for p in (2, 4, 8, 16, 32):
        experiment.add_coordinate(Coordinate(p))
        experiment.add_measurement(Measurement(Coordinate(p), callpath, metric, [3 + 2 * p]))
    generator = ModelGenerator(experiment)
    generator.model_all()
    found = float(generator.models[callpath, metric].hypothesis.function.evaluate(64))
    if abs(found - 131) > 1e-6:
        raise SystemExit(f"Extra-P gives {found}, expected 131")
    result = {"framework": "extrap", "found": found}
    (Path(os.environ["RINGSIDE_MEETING"]) / f"rank{os.environ['RINGSIDE_RANK']}.json").write_text(
        json.dumps(result)
    )


if __name__ == "__main__":
    main()
