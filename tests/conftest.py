"""What several test files share: one Chromium a file, and one torch thread a worker."""

import os
import shutil

# Tests run in as many processes as there are cores; threads on top of that only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from tests.browsing import FLAGS

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


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
