"""Predict with Extra-P, run by the Python of its own environment (containers/extrap); JSON in, JSON out.

stdin: a list of {"parameters": [names], "points": [[coordinates, [seconds of replicates]]...], "wanted":
[coordinates...]}; stdout: a list of {"predicted": [seconds...], "warnings": [texts]}.
Extra-P's defaults (Calotoiu et al., SC'13 and CLUSTER'16), with its negative exponents for strong scaling,
because epochs get shorter on more nodes.
"""

import json
import math
import sys
import warnings
from typing import Any

METRIC = "time"


def predict_job(job: dict[str, Any]) -> dict[str, Any]:
    """Return Extra-P's model of one job and its predictions."""
    from extrap.entities.callpath import Callpath
    from extrap.entities.coordinate import Coordinate
    from extrap.entities.experiment import Experiment
    from extrap.entities.measurement import Measurement
    from extrap.entities.metric import Metric
    from extrap.entities.parameter import Parameter
    from extrap.modelers.model_generator import ModelGenerator
    from extrap.modelers.single_parameter import Default

    experiment, callpath, metric = Experiment(), Callpath("main"), Metric(METRIC)
    for name in job["parameters"]:
        experiment.add_parameter(Parameter(name))
    experiment.add_callpath(callpath)
    experiment.add_metric(metric)
    for coordinates, seconds in job["points"]:
        point = Coordinate(*coordinates)
        experiment.add_coordinate(point)
        experiment.add_measurement(Measurement(point, callpath, metric, seconds))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        generator = ModelGenerator(experiment)
        has_many_parameters = len(job["parameters"]) > 1
        single = Default() if has_many_parameters else generator.modeler
        single.allow_negative_exponents = True
        if has_many_parameters:
            generator.modeler.single_parameter_modeler = single
        generator.model_all()
    function = generator.models[callpath, metric].hypothesis.function
    predicted = [
        float(function.evaluate(point if has_many_parameters else point[0])) for point in job["wanted"]
    ]
    return {
        "predicted": [value if math.isfinite(value) else None for value in predicted],
        "warnings": sorted({str(warning.message) for warning in caught if warning.category is UserWarning}),
    }


if __name__ == "__main__":
    json.dump([predict_job(job) for job in json.load(sys.stdin)], sys.stdout)
