"""Write the CITATION.cff of a study (Citation File Format 1.2.0)."""

from typing import Any

import yaml

from declared.study import Study


def list_authors(study: Study) -> list[dict[str, str]]:
    """Return the authors to cite: those of the study, or else "The authors of <study>"."""
    named = [
        {name.replace("_", "-"): value for name, value in vars(author).items() if value}
        for author in study.authors
    ]
    return named or [{"name": f"The authors of {study.name}"}]


def format_citation(study: Study, date: str | None, version: str | None) -> str:
    """Return the file's text.

    Args:
        study: The study.
        date: Date of the last record, YYYY-MM-DD; None if no record has one.
        version: The commit.
    """
    fields: dict[str, Any] = {
        "cff-version": "1.2.0",
        "message": "If you use these records, please cite them as below.",
        "type": "dataset",
        "title": study.title,
        "abstract": study.question,
        "authors": list_authors(study),
    }
    if date:
        fields["date-released"] = date
    if version:
        fields["commit"] = version
    if study.licence:
        fields["license"] = study.licence
    if study.imported:
        stated = study.imported.description.stated
        source: dict[str, Any] = {
            "type": "data",
            "title": stated.source,
            "authors": [{"name": stated.source}],
            "notes": f"Licence: {stated.licence}.",
        }
        fields["references"] = [source | ({"url": stated.url} if stated.url else {})]
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)
