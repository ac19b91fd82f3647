# Network: what a study's strategies send, by every framework's own library -> latency and bandwidth, before runs are read as if they were computing.
#   in:  an environment (ancient: what must cause a new measurement is in the path)
#   out: RESULTS/network/<sweep>/<key>/sweep.json (config/schemas/sweep.schema.yaml); attempts lie beside it
#        RESULTS/network.csv (config/schemas/network.schema.yaml)

from plan.scheduling import concurrent_share

NETWORK_CSV = SWEEPS.table
REQUIRED_SWEEPS = list(SWEEPS.outputs.values()) if CAMPAIGN.mode == "campaign" else []
NETWORK_RECORDS = [*REQUIRED_SWEEPS, NETWORK_CSV] if SWEEPS.has_results else []


rule network:
    """Sweep all-reduce, and what else the study sends, over message sizes for every distributed framework and number of nodes; make the table, and the figure if declared."""
    input:
        NETWORK_RECORDS,
        PRODUCTS.files("network.fit") if SWEEPS.has_results else [],
        PRODUCTS.files_of_kind("network"),


rule sweeps:
    """Measure the network sweeps alone, without the table."""
    input:
        REQUIRED_SWEEPS,


if REQUIRED_SWEEPS:

    rule sweep:
        """Sweep one framework's collective over message sizes, alone on the machine."""
        input:
            environment=lambda wildcards: ancient(SWEEPS.environment(wildcards.sweep)),
        output:
            sweep=f"{RESULTS}/network/{{sweep}}/{{key}}/sweep.json",
        wildcard_constraints:
            sweep="|".join(SWEEPS.by_name),
        priority: 5 * 10**8
        resources:
            **SWEEPS.resources(),
            machine=concurrent_share(CAMPAIGN.site),
        params:
            study=STUDY,
            site=SITE,
        shell:
            """
            {PREFORKED} network.measure \
                --study {params.study:q} \
                --site {params.site:q} \
                --sweep {wildcards.sweep:q} \
                --key {wildcards.key:q} \
                --out {output.sweep:q}
            """


if CAMPAIGN.mode != "published":

    localrules:
        network_records,

    rule network_records:
        """Gather the sweeps into network.csv, whether or not they succeeded."""
        input:
            sweeps=REQUIRED_SWEEPS or SWEEPS.available(),
            changed=changed("network_records", code("network.gather")),
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
