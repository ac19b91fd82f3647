"""Table of the settings that each framework's trainers really used, from the records of the runs.

A note lists the settings in which all frameworks agree, so the rows show only the differences.
"""

from collections.abc import Sequence

import pandas as pd

from analysis import tables
from analysis.level_words import level_text, title
from analysis.records import framework_order, levels_in_order, successful, varying
from common.notes import Note
from declared.records import split_settings

TITLE = "How each framework was configured"
TRANSPORT = "transport of gradients"
TITLES = {"compiler": "graph or compiler"}  # The factor `compiler` does not count TensorFlow's graph.
COLUMNS = ("setting", "framework", "value", "differs")
NO_SETTINGS = Note("no-settings", "No run has recorded settings: runs of earlier versions have none.")


def settings_by_run(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of successful runs, a column for each, in the order of the records.

    A run without a setting has NaN. The last column is the transport, which records have separately.
    """
    recorded = successful(runs)
    recorded = recorded[recorded["settings"].notna()]
    rows = [split_settings(text) for text in recorded["settings"]]
    names = list(dict.fromkeys(name for row in rows for name in row))
    settings = pd.DataFrame(rows, index=recorded.index, columns=names, dtype=object)
    if recorded["transport"].notna().any():
        settings[TRANSPORT] = recorded["transport"].astype(object)
    return settings


def values_by_framework(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each setting and framework, with the columns COLUMNS; settings that differ come first.

    A value that depends on a factor of the study names the levels of that factor.
    """
    settings = settings_by_run(runs)
    measured = runs.loc[settings.index]
    frameworks = [name for name in framework_order(runs) if (measured["framework"] == name).any()]
    factors = [name for name in varying(runs) if name != "framework"]
    rows = []
    for setting in settings.columns:
        values = {}
        for framework in frameworks:
            rows_of = measured["framework"] == framework
            values[framework] = _value_text(settings.loc[rows_of, setting], measured.loc[rows_of, factors])
        differs = len(set(values.values())) > 1
        rows += [(setting, framework, value, differs) for framework, value in values.items()]
    data = pd.DataFrame(rows, columns=list(COLUMNS))
    return data.sort_values("differs", ascending=False, kind="stable").reset_index(drop=True)


def _value_text(values: "pd.Series[str]", levels: pd.DataFrame) -> str | None:
    """Return a framework's values of a setting: the only one, one for each level of a factor, or all.

    Args:
        values: Value of each run.
        levels: Levels of the varying factors, for the same runs.

    Returns:
        The text; None if no run has a value.
    """
    distinct = list(dict.fromkeys(values.dropna()))
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    for factor in levels:
        values_by_level = {
            level_text(level): list(values[levels[factor] == level].unique())
            for level in levels_in_order(levels, factor)
        }
        if all(len(values_of_level) == 1 for values_of_level in values_by_level.values()):
            levels_by_value: dict[str, list[str]] = {}
            for level, (value,) in values_by_level.items():
                levels_by_value.setdefault(value, []).append(level)
            return "; ".join(
                f"{value} ({title(factor)} {', '.join(names)})" for value, names in levels_by_value.items()
            )
    return "; ".join(distinct)


def table(runs: pd.DataFrame) -> tables.Table:
    """Return the table of a study; it has no rows without settings, or if the frameworks agree in all."""
    data = values_by_framework(runs)
    if data.empty:
        return tables.Table(TITLE, data, pd.DataFrame(columns=["setting"], dtype=str), [NO_SETTINGS])
    different = data[data["differs"]]
    wide = different.pivot(index="setting", columns="framework", values="value").fillna(tables.DASH)
    frameworks = list(dict.fromkeys(different["framework"]))
    display = wide.loc[list(dict.fromkeys(different["setting"])), frameworks].reset_index()
    display["setting"] = display["setting"].replace(TITLES)
    display.columns.name = None
    return tables.Table(
        title=TITLE,
        data=data,
        display=display,
        notes=[_agreement_note(data[~data["differs"]])],
        left_aligned=list(display),
    )


def _agreement_note(data: pd.DataFrame) -> Note:
    """List the settings in which all frameworks agree."""
    common = {str(row.setting): str(row.value) for row in data.drop_duplicates("setting").itertuples()}
    listed = "; ".join(f"{name}: {value}" for name, value in common.items())
    text = f"The same in all frameworks: {listed}." if common else "The frameworks agree in no setting."
    return Note("settings-in-common", text, settings=common)


def names_differing(runs: pd.DataFrame) -> Sequence[str]:
    """Return the names of the settings in which frameworks differ."""
    data = values_by_framework(runs)
    return list(dict.fromkeys(data.loc[data["differs"], "setting"]))
