"""Extra-P on the same points: run by the Python of its own environment (containers/extrap), JSON in, JSON out.

stdin: a list of {"parameters": [names], "points": [[coordinates, [seconds of replicates]]...], "wanted": [coordinates...]};
stdout: a list of {"predicted": [seconds...], "model": text, "warnings": [texts]}. Extra-P's defaults (Calotoiu et al., SC'13
and CLUSTER'16), but with the negative exponents that it has for strong scaling, since epochs get shorter on more nodes.
"""

import json
import math
import sys
import warnings
from typing import Any

METRIC = "time"


def model(job: dict[str, Any]) -> dict[str, Any]:
    """One model of one job, and what it predicts."""
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
        place = Coordinate(*coordinates)
        experiment.add_coordinate(place)
        experiment.add_measurement(Measurement(place, callpath, metric, seconds))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        generator = ModelGenerator(experiment)
        several = len(job["parameters"]) > 1
        single = Default() if several else generator.modeler
        single.allow_negative_exponents = True
        if several:
            generator.modeler.single_parameter_modeler = single
        generator.model_all()
    function = generator.models[callpath, metric].hypothesis.function
    predicted = [float(function.evaluate(place if several else place[0])) for place in job["wanted"]]
    return {
        "predicted": [value if math.isfinite(value) else None for value in predicted],
        "model": str(function),
        "warnings": sorted({str(one.message) for one in said if one.category is UserWarning}),
    }


if __name__ == "__main__":
    json.dump([model(job) for job in json.load(sys.stdin)], sys.stdout)
