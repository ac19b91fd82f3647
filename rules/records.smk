# Records: record.json and epochs.csv of every run -> two tidy tables.
#   in:  the records of the campaign; with records=available those that exist
#   out: results/<study>/runs.csv and epochs.csv (config/schemas/runs.schema.yaml, epochs.schema.yaml); power.csv for
#        the figure `power`
#        results/<study>/campaigns/runs.csv and epochs.csv of a study that combines campaigns


localrules:
    aggregate,
    power,


rule records:
    """Train the runs that have no record, and write runs.csv and epochs.csv."""
    input:
        REQUIRED_RECORDS,
        RUNS_CSV,
        EPOCHS_CSV,


rule aggregate:
    """Aggregate the records into runs.csv and epochs.csv, one row per run whether or not it succeeded."""
    input:
        design=f"{RESULTS}/design.csv",
        changed=changed("aggregate", program_sources("records.aggregate")),
        records=REQUIRED_RECORDS or CAMPAIGN.existing_record_paths(),
    output:
        runs=f"{RESULTS}/runs.csv",
        epochs=f"{RESULTS}/epochs.csv",
    log:
        f"{RESULTS}/logs/records.log",
    params:
        study=STUDY,
        site=SITE,
        peaks=CAMPAIGN.site.peak_tflops,  # a changed peak makes the tables again
        costs=CAMPAIGN.site.costs.columns(),  # a changed price makes the tables again
    shell:
        """
        {PREFORKED} records.aggregate \
            --study {params.study:q} \
            --site {params.site:q} \
            --runs {output.runs:q} \
            --epochs {output.epochs:q} \
            2>&1 | tee -p {log:q}
        """


rule power:
    """Gather power over time of the runs, for the figure that shows it."""
    input:
        runs=RUNS_CSV,
        changed=changed("power", program_sources("records.power")),
    output:
        power=f"{RESULTS}/power.csv",
    log:
        f"{RESULTS}/logs/power.log",
    params:
        results=RESULTS,
    shell:
        """
        {PREFORKED} records.power \
            --runs {input.runs:q} \
            --results {params.results:q} \
            --out {output.power:q} \
            2>&1 | tee -p {log:q}
        """


if CAMPAIGN.is_combined:

    localrules:
        combine,

    rule combine:
        """Put the runs of several campaigns into one table, each a level of the factor campaign."""
        input:
            [str(file) for file in CAMPAIGN.study.imported.source_files],
            changed=changed("combine", program_sources("records.combine")),
        output:
            runs=RUNS_CSV,
            epochs=EPOCHS_CSV,
        log:
            f"{RESULTS}/logs/combine.log",
        params:
            study=STUDY,
        shell:
            """
            {PREFORKED} records.combine \
                --study {params.study:q} \
                --runs {output.runs:q} \
                --epochs {output.epochs:q} \
                2>&1 | tee -p {log:q}
            """
