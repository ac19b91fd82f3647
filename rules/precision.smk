# Precision: where a study says a precision in place of a number of replicates, which cells get another run, decided after each block.
#   in:  the records of the blocks so far; RUNS_CSV
#   out: results/<study>/precision/block-<block>.json (config/schemas/decision.schema.yaml), with which the next block is known
#        RESULTS/tables/precision.*

import functools
import json

from plan import decisions

WANTED = CAMPAIGN.study.replicates
RULE = json.dumps(decisions.rule_of(WANTED))
PRECISION_CODE = code("precision.reached")
PRECISION_FILES = (
    expand(f"{RESULTS}/tables/precision.{{suffix}}", suffix=["csv", "md", "tex"]) if WANTED.adaptive else []
)


if WANTED.adaptive and CAMPAIGN.mode == "campaign":

    def decided_records(last=None):
        """The records of the campaign up to the block `last`, which rules require as soon as it is decided which they are.

        Until then Snakemake takes the decision for all that is required (checkpoints.get), and asks again when it is there.
        """
        made = []
        for block in range(WANTED.at_least, min(last or WANTED.at_most, WANTED.at_most)):
            file = checkpoints.precision.get(block=block).output.decision
            made.append((file, os.stat(file).st_mtime_ns))
            if not decisions.read(Path(file), WANTED).refined:
                break
        return known_records(last, tuple(made))

    @functools.cache
    def known_records(last, made):
        """As they are known by the decisions that were `made`: files with their dates."""
        known = CAMPAIGN.now()
        return [path for run_id, path in known.records.items() if last is None or known.by_id[run_id].block <= last]

    def decided_records_of_block(block):
        """Those of one block alone. InputError when there is no such block."""
        of_block = set(CAMPAIGN.of_block(block).by_id)
        return lambda wildcards: [path for path in decided_records(block) if Path(path).parts[-3] in of_block]

    REQUIRED_RECORDS = lambda wildcards: decided_records()
    STANDS_ON = lambda wildcards: [*decided_records(), f"{RESULTS}/design.csv"]
    records_of_block = decided_records_of_block

    localrules:
        precision,

    checkpoint precision:
        """Decide after a block which cells are not yet precise, and get a run in the next one."""
        input:
            records=lambda wildcards: decided_records(int(wildcards.block)),
            code=code("precision.decide"),
        output:
            decision=f"{RESULTS}/precision/block-{{block}}.json",
        log:
            f"{RESULTS}/logs/precision/block-{{block}}.log",
        wildcard_constraints:
            block=r"\d+",
        priority: 10**9
        resources:
            machine=1,
        params:
            study=STUDY,
            site=SITE,
            rule=RULE,
        shell:
            """
            {WARM} precision.decide \
                --study {params.study:q} \
                --site {params.site:q} \
                --block {wildcards.block} \
                --out {output.decision:q} \
                2>&1 | tee {log:q}
            """


if PRECISION_FILES:

    localrules:
        reached,

    rule reached:
        """Make the table of the precision that was wanted and reached."""
        input:
            runs=RUNS_CSV,
            code=PRECISION_CODE,
        output:
            PRECISION_FILES,
        log:
            f"{RESULTS}/logs/tables/precision.log",
        resources:
            machine=1,
        params:
            rule=RULE,
            stem=subpath(output[0], strip_suffix=".csv"),
        shell:
            """
            {WARM} precision.reached \
                --runs {input.runs:q} \
                --rule {params.rule:q} \
                --out {params.stem:q} \
                2>&1 | tee {log:q}
            """
