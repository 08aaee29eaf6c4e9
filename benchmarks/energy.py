"""The energy that flatout reads agrees within 5% with power sampled 50 times a second and added up over 60 s."""

from __future__ import annotations

import math
import sys
import threading
import time
from itertools import pairwise

import torch
from evidence import Report, gpu_or_leave, options

from flatout.machine.energy import SampledPower, device_energy
from flatout.machine.nvml import open_gpus

COUNTER, FALLBACK, INTEGRAL = "the meter that runs use", "the meter of GPUs without a counter", "power, 50 a second, added up"
EVERY_S = 0.02


class Load:
    """Products in bursts of uneven length with pauses between them, until it is closed: power that never stands still."""

    def __init__(self, device: torch.device) -> None:
        self._ended, self._device = threading.Event(), device
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        a = torch.randn(8192, 8192, device=self._device, dtype=torch.bfloat16)
        number = 0
        while not self._ended.is_set():
            ends_s = time.monotonic() + 0.4 + 0.35 * (number % 5)
            while time.monotonic() < ends_s and not self._ended.is_set():
                for _ in range(20):
                    a @ a
                torch.cuda.synchronize(self._device)
            self._ended.wait(0.15 * (number % 4))
            number += 1

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


def window(device: torch.device, seconds: float) -> dict[str, float]:
    """Joules of so many seconds by each way of measuring."""
    gpus = open_gpus()
    meter, fallback = device_energy(device, gpus), SampledPower(lambda: gpus.power_w(device))
    load = Load(device)
    time.sleep(2.0)  # NVML's power is the mean of a second: it has seen the load alone from here on
    began_s, watts = time.monotonic(), list[tuple[float, float]]()
    before = [one.read_j() or 0.0 for one in (meter, fallback)]
    while (now_s := time.monotonic()) - began_s < seconds:
        found = gpus.power_w(device)
        if found is not None:
            watts.append((now_s - began_s, found))
        time.sleep(EVERY_S)
    after = [one.read_j() or 0.0 for one in (meter, fallback)]
    took_s = time.monotonic() - began_s
    load.close()
    fallback.close()
    meter.close()
    trapezoids = math.fsum((t - s) * (p + q) / 2 for (s, p), (t, q) in pairwise(watts))
    integral = trapezoids * took_s / (watts[-1][0] - watts[0][0])
    return {COUNTER: after[0] - before[0], FALLBACK: after[1] - before[1], INTEGRAL: integral}


def main() -> int:
    asked = options(__doc__, repeats=2).parse_args()
    device = gpu_or_leave(asked.smoke)
    meter = device_energy(device)
    if meter.why_unavailable:
        print(f"no meter of {device} can be read: {meter.why_unavailable}", file=sys.stderr)
        return 0 if asked.smoke else 2
    report = Report("energy", str(__doc__), device)
    seconds = 5.0 if asked.quick else 60.0
    found = [window(device, seconds) for _ in range(asked.repeats)]
    for name in (COUNTER, FALLBACK, INTEGRAL):
        report.arm(name, "J", [one[name] for one in found])
    for name in (COUNTER, FALLBACK):
        off = [abs(one[name] / one[INTEGRAL] - 1) for one in found]
        report.arm(f"{name}: off by", "of the integral", off)
        report.bar(f"{name}: off by", f"{name}: off by", 0.05, at_least=False)
    report.conditions = {"seconds": seconds, "meter": meter.name, "stated error": meter.error(seconds)}
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
