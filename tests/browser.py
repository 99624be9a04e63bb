"""Airflow's UI under Chromium: Debian's chromium and its driver, nothing from the net."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

#: what a look at a page says that is not drawn yet, or drawn anew at this moment
NOT_YET = (
    *(NoSuchElementException, StaleElementReferenceException, LookupError, StopIteration),
    *(ElementClickInterceptedException, ElementNotInteractableException),
)
OUR_PAGE = "iframe[title='Kafka transactions']"

Found = TypeVar("Found")


@dataclass
class Browser:
    """A person at Airflow's UI."""

    driver: WebDriver
    url: str

    def open(self, path: str) -> None:
        self.driver.switch_to.default_content()
        self.driver.get(f"{self.url}/{path}")

    def enter_frame(self) -> None:
        """Into the frame that our page stands in."""
        self.driver.switch_to.frame(self.until(lambda d: d.find_element(By.CSS_SELECTOR, OUR_PAGE)))

    def until(self, found: Callable[[WebDriver], Found | Literal[False]]) -> Found:
        return WebDriverWait(self.driver, 60, ignored_exceptions=NOT_YET).until(found)

    def sees(self, text: str, where: str = "body") -> WebElement:
        """Wait for a text."""

        def look(driver: WebDriver) -> WebElement:
            element = driver.find_element(By.CSS_SELECTOR, where)
            if text not in element.text:
                raise LookupError
            return element

        return self.until(look)

    def click(self, find: Callable[[WebDriver], WebElement]) -> None:
        """Click it; anew where the page has drawn another one in its place meanwhile."""

        def click(driver: WebDriver) -> WebElement:
            element = find(driver)
            element.click()
            return element

        self.until(click)

    def press(self, selector: str) -> None:
        self.click(lambda d: d.find_element(By.CSS_SELECTOR, selector))

    def text(self) -> str:
        return self.driver.find_element(By.TAG_NAME, "body").text


@contextmanager
def chromium(profile: Path) -> Iterator[WebDriver]:
    """A headless one; skips the test where none is installed, but not in CI."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        why = "no chromium, or no chromedriver, is installed: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "--headless=new",
        "--no-sandbox",  # root has no namespaces of its own here
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-proxy-server",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--window-size=1280,1000",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    running.set_page_load_timeout(60)
    try:
        yield running
    finally:
        running.quit()
