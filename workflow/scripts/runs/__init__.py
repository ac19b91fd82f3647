"""One run from launch to record, and jobs of many: supervision, attempts, progress, meters, submission."""
