"""Versions of installed packages that code imports, and of what those need in turn."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Iterable
from importlib import metadata

_OTHER_NAMES = {  # of imports whose package is called something else, so that not all packages have to be looked through
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "yaml": "PyYAML", "pynvml": "nvidia-ml-py", "attr": "attrs", "dotenv": "python-dotenv",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NOT_INSTALLED = "not installed"


def package_versions(imports: Iterable[str]) -> dict[str, str]:
    """By package, of top-level names that code imports; Python's own is among them. What is missing is said to be."""
    found = {"python": platform.python_version()}
    waiting = list(imports)
    for name in waiting:
        packages = _packages(name)
        if not packages:
            found[name] = NOT_INSTALLED
        for package in packages:
            _add(package, found)
    return dict(sorted(found.items()))


def installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _add(package: str, found: dict[str, str]) -> None:
    waiting = [package]
    while waiting:
        one = _about(_plain(waiting.pop()))
        if one is not None and one[0] not in found:
            found[one[0]] = one[1]
            waiting += one[2]


@functools.lru_cache(maxsize=1024)
def _about(package: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Its name, its version, and the packages that it needs without extras; None if it is not installed."""
    try:
        about = metadata.distribution(package).metadata
    except (metadata.PackageNotFoundError, ValueError, OSError):
        return None
    needs = [need for need in about.get_all("Requires-Dist") or () if "extra ==" not in need and "extra==" not in need]
    names = tuple(name[0] for need in needs if (name := _NAME.match(need)))
    return _plain(package), about["Version"] or "unknown", names


def _packages(name: str) -> list[str]:
    for package in (_OTHER_NAMES.get(name), name):
        if package is not None and _about(_plain(package)) is not None:
            return [package]
    return _by_import().get(name, [])


@functools.cache
def _by_import() -> dict[str, list[str]]:
    return {name: sorted(set(packages)) for name, packages in metadata.packages_distributions().items()}


def _plain(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
