"""What Kubernetes accepts as a name, a size, a number of cores, an image or a label."""

from __future__ import annotations

import re

MOST_IN_A_NAME = 40  # pods, hosts and clusters are named after the job plus a suffix, at most 63 characters in all
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTP]i|[kMGTP])")
_CORES = re.compile(r"[0-9]+(\.[0-9]+)?|[0-9]+m")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]*(/[a-zA-Z0-9._-]+)*(:[\w][\w.-]*)?(@sha256:[0-9a-f]{64})?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
FILE = re.compile(r"[-._a-zA-Z0-9]+")


def suggested_name(stem: str) -> str:
    """The name of a recipe or package, changed to a valid name in a cluster."""
    plain = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:MOST_IN_A_NAME].rstrip("-")
    return plain if plain[:1].isalpha() else f"run-{plain}".rstrip("-")


def name_problems(name: str, namespace: str | None) -> list[str]:
    found = []
    if not _LABEL.fullmatch(name) or len(name) > MOST_IN_A_NAME:
        rule = f"lower-case letters, digits and '-', a letter first, at most {MOST_IN_A_NAME} characters"
        found.append(f"--name: {name!r} is not a valid name ({rule}); try --name {suggested_name(name)}")
    if namespace is not None and (not _LABEL.fullmatch(namespace) or len(namespace) > 63):
        found.append(f"--namespace: {namespace!r} is not a valid name (lower-case letters, digits and '-')")
    return found


def object_name_problems(option: str, name: str | None) -> list[str]:
    """Of the name of an object that exists in the cluster."""
    if name is None or (_SUBDOMAIN.fullmatch(name) and len(name) <= 253):
        return []
    return [f"{option}: {name!r} is not a valid name in a cluster (lower-case letters, digits, '-' and '.')"]


def label_problems(key: str, value: str) -> list[str]:
    good = _KEY.fullmatch(key) and _VALUE.fullmatch(value)
    return [] if good else [f"--node-label: {key}={value} is not a valid node label"]


def image_problems(image: str) -> list[str]:
    if not image.strip():
        return ["--image is missing: an image with flatout installed, such as --image registry.example.org/gpt:1"]
    if not _IMAGE.fullmatch(image):
        return [f"--image: {image!r} is not an image name such as registry.example.org/team/gpt:1"]
    return []


def resource_problems(resource: str | None) -> list[str]:
    if resource is None or (_KEY.fullmatch(resource) and "/" in resource):
        return []
    return [f"--resource must be a resource name of a node, such as nvidia.com/gpu, or none; got {resource!r}"]


def cores_problems(cpus: str | None) -> list[str]:
    return [] if cpus is None or _CORES.fullmatch(cpus) else [f"--cpus must be a number such as 16, got {cpus!r}"]


def size_problems(option: str, amount: str | None) -> list[str]:
    if amount is None or _QUANTITY.fullmatch(amount):
        return []
    return [f"{option} must be a Kubernetes size such as 64Gi, got {amount!r}"]
