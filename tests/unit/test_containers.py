"""The Dockerfiles: by hadolint, by what they promise, and by starting their commands in their environment without Docker."""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from flatout.fleet import serving_pods

ROOT = Path(__file__).parent.parent.parent
FILES = {name: ROOT / "containers" / f"{name}.Dockerfile" for name in ("serve", "train")}
LIMIT_S = 240.0


def instructions(file: Path) -> list[tuple[str, str]]:
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word.upper(), rest.strip()) for line in joined.splitlines() if line for word, _, rest in [line.partition(" ")]]


def last_stage(file: Path) -> dict[str, str]:
    found = instructions(file)
    start = max(place for place, (word, _) in enumerate(found) if word == "FROM")
    return dict(found[start:])


def environment(file: Path, home: Path) -> dict[str, str]:
    """That of the image, with this environment's programs, and a folder for the volume and /tmp."""
    stated = dict(pair.split("=", 1) for pair in last_stage(file)["ENV"].split())
    own = {name: re.sub(r"^/(tmp|runs)", str(home), value) for name, value in stated.items()}
    return {**own, "PATH": f"{Path(sys.executable).parent}:{os.defpath}", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", FILES)
def test_hadolint_finds_nothing(name: str) -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if linter is None and platform.machine() != "x86_64":
        pytest.skip("hadolint has no wheel for this processor")
    assert linter is not None, "the extra `dev` installs hadolint here"
    found = subprocess.run([linter, "--no-color", str(FILES[name])], capture_output=True, text=True, timeout=LIMIT_S)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("name", FILES)
def test_pinned_small_and_without_root(name: str) -> None:
    found = instructions(FILES[name])
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert len(bases) == 2 and all(re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", base) for base in bases)
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    installs = [rest for word, rest in found if word == "RUN" and "pip install" in rest]
    torch = re.findall(r"torch==(\S+)", " ".join(installs))
    assert torch == [pins["torch"]] and all(
        one.count("--constraint constraints.txt") == one.count("pip install") for one in installs
    )
    assert all(one.count("--no-cache-dir") == one.count("pip install") and "flatout-*.whl" in one for one in installs)
    user = last_stage(FILES[name])["USER"]
    assert user == f"{serving_pods.USER}:{serving_pods.USER}", "as the manifests have it"


def test_the_serving_image_starts_as_it_says(tmp_path: Path) -> None:
    """Its entry point and command, its health check, and its end by the signal of a container."""
    package, home = make_package(tmp_path), tmp_path / "tmp"
    home.mkdir()
    stage, given = last_stage(FILES["serve"]), environment(FILES["serve"], home)
    entry = [*ast.literal_eval(stage["ENTRYPOINT"]), *ast.literal_eval(stage["CMD"].replace("/package", str(package)))]
    assert "0.0.0.0" in entry, "other machines reach it"
    entry[entry.index("0.0.0.0")], entry[entry.index("8000")] = "127.0.0.1", "0"
    with subprocess.Popen(entry, env=given, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().rpartition(" at ")[2].strip()
            with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=LIMIT_S) as answer:
                assert answer.status == 200
            check = ast.literal_eval(stage["HEALTHCHECK"].partition("CMD ")[2].replace("http://127.0.0.1:8000", url))
            assert subprocess.run([sys.executable, *check[1:]], env=given, timeout=LIMIT_S).returncode == 0
            server.send_signal(getattr(signal, stage["STOPSIGNAL"]))
            assert server.wait(LIMIT_S) == 143
        finally:
            server.kill()
    check[2] = check[2].replace("timeout=4", "timeout=1")
    assert subprocess.run([sys.executable, *check[1:]], env=given, stderr=subprocess.DEVNULL).returncode != 0


def test_the_training_image_trains_a_recipe_that_it_can_only_read(tmp_path: Path) -> None:
    recipe, home = tmp_path / "recipe", tmp_path / "runs"
    recipe.mkdir(), home.mkdir()
    (recipe / "mine.yaml").write_text("{data: digits, model: mlp, batch: 16, lr: 1e-3, budget: 2 steps, evaluate: }")
    recipe.chmod(0o555)
    entry = ast.literal_eval(last_stage(FILES["train"])["ENTRYPOINT"])
    asked = [*entry, "run", str(recipe / "mine.yaml"), "--runs", str(home), "--planning", "off", "--set", "device=cpu"]
    done = subprocess.run(
        asked, env=environment(FILES["train"], home), cwd=home, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert (home / "mine-1" / "model.safetensors").exists() and sorted(path.name for path in recipe.iterdir()) == ["mine.yaml"]


def make_package(folder: Path) -> Path:
    import flatout as fo
    from flatout.packaging import export as exporting
    from flatout.packaging import package

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLATOUT_CACHE", str(folder / "cache"))
        patch.setattr(package, "SIZES", (1,))
        patch.setattr(exporting, "_write_onnx", lambda *given: None)
        asked = {"batch": 8, "lr": 1e-2, "budget": "2 steps", "evaluate": None, "settings": {"device": "cpu"}}
        recipe = fo.Recipe(data="digits", model="mlp", **asked)  # type: ignore[arg-type]
        exporting.export(fo.run(recipe, runs=folder / "runs", cache=None, planning="off"), folder / "churn")
    return folder / "churn"
