"""The live page in a real browser, of a run that really trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

RECIPE = "data: digits\nmodel: mlp\nbatch: 64\nlr: 3e-3\nbudget: 20000 steps\nevaluate: 500 steps\nsettings: {log_every: 50}\n"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


def test_curves_grow_while_a_run_trains(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "flatout", "run", "r.yaml", "--page", "--planning", "off"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        try:
            url = next(line.split("live page: ")[1].strip() for line in run.stderr if "live page: " in line)
            with Browser(tmp_path / "browser") as browser:
                browser.open(url, dark=True)
                step = "Number(document.querySelectorAll('#live-now dd')[1].textContent.replace(',', ''))"
                curve = "document.querySelector('.chart svg g path').getAttribute('d').length"
                browser.wait_for("document.querySelectorAll('.chart').length >= 5")
                first, began = browser.value(curve), browser.value(step)
                browser.wait_for(f"{curve} > {first} && {step} > {began}")
                assert "time left" in browser.value("document.getElementById('live-now').textContent")
                run.terminate()
                browser.wait_for("document.getElementById('live-said').textContent.includes('has ended')")
                assert "was stopped" in browser.value("document.getElementById('live-glance').textContent")
                assert browser.complaints == []
        finally:
            run.kill()
