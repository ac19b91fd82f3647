# Traces: the phases and steps of traced runs, in tables of records.
#   in:  RUNS_CSV, and phases.csv of the attempts behind the records
#   out: phases.csv (config/schemas/phases.schema.yaml), trace_steps.csv (config/schemas/trace_steps.schema.yaml)
#        replay_steps.csv (config/schemas/replay_steps.schema.yaml), which the prediction stage replays
# Only for studies with traced runs.


if CAMPAIGN.traced and CAMPAIGN.mode != "published":

    localrules:
        phases,
        replay_steps,

    rule phases:
        """Sum up the phases of every traced run, and keep some steps of a typical run of each cell."""
        input:
            runs=RUNS_CSV,
            changed=changed("phases", program_sources("traces.gather")),
        output:
            phases=PRODUCTS.record_files("phases"),
            steps=PRODUCTS.record_files("trace_steps"),
        log:
            f"{RESULTS}/logs/phases.log",
        params:
            records=f"{RESULTS}/runs",
        shell:
            """
            {PREFORKED} traces.gather \
                --runs {input.runs:q} \
                --records {params.records:q} \
                --phases {output.phases:q} \
                --steps {output.steps:q} \
                2>&1 | tee -p {log:q}
            """

    rule replay_steps:
        """Keep some steps of every traced run, so that they can be replayed anywhere."""
        input:
            runs=RUNS_CSV,
            changed=changed("replay_steps", program_sources("traces.kept")),
        output:
            steps=PRODUCTS.record_files("replay_steps"),
        log:
            f"{RESULTS}/logs/replay_steps.log",
        params:
            records=f"{RESULTS}/runs",
        shell:
            """
            {PREFORKED} traces.kept \
                --runs {input.runs:q} \
                --records {params.records:q} \
                --out {output.steps:q} \
                2>&1 | tee -p {log:q}
            """
