"""Tables of measured runs: means, intervals, contrasts, tests of effects, speed-up, regression."""
