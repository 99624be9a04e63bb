"""The same as rest.py and held.py, but with a mouse: what a person clicks in Airflow's own UI."""

from __future__ import annotations

import time
from urllib.parse import quote

from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from tests.airflow.conftest import Place
from tests.airflow.held import Held
from tests.airflow.rest import TASKS
from tests.browser import Browser

CLEAR = "button[aria-label='Press shift+c to clear']"
MARK_TASK = "button[aria-label='Mark Task Instance as...']"
MARK_RUN = "button[aria-label='Mark Dag Run as...']"
DELETE_RUN = "button[aria-label='Delete Dag Run']"
#: so long a locked SQLite lets the api-server wait; a second click before that would be a second clear
ANSWER_SECONDS = 20
EVEN_IF_RUNNING = "Prevent rerun if task is running"


class Clicked(Held):
    """A run that a person at a browser clears, marks and deletes."""

    def __init__(self, place: Place, name: str, browser: Browser) -> None:
        super().__init__(place, name)
        self._browser = browser
        self._page = f"dags/{self.dag}/runs/{quote(name)}"

    def clear(self, *tasks: str, downstream: bool = False) -> None:
        """One task, with or without what is behind it, or all of the run."""
        if tasks == TASKS:
            self._browser.open(self._page)
            self._browser.press(CLEAR)
            self._is_asked(f"Affected Tasks: {len(TASKS)}")
        else:
            (task,) = tasks
            self._open(task)
            self._browser.press(CLEAR)
            behind = set(TASKS[TASKS.index(task) :])
            # Airflow takes a group's setup and teardown along
            alone = {task, "begin", "cleanup"}
            self._is_asked(f"Affected Tasks: {len(behind | alone)}")
            if not downstream:
                self._choose("Downstream")  # is chosen unless told otherwise
                self._is_asked(f"Affected Tasks: {len(alone)}")
            self._choose(EVEN_IF_RUNNING)
        self._confirm("Confirm")

    def mark(self, task: str, state: str) -> None:
        self._open(task)
        self._mark(MARK_TASK, state)

    def mark_run(self, state: str) -> None:
        self._browser.open(self._page)
        self._mark(MARK_RUN, state)

    def delete(self) -> None:
        self._browser.open(self._page)
        self._browser.press(DELETE_RUN)
        self._confirm("Delete")

    def shows(self, load_state: str) -> None:
        """Our tab of the run."""
        self._browser.open(f"{self._page}/plugin/kafka-transactions-run")
        self._browser.enter_frame()
        self._browser.sees(load_state, "#load h2")

    def _open(self, task: str) -> None:
        self._browser.open(f"{self._page}/tasks/load.{task}")

    def _mark(self, menu: str, state: str) -> None:
        self._browser.press(menu)
        self._browser.press(f"[role=menuitem][data-value={state}]")
        self._confirm("Confirm")

    def _is_asked(self, text: str) -> None:
        self._browser.sees(text, "[role=dialog][data-state=open]")

    def _choose(self, text: str) -> None:
        def choice(driver: WebDriver) -> WebElement:
            found = driver.find_elements(By.CSS_SELECTOR, "[role=dialog] button, [role=dialog] label")
            return next(e for e in found if e.text == text)

        self._browser.click(choice)

    def _confirm(self, text: str) -> None:
        """Until the dialog is gone: it stays when Airflow's SQLite was locked at that moment."""

        def buttons() -> list[WebElement]:
            found = self._browser.driver.find_elements(By.CSS_SELECTOR, "[role=dialog] button")
            return [e for e in found if e.text == text and e.is_displayed()]

        def pressed(driver: WebDriver) -> bool:
            if not (left := buttons()):
                return True
            if left[0].is_enabled():
                left[0].click()
                until = time.monotonic() + ANSWER_SECONDS
                while buttons() and time.monotonic() < until:
                    time.sleep(0.2)
            return False

        self._browser.until(lambda driver: buttons()[0])
        self._browser.until(pressed)
