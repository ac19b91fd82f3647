"""Published numbers from R's package datasets, NIST StRD, Jain (1991), Montgomery (2013), and MLPerf."""

from pathlib import Path

import numpy as np
import pandas as pd


def _numbers(text: str) -> np.ndarray:
    return np.array([float(number) for number in text.split()])


# R: datasets::PlantGrowth (Dobson 1983): weight by group
PLANT_GROWTH = {
    "ctrl": _numbers("4.17 5.58 5.18 6.11 4.50 4.61 5.17 4.53 5.33 5.14"),
    "trt1": _numbers("4.81 4.17 4.41 3.59 5.87 3.83 6.03 4.89 4.32 4.69"),
    "trt2": _numbers("6.31 5.12 5.54 5.50 5.37 5.29 4.92 6.15 5.80 5.26"),
}

# R: datasets::warpbreaks (Tippett 1950): breaks by wool (A, B) and tension (L, M, H)
WARPBREAKS = pd.DataFrame(
    {
        "y": _numbers(
            "26 30 54 25 70 52 51 26 67 18 21 29 17 12 18 35 30 36 36 21 24 18 10 43 28 15 26 "
            "27 14 29 19 29 31 41 20 44 42 26 19 16 39 28 21 39 29 20 21 24 17 13 15 15 16 28"
        ),
        "wool": np.repeat([0, 1], 27),
        "tension": np.tile(np.repeat([0, 1, 2], 9), 2),
    }
)

# R: datasets::ToothGrowth (Crampton 1947): length by supplement (OJ, VC) and dose (0.5, 1, 2)
TOOTH_GROWTH = pd.DataFrame(
    {
        "y": _numbers(
            "15.2 21.5 17.6 9.7 14.5 10.0 8.2 9.4 16.5 9.7 19.7 23.3 23.6 26.4 20.0 25.2 25.8 21.2 14.5 27.3 "
            "25.5 26.4 22.4 24.5 24.8 30.9 26.4 27.3 29.4 23.0 4.2 11.5 7.3 5.8 6.4 10.0 11.2 11.2 5.2 7.0 "
            "16.5 16.5 15.2 17.3 22.5 17.3 13.6 14.5 18.8 15.5 23.6 18.5 33.9 25.5 26.4 32.5 26.7 21.5 23.3 "
            "29.5"
        ),
        "supp": np.repeat([0, 1], 30),
        "dose": np.tile(np.repeat([0, 1, 2], 10), 2),
    }
)

# R: datasets::npk (Venables & Ripley, MASS, 2002): a 2^3 in blocks of four, N x P x K confounded with them
NPK = pd.DataFrame(
    {
        "y": _numbers(
            "49.5 62.8 46.8 57.0 59.8 58.5 55.5 56.0 62.8 55.8 69.5 55.0 "
            "62.0 48.8 45.5 44.2 52.0 51.5 49.8 48.8 57.2 59.0 53.2 56.0"
        ),
        "N": [0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0],
        "P": [1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0],
        "K": [1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0],
        "block": np.repeat(np.arange(1, 7), 4),
    }
)

# NIST StRD, analysis of variance, SiRstv (resistance of silicon, ohm cm; lower difficulty): five instruments
SIRSTV = np.array(
    [
        _numbers("196.3052 196.1240 196.1890 196.2569 196.3403"),
        _numbers("196.3042 196.3825 196.1669 196.3257 196.0422"),
        _numbers("196.1303 196.2005 196.2889 196.0343 196.1811"),
        _numbers("196.2795 196.1748 196.1494 196.1485 195.9885"),
        _numbers("196.2119 196.1051 196.1850 196.0052 196.2090"),
    ]
)

# Jain 1991, chapter 18: memory and cache, three replicates
JAIN_22R = pd.DataFrame(
    {
        "y": _numbers("15 18 12 45 48 51 25 28 19 75 75 81"),
        "A": np.repeat([0, 1, 0, 1], 3),
        "B": np.repeat([0, 0, 1, 1], 3),
    }
)

# Jain 1991, chapter 19: a 2^(7-4) design; D = AB, E = AC, F = BC, G = ABC
JAIN_274 = _numbers("20 35 7 42 36 50 45 82")

# Montgomery, Design and Analysis of Experiments (8th ed., 2013), example 4.1: yield of vascular grafts by
# extrusion pressure, in blocks of a batch of resin each
VASCULAR_GRAFTS = {
    "8500": _numbers("90.3 89.2 98.2 93.9 87.4 97.9"),
    "8700": _numbers("92.5 89.5 90.6 94.7 87.0 95.8"),
    "8900": _numbers("85.5 90.8 89.6 86.2 88.0 93.4"),
    "9100": _numbers("82.5 89.5 85.6 87.4 78.9 90.7"),
}

# R: datasets::sleep (Student 1908): extra hours of sleep of ten patients with either of two drugs
SLEEP = (
    _numbers("0.7 -1.6 -0.2 -1.2 -0.1 3.4 3.7 0.8 0.0 2.0"),
    _numbers("1.9 0.8 1.1 0.1 -0.1 4.4 5.5 1.6 4.6 3.4"),
)

# Montgomery, Design and Analysis of Experiments, 8th ed. (2013), Table 15.10: breaking strength (pounds) of a
# fibre, and its diameter (1e-3 inches), by machine.
FIBRES = {
    "1": [(36, 20), (41, 25), (39, 24), (42, 25), (49, 32)],
    "2": [(40, 22), (48, 28), (39, 22), (45, 30), (44, 28)],
    "3": [(35, 21), (37, 23), (42, 26), (34, 21), (32, 15)],
}


def mlperf_runs() -> pd.DataFrame:
    """Return runs of MLPerf Training v5.1 (github.com/mlcommons/training_results_v5.1 441d65f4, Apache-2.0).

    All cells with ten successful runs of three benchmarks. Columns: benchmark, cell (organization and system),
    evals (number of evaluations), run_s (time to train, s), step_s (median step time, s; NaN if not logged).
    """
    return pd.read_csv(Path(__file__).with_name("mlperf_runs.csv"))
