"""The tables of records that figures and tables are made from, and the traits of a study that has them."""

RECORDS: dict[str, tuple[str, ...]] = {
    "runs": (),
    "epochs": (),
    "network": ("network_swept",),
    "costs": ("costs_timed",),
    "messages": ("costs_timed",),
    "power": ("power_recorded",),
    "phases": ("traced",),
    "trace_steps": ("trace_steps_recorded",),
    "replay_steps": ("replay_steps_recorded",),
}
