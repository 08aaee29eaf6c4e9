"""The load of a closed loop, and the CPU time of a server with all its processes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from _serving_cases import Body


def wrk(body: Body, url: str, connections: int, seconds: float) -> float:
    """Answers per second in a closed loop."""
    script = body.file.with_suffix(body.file.suffix + ".lua")
    headers = "".join(f'wrk.headers["{name}"] = "{value}"\n' for name, value in body.headers.items())
    script.write_text(f'wrk.method = "POST"\n{headers}wrk.body = io.open("{body.file}", "rb"):read("*all")\n')
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "-s", str(script), url + body.path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", said)
    if rate is None or "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(f"wrk says something else than expected: {said}")
    return float(rate[1])


def family(pid: int) -> list[int]:
    """This process and all below it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has just ended
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found.extend(parents.get(one, []))
    return found


def cpu_s(pid: int) -> float:
    ticks = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
