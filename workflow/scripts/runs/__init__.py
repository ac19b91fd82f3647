"""One run from launch to record, and jobs of many: launchers, the ranks' own programs, adapters of frameworks."""
