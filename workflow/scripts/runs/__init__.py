"""Runs from launch to record: supervision, attempts, progress, meters, and the submission of many runs."""
