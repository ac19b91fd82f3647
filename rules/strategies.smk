# Strategies: times of parts of layers and of messages at the site, and collective benchmarks of its links -> the
# fastest strategy of every
# search, which the next plan reads.
#   in:  an environment (ancient: everything that must cause a new measurement is in the path), NETWORK_CSV
#   out: RESULTS/costs/<timing>/<key>/timing.json (config/schemas/timing.schema.yaml); attempts are in the same folder
#        RESULTS/costs.csv, RESULTS/messages.csv (config/schemas/costs.schema.yaml, messages.schema.yaml),
#        RESULTS/tables/costs.*
#        config/strategies/<study>.<site>.json (config/schemas/strategies.schema.yaml),
#        RESULTS/tables/strategies_found.*

from common.files import display_path
from plan.strategies import strategy_file

REQUIRED_TIMINGS = list(TIMINGS.record_paths.values()) if CAMPAIGN.is_measuring else []
COSTS_CSV, MESSAGES_CSV = (str(CAMPAIGN.table_file(name)) for name in ("costs", "messages"))
COSTS_FILES = PRODUCTS.files_of_program("strategies.costs_table")
FOUND_FILES = PRODUCTS.files_of_program("strategies.study_search")
STRATEGIES_JSON = display_path(strategy_file(STUDY, SITE))


rule strategies:
    """Time parts of layers and messages at the site, and search for the strategies that the study asks for."""
    input:
        lambda wildcards: exit_on_input_error(lambda: TIMINGS.check_available(COSTS_FILES + FOUND_FILES)),


rule costs:
    """Time parts and messages alone, and make their table."""
    input:
        lambda wildcards: exit_on_input_error(lambda: TIMINGS.check_available(COSTS_FILES)),


if REQUIRED_TIMINGS:

    localrules:
        timings,
        costs_table,
        found,

    rule timing:
        """Time the parts of one model's layers, or messages, alone on the machine."""
        input:
            ancient(NODE_CHECK),
            environment=lambda wildcards: ancient(TIMINGS.environment(wildcards.timing)),
        output:
            timing=f"{RESULTS}/costs/{{timing}}/{{key}}/timing.json",
        wildcard_constraints:
            timing="|".join(TIMINGS.by_name),
        priority: 5 * 10**8
        resources:
            **TIMINGS.resources(),
            machine=concurrent_share(CAMPAIGN.site),
        params:
            study=STUDY,
            site=SITE,
        shell:
            """
            {PREFORKED} strategies.measure \
                --study {params.study:q} \
                --site {params.site:q} \
                --timing {wildcards.timing:q} \
                --key {wildcards.key:q} \
                --out {output.timing:q}
            """

    rule timings:
        """Gather the timings into costs.csv and messages.csv, whether or not they succeeded."""
        input:
            timings=REQUIRED_TIMINGS,
            changed=changed("timings", program_sources("strategies.gather")),
        output:
            costs=COSTS_CSV,
            messages=MESSAGES_CSV,
        log:
            f"{RESULTS}/logs/costs.log",
        params:
            study=STUDY,
            site=SITE,
        shell:
            """
            {PREFORKED} strategies.gather \
                --study {params.study:q} \
                --site {params.site:q} \
                --costs {output.costs:q} \
                --messages {output.messages:q} \
                2>&1 | tee -p {log:q}
            """

    rule costs_table:
        """Make the table of the times of parts of layers."""
        input:
            costs=COSTS_CSV,
            messages=MESSAGES_CSV,
            changed=changed("costs_table", program_sources("strategies.costs_table")),
        output:
            COSTS_FILES,
        log:
            f"{RESULTS}/logs/tables/costs.log",
        params:
            stem=subpath(output[0], strip_suffix=".csv"),
        shell:
            """
            {PREFORKED} strategies.costs_table \
                --costs {input.costs:q} \
                --messages {input.messages:q} \
                --out {params.stem:q} \
                2>&1 | tee -p {log:q}
            """

    rule found:
        """Search for the fastest strategies, and write them for the plan."""
        input:
            costs=COSTS_CSV,
            messages=MESSAGES_CSV,
            network=NETWORK_CSV,
            changed=changed("found", program_sources("strategies.study_search", "strategies.search")),
        output:
            FOUND_FILES,
            strategies=[] if Path(STRATEGIES_JSON).exists() else STRATEGIES_JSON,  # a job that failed would lose it
        log:
            f"{RESULTS}/logs/strategies_found.log",
        params:
            study=STUDY,
            site=SITE,
            stem=subpath(output[0], strip_suffix=".csv"),
        shell:
            """
            {PREFORKED} strategies.study_search \
                --study {params.study:q} \
                --site {params.site:q} \
                --costs {input.costs:q} \
                --messages {input.messages:q} \
                --network {input.network:q} \
                --out {params.stem:q} \
                2>&1 | tee -p {log:q}
            """
