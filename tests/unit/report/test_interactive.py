"""Figures of the page can be explored, saved and printed.

The page is readable in dark mode, at any width, and with a screen reader.
"""

import base64
import gzip
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.cell_means import estimate_means
from analysis.level_words import cell_words
from analysis.records import successful
from analysis.tables import interval
from figures import captions
from report.charts import DARK_INK, LIGHT_INK, Chart, HeatMap, build_charts
from report.dark import contrast, dark_colour
from support.accessibility import violations
from support.opened_page import element, painted, resize, texts, undisturbed, wait
from support.reports import CampaignFiles
from support.synthetic import benchmarks, campaign

CAPTION = "Epoch time: markers are means. Replicates are independent runs, n = 3 per cell.\n\nA note on it."
NAMES = ("overview", "by_batch_size", "by_nodes", "scaling", "interaction", "heat_map", "residuals")
DDP_COLOUR, DDP = "#c8420a", [200, 66, 10]  # the colour of pytorch-ddp


@pytest.fixture(scope="module")
def campaign_files(in_folder) -> CampaignFiles:
    files = in_folder(*campaign(), pictures=dict.fromkeys(NAMES, CAPTION))
    files.leave_records()
    return files


@pytest.fixture(scope="module")
def page(campaign_files: CampaignFiles) -> Path:
    return campaign_files.report()


@pytest.fixture
def opened(driver: Any, page: Path):
    driver.execute_script("try { localStorage.clear(); } catch {}")
    with undisturbed(driver, page) as watched:
        resize(watched, 1400)
        yield watched


def drawn(driver: Any, name: str) -> str:
    """Show a figure, and return the selector of its panels once they are drawn."""
    panels = f"#figure-{name} .panels"
    driver.execute_script(
        "const figure = document.querySelector(arguments[0]); "
        "if (figure.matches('details')) figure.open = true; figure.scrollIntoView({block: 'center'});",
        f"#figure-{name}",
    )
    wait(driver, f"document.querySelectorAll('{panels} .panel').length > 0")
    end = time.monotonic() + 20
    while not (points := painted(driver, panels)) or points != painted(driver, panels):
        assert time.monotonic() < end
        time.sleep(0.2)
    return panels


FIND = """
const [inside, colour] = arguments;
const canvases = [];
const look = (node) => {
  if (node.tagName === "CANVAS") canvases.push(node);
  for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) look(child);
};
look(document.querySelector(inside).querySelector(".panel"));
for (const canvas of canvases.filter((one) => one.width && one.height)) {
  const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const is = (x, y) => colour.every((part, index) => Math.abs(data[4 * (y * canvas.width + x) + index] - part) < 3);
  for (let y = 3; y < canvas.height - 3; y += 1) for (let x = 3; x < canvas.width - 3; x += 1) {
    if ([-2, 0, 2].every((dx) => [-2, 0, 2].every((dy) => is(x + dx, y + dy)))) {
      const box = canvas.getBoundingClientRect();
      return [box.left + x * box.width / canvas.width, box.top + y * box.height / canvas.height];
    }
  }
}
return null;
"""
TOOLTIP = """
const found = [];
const look = (node) => {
  if (node.classList?.contains("bk-Tooltip") && getComputedStyle(node).display !== "none") found.push(node);
  for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) look(child);
};
look(document.body);
const text = (node) => [...node.childNodes].map((child) => child.nodeType === 3 ? child.data : child.tagName === "STYLE" ? "" : text(child)).join(" ")
  + (node.shadowRoot ? text(node.shadowRoot) : "");
return found.map(text).join(" | ");
"""


def marker(driver: Any, panels: str) -> list[float] | None:
    """Return where in the window a marker of pytorch-ddp is, in the first panel."""
    place: list[float] | None = driver.execute_script(FIND, panels, DDP)
    return place


def point_at(driver: Any, x: float, y: float) -> str:
    """Move the mouse, and return the texts of the tooltips."""
    for step in (3, 0):
        event = {"type": "mouseMoved", "x": x + step, "y": y}
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
        time.sleep(0.1)
    text: str = driver.execute_script(TOOLTIP)
    return text


def point_at_mean(driver: Any) -> tuple[float, float, str]:
    """Point at a mean of the overview until its tooltip appears, and return place and text."""
    panels = drawn(driver, "overview")
    end, text = time.monotonic() + 10, ""
    while "value" not in text:
        assert time.monotonic() < end
        x, y = marker(driver, panels) or (0, 0)
        text = point_at(driver, x, y + 3)
    return x, y, text


def test_a_cell_shows_its_mean_and_interval(opened: Any, campaign_files: CampaignFiles) -> None:
    _, _, text = point_at_mean(opened)
    ok = successful(campaign_files.runs)
    cells = ok[(ok["framework"] == "pytorch-ddp")]["cell"].unique()
    means = estimate_means(campaign_files.runs)
    assert any(f"{interval(means.cell_mean(cell))} s" in text for cell in cells), text
    assert "pytorch-ddp" in text


def test_a_run_shows_its_replicate_and_opens(opened: Any) -> None:
    panels = drawn(opened, "overview")
    place = marker(opened, panels)
    assert place is not None
    x, y = place
    for step in range(-40, 60):
        text = point_at(opened, x + step, y + 11)
        if "replicate" in text:
            break
    assert "pytorch-ddp.small-cnn.digits" in text and "mean of its cell" in text
    for kind in ("mousePressed", "mouseReleased"):
        event = {"type": kind, "x": x + step, "y": y + 11, "button": "left", "buttons": 1, "clickCount": 1}
        opened.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    wait(opened, "document.getElementById('run').open")
    assert opened.execute_script("return location.hash").startswith("#run=pytorch-ddp")


def test_the_legend_hides_a_series(opened: Any) -> None:
    panels = drawn(opened, "by_nodes")
    before = painted(opened, panels)
    button = next(
        button
        for button in opened.find_elements("css selector", "#figure-by_nodes .legend button")
        if button.text == "pytorch-ddp"
    )
    assert marker(opened, panels)
    button.click()
    time.sleep(0.5)
    assert button.get_attribute("aria-pressed") == "false" and marker(opened, panels) is None
    assert painted(opened, panels) < before
    button.click()
    time.sleep(0.5)
    assert button.get_attribute("aria-pressed") == "true" and marker(opened, panels)


def test_the_axis_of_values_becomes_logarithmic(opened: Any) -> None:
    panels = drawn(opened, "by_batch_size")
    switch = element(opened, "#figure-by_batch_size [data-action=logarithmic]")
    assert switch.get_attribute("aria-pressed") == "false"
    linear = marker(opened, panels)
    switch.click()
    wait(
        opened, "document.querySelector('#figure-by_batch_size [aria-pressed=true][data-action=logarithmic]')"
    )
    time.sleep(1)
    logarithmic = marker(opened, panels)
    assert linear and logarithmic and abs(linear[1] - logarithmic[1]) > 2
    drawn(opened, "interaction")
    assert (
        element(opened, "#figure-interaction [data-action=logarithmic]").get_attribute("aria-pressed")
        == "true"
    )


def test_speed_up_and_efficiency_have_panels(opened: Any) -> None:
    panels = drawn(opened, "scaling")
    assert len(texts(opened, f"{panels} .panel")) % 2 == 0
    assert painted(opened, f"{panels} .panel:last-child") > 200
    assert texts(opened, "#figure-scaling .legend .ideal") == ["ideal"]
    assert (
        element(opened, "#figure-scaling [data-action=logarithmic]").get_attribute("aria-pressed") == "false"
    )


def test_speed_ups_have_the_model_estimates_of_a_benchmark(campaign_files: CampaignFiles) -> None:
    material = campaign_files.material()
    assert not any(panel.estimates for panel in build_charts(material)["scaling"].panels)
    network = benchmarks("pytorch-ddp", noise=0)
    chart = build_charts(replace(material, network=network))["scaling"]
    drawn_series = {chart.series[curve.series].name for panel in chart.panels for curve in panel.estimates}
    assert drawn_series == {"pytorch-ddp"}


def test_fields_have_the_means_of_all_cells(campaign_files: CampaignFiles) -> None:
    heat_map = build_charts(campaign_files.material())["heat_map"]
    assert isinstance(heat_map, HeatMap)
    fields = [field for panel in heat_map.panels for field in panel.fields]
    means = estimate_means(campaign_files.runs).cell_statistics["mean"]
    assert len(fields) == campaign_files.runs["cell"].nunique()
    measured = sorted(field.value for field in fields if field.value is not None)
    assert measured == pytest.approx(sorted(means))
    assert all(field.label == captions.NO_SUCCESS for field in fields if field.value is None)
    assert sum(len(field.runs) for field in fields) == len(successful(campaign_files.runs))
    dark, light = heat_map.palette[: heat_map.n_dark], heat_map.palette[heat_map.n_dark :]
    contrasts = [contrast(LIGHT_INK, colour) for colour in dark] + [
        contrast(DARK_INK, colour) for colour in light
    ]
    assert min(contrasts) >= 4.5, "WCAG 2, level AA"


def test_a_field_shows_its_runs_and_opens_one(opened: Any, campaign_files: CampaignFiles) -> None:
    opened.execute_script("document.querySelector('#figure-heat_map').open = true;")
    opened.execute_script("document.querySelector('#figure-heat_map').scrollIntoView();")
    wait(opened, "document.querySelector('#figure-heat_map .heat-map button')")
    named, text = opened.execute_script(
        "const [, field] = document.querySelectorAll('.heat-map button'); field.focus();"
        "return [field.getAttribute('aria-label'), document.querySelector('.field-detail').textContent];"
    )
    runs = campaign_files.material().runs
    (cell,) = [name for name, words in cell_words(runs).items() if named.startswith(f"{words}: ")]
    assert interval(estimate_means(runs).cell_mean(cell)) in text
    assert text.count("replicate") == int((successful(runs)["cell"] == cell).sum())
    opened.execute_script("document.querySelector('.field-detail a').click();")
    assert opened.execute_script("return location.hash").startswith("#run=")


def test_a_series_keeps_its_hue_in_the_dark(opened: Any) -> None:
    panels = drawn(opened, "overview")
    assert marker(opened, panels)
    prefer(opened, "dark")
    drawn(opened, "overview")
    red, green, blue = (int(dark_colour(DDP_COLOUR)[start : start + 2], 16) for start in (1, 3, 5))
    end = time.monotonic() + 10
    while not opened.execute_script(FIND, panels, [red, green, blue]):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert marker(opened, panels) is None
    swatches = "return [...document.querySelectorAll('#figure-overview .legend path')].map((e) => e.getAttribute('stroke'))"
    assert dark_colour(DDP_COLOUR) in opened.execute_script(swatches), "a resize draws panels, not the legend"
    filters = "return [...document.querySelectorAll('img, canvas')].map((e) => getComputedStyle(e).filter)"
    assert set(opened.execute_script(filters)) == {"none"}
    prefer(opened, "light")


def test_a_phone_sorts_a_table_by_a_field(opened: Any) -> None:
    from selenium.webdriver.support.ui import Select

    resize(opened, 400)
    wait(opened, "document.querySelector('#table-effects .sort-by select')")
    Select(element(opened, "#table-effects .sort-by select")).select_by_visible_text("ratio")
    titles = opened.execute_script(
        "return [...document.querySelectorAll('#table-effects thead th')].map((e) => e.textContent.trim())"
    )
    values = first_numbers(opened, titles.index("ratio") + 1)
    assert values == sorted(values) and len(set(values)) > 3
    visible = "return [...document.querySelectorAll('#table-effects tr td')].map((e) => e.checkVisibility())"
    assert set(opened.execute_script(visible)) == {True, False}
    element(opened, "#table-effects .sort-by button").click()
    assert all(opened.execute_script(visible)), "the button shows all columns"


def test_figures_are_saved_as_they_were_drawn(
    opened: Any, campaign_files: CampaignFiles, tmp_path: Path
) -> None:
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    stem = campaign_files.figures[NAMES.index("by_nodes")]
    drawn(opened, "by_nodes")
    for suffix in ("png", "svg", "pdf"):
        button = element(opened, f"[data-save='by_nodes.{suffix}']")
        opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        saved, end = tmp_path / f"by_nodes.{suffix}", time.monotonic() + 20
        while not saved.exists():
            assert time.monotonic() < end, suffix
            time.sleep(0.05)
        assert saved.read_bytes() == Path(f"{stem}.{suffix}").read_bytes()


def test_the_picture_can_be_shown_and_is_printed(opened: Any) -> None:
    drawn(opened, "by_nodes")
    visibility_script = (
        "return [...document.querySelectorAll('#figure-by_nodes :is(.live, .picture)')]"
        ".map((e) => e.checkVisibility())"
    )
    assert opened.execute_script(visibility_script) == [True, False]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert opened.execute_script(visibility_script) == [False, True]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    element(opened, "#figure-by_nodes [data-action=picture]").click()
    assert opened.execute_script(visibility_script) == [False, True]


def test_without_script_pictures_and_contents_are_shown(driver: Any, page: Path) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(page.as_uri())
        picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        assert len(base64.b64decode(picture["data"])) > 10_000
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    visibility_script = "return document.querySelector('#figure-scaling .picture').checkVisibility()"
    assert driver.execute_script(visibility_script) and driver.execute_script(
        "return document.getElementById('contents').open && !document.documentElement.dataset.ready"
    )


def lightness(driver: Any) -> int:
    """Return the sum of red, green and blue of the page's background."""
    colour: str = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))


def prefer(driver: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    time.sleep(0.2)


def test_it_is_dark_where_that_is_preferred_or_chosen(opened: Any) -> None:
    assert lightness(opened) > 700
    prefer(opened, "dark")
    assert lightness(opened) < 100
    button = element(opened, "#theme")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert lightness(opened) > 700
    prefer(opened, "light")
    button.click()
    assert lightness(opened) < 100 and button.get_attribute("aria-pressed") == "true"


def test_contents_stay_beside_the_text_or_fold(opened: Any) -> None:
    opened.execute_script("document.getElementById('methods').scrollIntoView()")
    sticky_script = (
        "const nav = document.querySelector('body > nav').getBoundingClientRect(); return nav.top >= -1"
    )
    assert opened.execute_script(sticky_script) and opened.execute_script(
        "return document.getElementById('contents').open"
    )
    resize(opened, 400)
    wait(opened, "!document.getElementById('contents').open")


def test_a_link_opens_what_is_folded(opened: Any) -> None:
    hidden = "return document.querySelector('#table-regression td').checkVisibility()"
    assert not opened.execute_script(hidden)
    opened.execute_script("location.hash = '#table-regression'")
    wait(opened, "document.getElementById('table-regression').open")
    assert opened.execute_script(hidden)
    wait(opened, "document.querySelector('#table-regression table.dataTable')")


def first_numbers(driver: Any, place: int) -> list[float]:
    cells = texts(driver, f"#table-effects tbody td:nth-child({place})")
    return [float(text.split(" ")[0].replace("−", "-")) for text in cells if text != "–"]


def test_a_result_table_is_sorted_searched_and_paged(opened: Any) -> None:
    wait(opened, "document.querySelector('#table-effects table.dataTable')")
    titles = [text.strip() for text in texts(opened, "#table-effects thead th")]
    place = titles.index("ratio") + 1
    assert len(texts(opened, "#table-effects tbody tr")) == 10
    header = element(opened, f"#table-effects thead th:nth-child({place})")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", header)
    header.click()
    wait(opened, "document.querySelector('#table-effects th[aria-sort=ascending]')")
    values = first_numbers(opened, place)
    assert values == sorted(values) and len(set(values)) > 3
    element(opened, "#table-effects input[type=search]").send_keys("horovod-pytorch → ")
    rows = texts(opened, "#table-effects tbody tr")
    assert rows and all("horovod-pytorch" in row and "→" in row for row in rows)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_no_rule_of_accessibility_is_broken(opened: Any, width: int, scheme: str) -> None:
    prefer(opened, scheme)
    resize(opened, width)
    opened.execute_script("document.querySelectorAll('main details').forEach((e) => { e.open = true; })")
    drawn(opened, "interaction")
    assert violations(opened) == []
    opened.execute_script("location.hash = '#run=pytorch-single.small-cnn.digits.b16.n1.s1.r1'")
    wait(opened, "document.querySelectorAll('#run .drawn').length === 3")
    assert violations(opened) == []


def test_a_mark_shows_its_details_on_focus(opened: Any) -> None:
    point_at(opened, 1, 1)
    before, focused, detail = opened.execute_script(
        "const mark = document.querySelector(\".marks a:not([data-detail=''])\");"
        "const shown = () => getComputedStyle(mark, '::after').content;"
        "const before = shown(); mark.focus(); return [before, shown(), mark.dataset.detail];"
    )
    assert before == "none" and detail and json.loads(focused) == detail


@pytest.fixture(scope="module")
def page_with_shortage(in_folder: Any) -> Path:
    runs, epochs = campaign()
    is_out = (runs["framework"] == "pytorch-ddp") & (runs["nodes"] == 2)
    runs = runs.assign(
        status=runs["status"].mask(is_out, "oom"), epoch_time_s=runs["epoch_time_s"].mask(is_out)
    )
    files = in_folder(
        runs, epochs[~epochs["run_id"].isin(runs[is_out]["run_id"])], pictures=dict.fromkeys(NAMES, CAPTION)
    )
    return files.report()


def test_cells_that_ran_out_of_memory_are_marked(driver: Any, page_with_shortage: Path) -> None:
    with undisturbed(driver, page_with_shortage) as opened:
        resize(opened, 1400)
        for name in ("overview", "by_nodes", "scaling"):
            drawn(opened, name)
            packed = re.search(rf'id="chart-{name}">([^<]*)<', page_with_shortage.read_text())
            assert packed
            chart = json.loads(gzip.decompress(base64.b64decode(packed[1])))
            marks = [mark for panel in chart["panels"] for mark in panel["out_of_memory"]]
            assert marks and all("pytorch-ddp" in cell and "2 nodes" in cell for _, _, cell in marks)
            assert {chart["series"][series]["name"] for series, _, _ in marks} == {"pytorch-ddp"}
            assert not {cell for _, _, cell in marks} & {
                point["cell"] for panel in chart["panels"] for point in panel["points"]
            }


def test_colours_of_fields_become_logarithmic(opened: Any) -> None:
    opened.execute_script("document.querySelector('#figure-heat_map').open = true;")
    opened.execute_script("document.querySelector('#figure-heat_map').scrollIntoView();")
    wait(opened, "document.querySelector('#figure-heat_map .heat-map button')")
    colours = (
        "return [...document.querySelectorAll('.heat-map button')].map((field) => field.style.background)"
    )
    before = opened.execute_script(colours)
    opened.execute_script("document.querySelector('#figure-heat_map [data-action=logarithmic]').click();")
    after = opened.execute_script(colours)
    assert before != after and set(before) & set(after), "the ends of the scale stay"


def test_all_is_unfolded_on_paper(opened: Any) -> None:
    folded = "return document.querySelectorAll('main details:not([open]):not(.source)').length"
    before = opened.execute_script(folded)
    assert before > 10
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert opened.execute_script(folded) == 0
    opened.execute_script("dispatchEvent(new Event('afterprint'))")
    assert opened.execute_script(folded) == before


def test_no_table_moves_sideways_on_a_phone(opened: Any) -> None:
    resize(opened, 400)
    opened.execute_script("document.querySelectorAll('main details').forEach((e) => { e.open = true; })")
    wait(opened, "document.querySelector('#table-regression table.dataTable')")
    widths = opened.execute_script(
        "return [...document.querySelectorAll('.scroll:not(.picture)')].filter((e) => e.clientWidth)"
        ".map((e) => [e.scrollWidth, e.clientWidth])"
    )
    assert len(widths) > 5 and [pair for pair in widths if pair[0] > pair[1]] == []


def test_chart_by_nodes_has_baselines_and_ideals(campaign_files: CampaignFiles) -> None:
    material = campaign_files.material()
    chart = build_charts(material)["by_nodes"]
    assert isinstance(chart, Chart)
    means, nodes = estimate_means(material.runs), {level: place for place, level in chart.ticks}
    single_device = successful(material.runs).query("framework.str.endswith('-single')")["cell"].unique()
    baselines = [means.cell_mean(cell).value for cell in single_device]
    for panel in chart.panels:
        assert panel.baselines
        for series, baseline in panel.baselines:
            assert chart.series[series].name.endswith("-single") and baseline in baselines
            has_marker = baseline in [point.value for point in panel.points if point.series == series]
            assert has_marker == ("accumulation over" not in panel.title), "baselines do not accumulate"
            ((first, *_, last),) = [ideal.points for ideal in panel.ideals if ideal.series == series]
            assert first == (nodes["1"], baseline)
            assert last[0] == max(nodes.values()) and last[1] < baseline


def test_only_speed_up_has_the_ideal_of_one_device(campaign_files: CampaignFiles) -> None:
    charts = build_charts(campaign_files.material())
    assert {panel.ideal_unit for panel in charts["by_nodes"].panels} == {None}
    assert {panel.ideal_unit for panel in charts["scaling"].panels} == {1.0, 100.0}
