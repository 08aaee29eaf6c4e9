"""The page in a real browser: all curves are drawn, and the browser has nothing to complain about."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from page_curves import curves_in

from flatout.reporting.verb import page_of, read_stories
from flatout.store.run_folder import RunFolder

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


@pytest.mark.parametrize("several", [False, True])
def test_every_curve_is_drawn_without_a_complaint(run: RunFolder, tmp_path: Path, several: bool) -> None:
    folders = [run.path]
    if several:
        shutil.copytree(run.path, tmp_path / "twin-1")
        folders.append(tmp_path / "twin-1")
    page = page_of(read_stories(folders, tmp_path))
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert CHROMIUM is not None
    quiet = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'browser'}",
    ]
    command = [CHROMIUM, *quiet, "--dump-dom", f"file://{tmp_path / 'page.html'}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    charts = curves_in(page)["charts"]
    assert shown.stdout.count('<figure class="chart">') == len(charts) > 3
    assert shown.stdout.count("<path d=") + shown.stdout.count("<path style=") >= sum(len(one["series"]) for one in charts)
    assert "training time</button>" in shown.stdout and ("twin-1</button>" in shown.stdout) == several
    assert "CONSOLE" not in shown.stderr, shown.stderr


def test_paper_has_the_curves_and_no_buttons(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page_of(read_stories([run.path], tmp_path)), encoding="utf-8")
    every = "[...document.querySelectorAll('button, .chart svg')]"
    shown = f"{every}.filter((one) => one.getBoundingClientRect().width)"
    with Browser(tmp_path / "browser") as browser:
        browser.open((tmp_path / "page.html").as_uri(), dark=True)
        assert "BUTTON" in browser.value(f"{shown}.map((one) => one.tagName).join()")
        browser.as_printed()
        printed = browser.value(f"{shown}.map((one) => one.tagName + one.className).join()")
        assert "svg" in printed and "log" not in printed and printed.count("BUTTON") == printed.count("BUTTONkey")
        assert not browser.complaints
