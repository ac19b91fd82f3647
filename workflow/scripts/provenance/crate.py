"""The campaign as a Workflow Run RO-Crate (0.5, on RO-Crate 1.1): what ran, on what, when, and what came of it.

Leo et al., Recording provenance of workflow runs with RO-Crate, PLOS ONE 19 (2024).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rocrate.model.contextentity import ContextEntity
from rocrate.rocrate import ROCrate

from declared.study import Study
from provenance.citation import authors

PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
PROFILE_VERSIONS = {name: name.rpartition("/")[2] for name in PROFILES}
SOFTWARE = {  # what a record's library_version begins with -> where it is told of
    "torch": "https://pytorch.org",
    "tensorflow": "https://www.tensorflow.org",
    "horovod": "https://horovod.ai",
    "LBANN": "https://lbann.readthedocs.io",
    "tarantella": "https://tarantella.readthedocs.io",
}
README = "README.md"
SNAKEMAKE = "https://snakemake.github.io"
TYPES = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".pdf": "application/pdf",
    ".png": "image/png",
}
TYPES |= {
    ".svg": "image/svg+xml",
    ".tex": "text/x-tex",
    ".cff": "text/yaml",
    ".yaml": "text/yaml",
    ".txt": "text/plain",
    ".ipynb": "application/x-ipynb+json",
    ".R": "text/x-r-source",
}


def crate(
    study: Study,
    runs: pd.DataFrame,
    inputs: Mapping[str, str],
    results: Mapping[str, str],
    others: Mapping[str, str],
    workflow: str,
    versions: Mapping[str, str | None],
) -> dict[str, Any]:
    """ro-crate-metadata.json. Paths are those in the archive, folders end with a slash.

    `inputs`, `results`, `others`: path -> what it is; `workflow`: the Snakefile's; `versions`: of ringside (the commit) and snakemake.
    """
    made = ROCrate(version="1.1")
    made.name, made.description = study.title, study.question
    ended = runs["ended_at"].dropna().astype(str)
    started = runs["started_at"].dropna().astype(str)
    made.root_dataset["datePublished"] = ended.max() if len(ended) else None
    made.root_dataset["license"] = _licence(made, study)
    people = _people(made, study)
    made.root_dataset["author"] = _one_or_more(people)
    made.root_dataset["conformsTo"] = [
        made.add(
            ContextEntity(
                made, address, properties={"@type": "CreativeWork", "name": name, "version": PROFILE_VERSIONS[address]}
            )
        )
        for address, name in PROFILES.items()
    ]
    main = made.add_workflow(
        dest_path=workflow,
        main=True,
        lang="snakemake",
        lang_version=versions["snakemake"],
        properties={"name": "Ringside", "encodingFormat": "text/plain"},
    )
    main["version"] = versions["ringside"] or "not under version control"
    main["url"] = SNAKEMAKE
    main["softwareRequirements"] = _one_or_more(
        [
            made.add(
                ContextEntity(
                    made,
                    url,
                    properties={"@type": "SoftwareApplication", "name": name, "softwareVersion": said, "url": url},
                )
            )
            for url, name, said in _software(runs)
        ]
    )
    taken = [_file(made, path, what) for path, what in inputs.items()]
    left = [_file(made, path, what) for path, what in results.items()]
    main["input"] = _parameters(made, taken)
    main["output"] = _parameters(made, left)
    for path, what in others.items():
        entity = _file(made, path, what)
        if path == README:
            entity["about"] = made.root_dataset
    ok = int((runs["status"] == "ok").sum())
    properties = {
        "name": f"Campaign of the study {study.name}",
        "description": f"{len(runs)} runs were planned, {ok} succeeded; then tables and figures were made of their records",
        "actionStatus": "http://schema.org/CompletedActionStatus",
        **({"startTime": _with_zone(started.min())} if len(started) else {}),
        **({"endTime": _with_zone(ended.max())} if len(ended) else {}),
    }
    action = made.add_action(main, identifier="#campaign", object=taken, result=left, properties=properties)
    action["agent"] = _one_or_more(people)
    made.root_dataset["mentions"] = action
    said: dict[str, Any] = made.metadata.generate()
    return said


def _one_or_more(entities: list[Any]) -> Any:
    """As JSON-LD of RO-Crates has it: one entity alone, several in a list."""
    return entities[0] if len(entities) == 1 else entities


def _with_zone(time: str) -> str:
    """A time of a record, with its offset from UTC in digits."""
    return time.replace("Z", "+00:00")


def _people(made: ROCrate, study: Study) -> list[ContextEntity]:
    """The authors; an organization without any."""
    found = []
    for number, one in enumerate(authors(study)):
        if "name" in one:
            properties = {"@type": "Organization", "name": one["name"]}
        else:
            properties = {"@type": "Person", "name": f"{one['given-names']} {one['family-names']}"}
        entity = made.add(ContextEntity(made, one.get("orcid", f"#author-{number + 1}"), properties=properties))
        if "affiliation" in one:
            place = {"@type": "Organization", "name": one["affiliation"]}
            entity["affiliation"] = made.add(ContextEntity(made, f"#affiliation-{number + 1}", properties=place))
        found.append(entity)
    return found


def _licence(made: ROCrate, study: Study) -> ContextEntity:
    if study.licence:
        address = f"https://spdx.org/licenses/{study.licence}"
        said = {"@type": "CreativeWork", "name": study.licence, "description": "of records, figures and tables"}
    else:
        address = "#no-licence"
        said = {
            "@type": "CreativeWork",
            "name": "No licence",
            "description": "The authors have not said under which licence this may be used.",
        }
    return made.add(ContextEntity(made, address, properties=said))


def _software(runs: pd.DataFrame) -> Iterable[tuple[str, str, str]]:
    """Address, name and version of what the records say that trained."""
    told = {part.strip() for text in runs["library_version"].dropna() for part in str(text).split(",")}
    by_address: dict[str, list[str]] = {}
    for part in sorted(told):
        name, _, version = part.partition(" ")
        address = next((url for start, url in SOFTWARE.items() if name.startswith(start)), None)
        if address and version:
            by_address.setdefault(address, []).append(part)
    for address, parts in by_address.items():
        yield address, parts[0].partition(" ")[0], ", ".join(parts)


def _file(made: ROCrate, path: str, what: str) -> Any:
    properties = {"name": what}
    if path.endswith("/"):
        return made.add_dataset(dest_path=path, properties=properties)
    ending = Path(path).suffix
    return made.add_file(dest_path=path, properties=properties | {"encodingFormat": TYPES.get(ending, "text/plain")})


def _parameters(made: ROCrate, entities: Sequence[Any]) -> list[Any]:
    """A formal parameter for each, to which it is the example."""
    found = []
    for entity in entities:
        kind = "Dataset" if entity.id.endswith("/") else "File"
        parameter = made.add_formal_parameter(
            name=entity["name"],
            additionalType=kind,
            identifier=f"#parameter-{entity.id}",
            properties={"workExample": {"@id": entity.id}},
        )
        entity["exampleOfWork"] = parameter
        found.append(parameter)
    return found
