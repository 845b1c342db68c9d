"""What several test files share: one Chromium a file."""

import os
import shutil

import pytest

from tests.browsing import FLAGS


@pytest.fixture(scope="module")
def browser():
    chromium = os.environ.get("CIJING_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        pytest.skip("no Chromium: install it, or set CIJING_CHROMIUM to its path")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()
