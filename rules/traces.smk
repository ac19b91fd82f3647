# Traces: what traced runs kept of their time -> where a step goes, what of the exchange is exposed, and what limits a cell.
#   in:  RUNS_CSV, and phases.csv of the attempts behind the records; NETWORK_CSV where the network was swept
#   out: PHASES_CSV (config/schemas/phases.schema.yaml), TRACE_STEPS_CSV (config/schemas/trace_steps.schema.yaml)
#        REPLAY_STEPS_CSV (config/schemas/replay_steps.schema.yaml), which the prediction stage replays
#        RESULTS/tables/<table>.csv, .md and .tex of declared.paper.TRACES
# Made where the study has traced runs.

from declared.paper import TRACES

PHASES_CSV = [str(CAMPAIGN.phases_csv)] if CAMPAIGN.traced else []
# A published folder may lack steps.
TRACE_STEPS_CSV, REPLAY_STEPS_CSV = (
    [str(file)] if PHASES_CSV and (CAMPAIGN.mode != "published" or file.exists()) else []
    for file in (CAMPAIGN.phases_csv.with_name(f"{name}_steps.csv") for name in ("trace", "replay"))
)
TRACES_FILES = (
    expand(f"{RESULTS}/tables/{{table}}.{{suffix}}", table=TRACES, suffix=["csv", "md", "tex"]) if PHASES_CSV else []
)
TRACES_CODE = code("traces.study")


if PHASES_CSV and CAMPAIGN.mode != "published":

    localrules:
        phases,
        replay_steps,

    rule phases:
        """Add up what every traced run kept of its time, and keep some steps of a typical one of each cell."""
        input:
            runs=RUNS_CSV,
            code=code("traces.gather"),
        output:
            phases=PHASES_CSV,
            steps=TRACE_STEPS_CSV,
        log:
            f"{RESULTS}/logs/phases.log",
        resources:
            machine=1,
        params:
            records=f"{RESULTS}/runs",
        shell:
            """
            {WARM} traces.gather \
                --runs {input.runs:q} \
                --records {params.records:q} \
                --phases {output.phases:q} \
                --steps {output.steps:q} \
                2>&1 | tee {log:q}
            """

    rule replay_steps:
        """Keep some steps of every traced run, from which they can be replayed anywhere."""
        input:
            runs=RUNS_CSV,
            code=code("traces.kept"),
        output:
            steps=REPLAY_STEPS_CSV,
        log:
            f"{RESULTS}/logs/replay_steps.log",
        resources:
            machine=1,
        params:
            records=f"{RESULTS}/runs",
        shell:
            """
            {WARM} traces.kept \
                --runs {input.runs:q} \
                --records {params.records:q} \
                --out {output.steps:q} \
                2>&1 | tee {log:q}
            """


if PHASES_CSV:

    localrules:
        traces,

    rule traces:
        """Make the tables of phases, of what limits each cell and why, and of what tracing costs."""
        input:
            runs=RUNS_CSV,
            network=NETWORK_CSV if SWEEPS.worth_drawing else [],
            phases=PHASES_CSV,
            code=TRACES_CODE,
        output:
            TRACES_FILES,
        log:
            f"{RESULTS}/logs/tables/traces.log",
        resources:
            machine=1,
        params:
            folder=subpath(output[0], parent=True),
        shell:
            """
            {WARM} traces.study \
                --runs {input.runs:q} \
                --network {input.network:q} \
                --phases {input.phases:q} \
                --out {params.folder:q} \
                2>&1 | tee {log:q}
            """
