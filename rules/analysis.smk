# Analysis: the tables of a study, made from its records. workflow/scripts/declared/products/tables.yaml declares
# them, and the programs that make them.
#   in:  RUNS_CSV, EPOCHS_CSV, and other tables of records where a program reads them
#   out: RESULTS/tables/<table>.csv, .md and .tex; some as CSV alone


rule tables:
    """Make all tables of the study, and everything that they need."""
    input:
        REQUIRED_INPUTS,
        RUNS_CSV,
        NETWORK_RECORDS,
        PRODUCTS.table_files,


for program in PRODUCTS.programs:

    rule:
        """Make the tables of one program."""
        name:
            program.rule
        input:
            PRODUCTS.program_inputs(program),
            environment=ancient(PRODUCTS.environments(program)),
            changed=changed(
                program.rule, [*program_sources(*program.modules), *PRODUCTS.framework_files(program)]
            ),
        output:
            report(
                [file for file in PRODUCTS.files_of_program(program) if file.endswith(".csv")],
                category="Tables",
            ),
            [file for file in PRODUCTS.files_of_program(program) if not file.endswith(".csv")],
        log:
            f"{RESULTS}/logs/tables/{program.rule}.log",
        localrule: not program.submitted
        params:
            program=program.name,
            arguments=PRODUCTS.arguments(program),
        shell:
            "{PREFORKED} {params.program} {params.arguments:q} 2>&1 | tee -p {log:q}"
