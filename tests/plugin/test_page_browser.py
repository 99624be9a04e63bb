"""The page in Airflow's own UI, under Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from airflow_kafka_eos.load import LoadState
from tests.browser import Browser, chromium
from tests.plugin.conftest import Site, owner
from tests.plugin.test_page_api import NewLoad, lingering, state

pytestmark = pytest.mark.airflow

#: write the pictures of docs/page.md anew
PICTURES = os.environ.get("PAGE_PICTURES")
#: a colour, in whatever notation, as red, green and blue
PIXEL = """
const brush = document.createElement("canvas").getContext("2d");
brush.fillStyle = arguments[0];
brush.fillRect(0, 0, 1, 1);
return Array.from(brush.getImageData(0, 0, 1, 1).data.slice(0, 3));
"""


@dataclass
class PageBrowser(Browser):
    """A user at our page."""

    def log_in(self, site: Site, user: str) -> None:
        with site.client(user) as client:
            token = client.headers["Authorization"].removeprefix("Bearer ")
        self.driver.get(f"{self.url}/api/v2/version")  # somewhere on this site: cookies belong to one
        self.driver.delete_all_cookies()
        self.driver.add_cookie({"name": "_token", "value": token, "path": "/"})

    def theme(self, name: str) -> None:
        self.driver.execute_script("localStorage.setItem('theme', arguments[0])", name)

    def open(self, path: str) -> None:
        """A page of Airflow's, and into the frame that our page stands in."""
        super().open(path)
        self.enter_frame()

    def open_run(self, run_id: str) -> None:
        self.open(f"dags/orders/runs/{run_id}/plugin/kafka-transactions-run")

    def picture(self, name: str) -> None:
        """In both themes, of the page as it stands."""
        if not PICTURES:
            return
        for theme, other in (("light", "dark"), ("dark", "light")):
            self.driver.switch_to.default_content()
            self.driver.execute_script(
                "document.documentElement.classList.replace(arguments[1], arguments[0]);"
                "document.documentElement.style.colorScheme = arguments[0]",
                *(theme, other),
            )
            self.enter_frame()
            self.sees("", f"html[data-theme={theme}]")
            self.driver.switch_to.default_content()
            self.driver.save_screenshot(str(Path(PICTURES) / f"{name}-{theme}.png"))
        self.enter_frame()


@pytest.fixture(scope="module")
def browser(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageBrowser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield PageBrowser(driver, site.airflow.url)


def test_a_prepared_load_and_its_commit_are_shown(site: Site, browser: PageBrowser, new_load: NewLoad) -> None:
    world = new_load("2026-11-01")
    manifest = world.prepare(["a", "b"], ["c"], owner=owner(world))
    browser.log_in(site, "user")
    browser.theme("light")
    browser.open_run("2026-11-01")
    browser.sees("PREPARED", "#load h2")
    browser.sees("undecided", "[aria-label='Transactions of the load']")
    for transaction in manifest.transactions:
        browser.sees(str(transaction.state), "[aria-label='Transactions of the load']")
    browser.sees("Readers are held back in", "#clusters")
    browser.picture("page-prepared")
    site.session.ledger.decide_commit(manifest, decided_by=owner(world))
    browser.open_run("2026-11-01")
    browser.sees("to be committed", "[aria-label='Transactions of the load']")
    browser.press("button[data-action=recover]")
    browser.sees("COMMITTED", "#load h2")
    browser.sees("committed", ".steps")
    browser.sees("Nothing of these loads is open.", "#clusters")
    assert state(site, world) is LoadState.COMMITTED
    browser.picture("page-committed")


def test_a_lingering_transaction_is_shown_and_cleaned_up(site: Site, browser: PageBrowser, new_load: NewLoad) -> None:
    world = new_load("2026-11-02")
    lingering(site, world)
    browser.log_in(site, "user")
    browser.theme("dark")
    browser.open("plugin/kafka-transactions")
    browser.sees("lingering", "#clusters")
    browser.click(lambda d: _row(d, "2026-11-02").find_element(By.TAG_NAME, "button"))
    browser.sees("ABORTING", "#load h2")
    browser.picture("page-lingering")
    browser.open_run("2026-11-02")
    browser.press("button[data-action=cleanup]")
    browser.sees("ABORTED", "#load h2")
    browser.sees("swept", ".steps")
    assert (state(site, world), world.open_ids()) == (LoadState.ABORTED, [])


def _row(driver: WebDriver, key: str) -> WebElement:
    return next(r for r in driver.find_elements(By.CSS_SELECTOR, "#loads tbody tr") if key in r.text)


def test_an_undecided_load_is_swept_only_after_its_name_is_typed(
    site: Site, browser: PageBrowser, new_load: NewLoad
) -> None:
    world = new_load("2026-11-03")
    world.prepare(["a"], owner=owner(world))
    browser.log_in(site, "user")
    browser.open_run("2026-11-03")
    browser.press("button[data-action=cleanup]")
    browser.sees("Attempt 1 is undecided: Its run is queued", "dialog")
    browser.press("dialog button[data-answer=yes]")
    browser.sees("That is not orders.load", "dialog")
    browser.press("dialog button[data-answer=no]")
    assert state(site, world) is LoadState.PREPARED
    browser.press("button[data-action=cleanup]")
    browser.sees("Type orders.load", "dialog")
    browser.driver.find_element(By.CSS_SELECTOR, "dialog input[name=confirm]").send_keys("orders.load")
    browser.press("dialog button[data-answer=yes]")
    browser.sees("ABORTED", "#load h2")


def test_a_load_whose_run_is_deleted_says_so_and_one_that_waits_is_not_called_lost(
    site: Site, browser: PageBrowser, new_load: NewLoad
) -> None:
    waits, gone = new_load("2026-11-08"), new_load("2026-11-09")
    for world in (waits, gone):
        world.prepare(["a"], owner=owner(world))
    with site.client("admin") as admin:
        admin.delete("/api/v2/dags/orders/dagRuns/2026-11-09").raise_for_status()
    browser.log_in(site, "user")
    browser.open("plugin/kafka-transactions")
    browser.sees("undecided, abandoned", "#clusters")
    browser.until(lambda d: "waits for its turn" in _row(d, "2026-11-08").text)
    browser.until(lambda d: "run deleted" in _row(d, "2026-11-09").text)
    browser.click(lambda d: _row(d, "2026-11-08").find_element(By.TAG_NAME, "button"))
    browser.sees("none yet", "#load dl")
    browser.sees("none of its tasks is running right now. There is nothing to do.", "#load dl")
    # the page is drawn anew now and then: not between the look for it and its text
    assert "aborted" not in browser.until(lambda d: d.find_element(By.CSS_SELECTOR, "#load dl").text)
    browser.click(lambda d: _row(d, "2026-11-09").find_element(By.TAG_NAME, "button"))
    browser.sees("The run 2026-11-09 is deleted in Airflow, so no run finishes it.", "#load dl")
    browser.press("button[data-action=cleanup]")
    browser.sees("It can never be committed: press Clean up to end it now", "dialog")


def test_a_user_without_permission_sees_neither_data_nor_buttons(
    site: Site, browser: PageBrowser, new_load: NewLoad
) -> None:
    world = new_load("2026-11-04")
    lingering(site, world)
    browser.log_in(site, "viewer")
    browser.open_run("2026-11-04")
    browser.sees("the buttons need permission", "#load")
    assert browser.driver.find_elements(By.CSS_SELECTOR, "button[data-action]") == []
    browser.log_in(site, "stranger")
    browser.open("plugin/kafka-transactions")
    browser.sees("There are no loads that you may see.", "#loads")
    browser.sees("There are no loads to look for.", "#clusters")
    assert "orders" not in browser.text()
    browser.driver.get(f"{browser.url}/kafka-eos/?dag_id=orders&run_id=2026-11-04")
    browser.sees("You may not see the runs of this DAG", "#problem")
    assert "2026-11-04-" not in browser.text() and "lingering" not in browser.text()


def test_the_page_goes_along_with_airflows_theme(site: Site, browser: PageBrowser, new_load: NewLoad) -> None:
    new_load("2026-11-05").prepare(["a"], owner="orders/2026-11-05#group=load")
    browser.log_in(site, "user")
    shades = {}
    for theme in ("light", "dark"):
        browser.theme(theme)
        browser.open_run("2026-11-05")
        browser.sees("PREPARED", "#load h2")
        assert browser.driver.execute_script("return document.documentElement.dataset.theme") == theme
        ours = browser.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        airflows = browser.driver.execute_script(
            "return getComputedStyle(parent.document.documentElement).backgroundColor"
        )
        assert ours == airflows
        shades[theme] = sum(browser.driver.execute_script(PIXEL, ours))
    assert shades["dark"] < 150 < 600 < shades["light"]
    # while it is open
    browser.open_run("2026-11-05")
    browser.driver.execute_script("parent.document.documentElement.classList.replace('dark', 'light')")
    browser.until(lambda d: d.find_element(By.CSS_SELECTOR, "html[data-theme=light]"))


def test_what_a_load_is_called_never_becomes_markup(site: Site, browser: PageBrowser, new_load: NewLoad) -> None:
    world = new_load("2026-11-06")
    world.prepare(["a"], owner=owner(world))
    evil = "<img src=x onerror=alert(1)><script>document.title='owned'</script>"
    site.session.ledger.make_undecidable(world.load, up_to=1, decided_by="test", reason=evil)
    browser.log_in(site, "user")
    browser.open_run("2026-11-06")
    browser.sees(evil, "#load")
    browser.sees(evil, "#loads")
    assert browser.driver.find_elements(By.CSS_SELECTOR, "main img, main script") == []
    assert browser.driver.title != "owned"


def test_the_browser_finds_nothing_to_complain_of(site: Site, browser: PageBrowser, new_load: NewLoad) -> None:
    """A module that is missing, a style that the policy refuses, an error in a script: all of it is in its log."""
    new_load("2026-11-07").prepare(["a"], owner="orders/2026-11-07#group=load")
    browser.log_in(site, "user")
    browser.driver.get_log("browser")  # type: ignore[attr-defined]
    browser.open_run("2026-11-07")
    browser.sees("PREPARED", "#load h2")
    browser.sees("undecided", "#clusters")
    complaints = [e for e in browser.driver.get_log("browser") if "kafka-eos" in e["message"]]  # type: ignore[attr-defined]
    # of Airflow's own frame around any plugin's page
    assert [e["message"] for e in complaints if "escape its sandboxing" not in e["message"]] == []
