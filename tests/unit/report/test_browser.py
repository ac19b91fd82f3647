"""The page works in a real browser, on a phone and in print, and makes no network requests.

It sorts, filters, searches, opens runs and draws.
"""

import base64
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from figures import style
from report import every_run
from support.opened_page import element, open_page, painted, resize, texts, undisturbed, wait
from support.synthetic import campaign

PHONE = {"width": 375, "height": 812, "deviceScaleFactor": 2, "mobile": True}
RUNS = "#run-table tbody tr"
LOAD_S, FILTER_S = 5.0, 0.5  # on a quiet machine; a test allows for others beside it
PATIENCE = 5


def column(driver: Any, title: str) -> list[str]:
    """Return the texts of a column of the table of runs."""
    titles = texts(driver, "#run-table thead th")
    at = [re.sub(r"\s+", " ", text).strip() for text in titles].index(title)
    return texts(driver, f"{RUNS} > td:nth-child({at + 1})")


def info(driver: Any) -> list[int]:
    """Return the numbers of the line below the table of runs: first and last row, rows that match, and all
    where some do not.
    """
    return [
        int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", texts(driver, "#runs .dt-info")[0])
    ]


@pytest.fixture(scope="module")
def page(in_folder) -> Path:
    campaign_files = in_folder(*campaign())
    campaign_files.leave_records()
    return campaign_files.report()


@pytest.fixture
def opened(driver: Any, page: Path):
    """The page, newly opened; its console and requests are logged."""
    with undisturbed(driver, page) as watched:
        yield watched


def click_header(driver: Any, title: str) -> None:
    from selenium.webdriver.common.by import By

    header = next(
        th for th in driver.find_elements(By.CSS_SELECTOR, "#run-table thead th") if title in th.text
    )
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", header)
    header.click()


def test_it_sorts_by_a_click_on_a_heading(opened: Any) -> None:
    for direction in ("ascending", "descending"):
        click_header(opened, "epoch time (s)")
        wait(
            opened,
            (
                "document.querySelector('#run-table "
                f"th[aria-sort={direction}]')?.textContent.includes('epoch time')"
            ),
        )
        times = [float(text) for text in column(opened, "epoch time (s)") if text != "–"]
        assert times == sorted(times, reverse=direction == "descending") and len(set(times)) > 5


def choose(driver: Any, name: str, text: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(element(driver, f"[data-filter={name}]")).select_by_visible_text(text)


def test_it_filters_by_levels_and_by_status(opened: Any) -> None:
    assert info(opened) == [1, 10, 114]
    choose(opened, "framework", "pytorch-ddp")
    choose(opened, "nodes", "2")
    assert info(opened) == [1, 10, 12, 114]
    assert set(column(opened, "framework")) == {"pytorch-ddp"} and set(column(opened, "nodes")) == {"2"}
    choose(opened, "status", "timeout")
    assert column(opened, "reason") == ["longer than 300 s"]
    element(opened, "#clear").click()
    assert info(opened) == [1, 10, 114]


def test_it_searches_all_text(opened: Any) -> None:
    element(opened, "#search").send_keys("exit status 1")
    assert column(opened, "name") == ["horovod-tensorflow.small-cnn.digits.b16.n2.s1.r2"]
    element(opened, "#search").clear()
    element(opened, "#search").send_keys("nothing has this")
    assert len(texts(opened, RUNS)) == len(texts(opened, f"{RUNS} td.dt-empty")) == 1


def test_the_chart_shows_what_the_filters_leave(opened: Any) -> None:
    unfiltered = painted(opened, "#chart")
    assert unfiltered > 500
    element(opened, "#search").send_keys("nothing has this")
    wait(opened, "true")
    time.sleep(1)
    assert painted(opened, "#chart") < unfiltered
    element(opened, "#clear").click()
    from selenium.webdriver.support.ui import Select

    Select(element(opened, "#colour")).select_by_visible_text("batch size")
    time.sleep(1)
    assert painted(opened, "#chart") > 500
    offered = texts(opened, "#colour option")
    assert "framework" in offered and len(offered) == len(set(offered))


def test_a_click_opens_a_run_with_curves_record_and_log(opened: Any) -> None:
    link = element(opened, f"{RUNS} td a")
    name = link.get_attribute("aria-label")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
    link.click()
    wait(opened, "document.getElementById('run').open && document.getElementById('run-record')")
    assert element(opened, "#run-title").text.replace("\n", "") == name
    assert texts(opened, "#run-log") == ["step 1\nred and plain\nlast line"]
    assert json.loads(texts(opened, "#run-record")[0])["run_id"] == name
    wait(opened, "document.querySelectorAll('#run .drawn').length === 3")
    time.sleep(1)
    assert painted(opened, "#run .curves > div:nth-child(1)") > 200, "epoch times"
    assert painted(opened, "#run .curves > div:nth-child(2)") > 200, "losses"
    element(opened, "#close").click()
    wait(opened, "!document.getElementById('run').open")
    assert opened.execute_script("return location.hash") == "#runs"


def test_a_run_can_be_linked_to_and_is_closed_by_a_key(opened: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened.execute_script("location.hash = '#run=pytorch-ddp.small-cnn.digits.b32.n2.s4.r2'")
    wait(opened, "document.getElementById('run-record')")
    assert every_run._log_fields(None, None)["note"] in element(opened, "#run-body").text
    element(opened, "#run-title").send_keys(Keys.ESCAPE)
    wait(opened, "!document.getElementById('run').open")


def test_headings_are_reached_and_used_by_keyboard(opened: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    opened.execute_script(
        "const th = [...document.querySelectorAll('#run-table thead th')].find((th) => "
        "th.textContent.includes('status'));(th.querySelector('[tabindex]') ?? th).focus()"
    )
    opened.switch_to.active_element.send_keys(Keys.ENTER)
    wait(
        opened, "document.querySelector('#run-table th[aria-sort=ascending]')?.textContent.includes('status')"
    )
    assert column(opened, "status")[0] == "failed"


def test_nothing_is_cut_at_any_width(opened: Any) -> None:
    for width in (400, 800, 1100, 1400, 1920):
        resize(opened, width)
        panels_fit = "[...document.querySelectorAll('.panel')].every((e) => e.getBoundingClientRect().right <= innerWidth)"
        wait(opened, panels_fit)  # they are drawn again a moment after the last change of the width
        cut = opened.execute_script(
            "return [...document.querySelectorAll('main :is(p, h3, td, th, dd, li, button, label, .scroll)')]"
            ".filter((e) => e.getClientRects().length && !e.closest('.scroll table, .dt-container')"
            " && (e.getBoundingClientRect().right > innerWidth + 1"
            " || (e.scrollWidth > e.clientWidth + 2 && !e.matches('.scroll'))))"
            ".map((e) => [e.tagName, e.className, e.textContent.slice(0, 60)])"
        )
        assert cut == [], width
        assert opened.execute_script("return document.documentElement.scrollWidth") == width
        wrapped = opened.execute_script(
            "return innerWidth < 721 ? [] : [...document.querySelectorAll('.scroll td.number')].filter((e) => {"
            " const range = document.createRange(); range.selectNodeContents(e);"
            " return new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1;"
            "}).map((e) => e.textContent)"
        )
        assert wrapped == [], width


def test_a_phone_shows_all_without_moving_sideways(opened: Any, page: Path) -> None:
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    open_page(opened, page)
    assert opened.execute_script("return document.documentElement.scrollWidth") <= PHONE["width"]
    too_wide = opened.execute_script(
        "return [...document.querySelectorAll('main p, main h2, main h3, main li, dd, figcaption, label, "
        "button')].filter((e) => e.getBoundingClientRect().right > 376 && !e.closest('.scroll')).map((e) => "
        "e.textContent.slice(0, 60))"
    )
    assert too_wide == []
    opened.execute_script("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    width_of = "return [...document.querySelectorAll('{}')].map((e) => e.getBoundingClientRect().width)"
    pictures = opened.execute_script(width_of.format(".wide img"))
    assert max(pictures) > PHONE["width"], "a wide picture is legible"
    assert max(opened.execute_script(width_of.format(".wide"))) <= PHONE["width"], "and moves in its frame"
    opened.execute_script("location.hash = '#run=pytorch-single.small-cnn.digits.b16.n1.s1.r1'")
    wait(opened, "document.getElementById('run-record')")
    assert (
        opened.execute_script("return document.getElementById('run').getBoundingClientRect().right")
        <= PHONE["width"]
    )
    assert opened.execute_script("return document.documentElement.scrollWidth") <= PHONE["width"]


def test_phone_keeps_legend_and_row_names_in_sight(driver: Any, in_folder: Callable[..., Any]) -> None:
    campaign_files = in_folder(*campaign())
    figure = style.new_figure(style.PAGE_INCHES, 2)
    first, second = figure.subplots(1, 2, sharey=True)
    for axes in (first, second):
        axes.barh(["one row", "another row"], [1, 2], label="start-up")
        axes.set_title("a panel\nof two lines")
    figure.legend(handles=first.containers, loc="outside upper center")
    style.save(figure, campaign_files.figures[1])
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    open_page(driver, campaign_files.report())
    name = campaign_files.figures[1].name
    driver.execute_script(f"document.querySelector('details#figure-{name}')?.setAttribute('open', '')")
    wait(driver, f"document.querySelector('#figure-{name} .names')")
    assert texts(driver, f"#figure-{name} .picture .legend > span") == ["start-up"]
    driver.execute_script(f"document.querySelector('#figure-{name} .picture').scrollLeft = 200")
    picture, names, legend = driver.execute_script(
        f"return ['img', '.names', '.picture .legend'].map((part) => {{ const box = document.querySelector("
        f"`#figure-{name} ${{part}}`).getBoundingClientRect(); return [box.left, box.right]; }})"
    )
    assert picture[0] < 0 < names[0] < names[1] < legend[1] <= PHONE["width"]


def test_it_prints_with_all_runs(opened: Any) -> None:
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    raw = base64.b64decode(printed["data"])
    pages = len(re.findall(rb"/Type\s*/Page\b", raw))
    assert raw.startswith(b"%PDF") and pages > 5
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert len(texts(opened, RUNS)) == 114
    opened.execute_script("dispatchEvent(new Event('afterprint'))")
    assert len(texts(opened, RUNS)) == 10


def test_hostile_text_is_shown_and_does_nothing(driver: Any, in_folder: Callable[..., Any]) -> None:
    reason = "</script><img src=x onerror=\"document.title='owned'\">&lt;b&gt;bold"
    runs, epochs = campaign()
    runs.loc[runs["status"] == "failed", "reason"] = reason
    campaign_files = in_folder(runs, epochs, tables=["missing"])
    campaign_files.leave_records(lambda run_id: reason.encode())
    open_page(driver, campaign_files.report())
    element(driver, "#search").send_keys("onerror=")
    assert column(driver, "reason") == [reason]
    element(driver, f"{RUNS} td a").click()
    assert wait(driver, "document.getElementById('run-log')?.textContent") == reason
    assert driver.title != "owned" and not driver.execute_script(
        "return document.querySelector('img[src=x]')"
    )
    assert not [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
