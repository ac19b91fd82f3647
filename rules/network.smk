# Network: the collectives that a study's strategies use, in every framework's own library -> latency and bandwidth.
#   in:  an environment (ancient: everything that must cause a new measurement is in the path)
#   out: RESULTS/network/<benchmark>/<key>/collective_benchmark.json
#        (config/schemas/collective_benchmark.schema.yaml); attempts are in the same folder
#        RESULTS/network.csv (config/schemas/network.schema.yaml)

from plan.scheduling import concurrent_share

NETWORK_CSV = BENCHMARKS.table
REQUIRED_BENCHMARKS = list(BENCHMARKS.record_paths.values()) if CAMPAIGN.is_measuring else []
NETWORK_RECORDS = [*REQUIRED_BENCHMARKS, NETWORK_CSV] if BENCHMARKS.has_results else []


rule network:
    """Benchmark all collectives that the study uses, for every distributed framework and number of nodes; make the table, and the figure if the study has it."""
    input:
        NETWORK_RECORDS,
        PRODUCTS.files_of_program("network.fit") if BENCHMARKS.has_results else [],
        PRODUCTS.files_of_kind("network"),


rule collective_benchmarks:
    """Run the collective benchmarks alone, without the table."""
    input:
        REQUIRED_BENCHMARKS,


if REQUIRED_BENCHMARKS:

    rule collective_benchmark:
        """Benchmark one framework's collective over message sizes, alone on the machine."""
        input:
            ancient(NODE_CHECK),
            environment=lambda wildcards: ancient(BENCHMARKS.environment(wildcards.benchmark)),
        output:
            benchmark=f"{RESULTS}/network/{{benchmark}}/{{key}}/collective_benchmark.json",
        wildcard_constraints:
            benchmark="|".join(BENCHMARKS.by_name),
        priority: 5 * 10**8
        resources:
            **BENCHMARKS.resources(),
            machine=concurrent_share(CAMPAIGN.site),
        params:
            study=STUDY,
            site=SITE,
        shell:
            """
            {PREFORKED} network.measure \
                --study {params.study:q} \
                --site {params.site:q} \
                --benchmark {wildcards.benchmark:q} \
                --key {wildcards.key:q} \
                --out {output.benchmark:q}
            """


if CAMPAIGN.mode != "published":

    localrules:
        network_records,

    rule network_records:
        """Gather the collective benchmarks into network.csv, whether or not they succeeded."""
        input:
            benchmarks=REQUIRED_BENCHMARKS or BENCHMARKS.existing_record_paths(),
            changed=changed("network_records", program_sources("network.gather")),
        output:
            network=NETWORK_CSV,
        log:
            f"{RESULTS}/logs/network.log",
        params:
            study=STUDY,
            site=SITE,
        shell:
            """
            {PREFORKED} network.gather \
                --study {params.study:q} \
                --site {params.site:q} \
                --out {output.network:q} \
                2>&1 | tee -p {log:q}
            """
