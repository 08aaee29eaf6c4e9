"""What the doctor costs a script once its window is closed: under 2%; and its ledger adds up to the time that steps took."""

# Both arms are the same loop in one process, by turns: without the doctor, and after the window of one that still watches.

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from evidence import Bar, Report, options
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flatout.doctor.observing.observer import ObservedSteps, Observer

WINDOW = ObservedSteps(5, 5)
WARM_UP = 20


def model_for(device: torch.device) -> nn.Module:
    """Small on a CPU, so that what a step costs beside computing shows."""
    width = 1024 if device.type == "cuda" else 128
    layers = [layer for _ in range(8) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(device)


def main() -> int:
    parser = options(__doc__, repeats=40)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps = 20 if asked.quick or asked.smoke else 40  # short: a machine shared with others is another one a minute later
    model = model_for(device)
    width = next(model.parameters()).shape[1]
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = TensorDataset(torch.randn(256 * 32, width), torch.randint(0, 10, (256 * 32,)))
    loader = DataLoader(data, batch_size=256, shuffle=True)

    def train(count: int) -> float:
        """Seconds of so many steps."""
        done, began_s = 0, time.perf_counter()
        while done < count:
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += 1
                if done == count:
                    break
        loss.item()
        return time.perf_counter() - began_s

    train(WARM_UP)
    plain: list[float] = []
    watched: list[float] = []
    for _ in range(asked.repeats if not asked.smoke else 2):
        plain.append(steps / train(steps))
        with tempfile.TemporaryDirectory() as folder:
            observer = Observer(Path(folder), WINDOW)
            observer.start()
            train(WARM_UP)
            assert observer.complete
            watched.append(steps / train(steps))
            observer.stop()
    report = Report("observing", __doc__ or "", device, {"steps": steps, "layers": 17, "width": width})
    report.arm("alone", "steps/s", plain)
    report.arm("watched", "steps/s", watched)
    report.ratio("watched over alone", "watched", "alone", 0.98)
    assert observer.trace is not None
    report.bars.append(Bar("steps of the window that were accounted for", observer.trace.steps, WINDOW.profiled))
    return report.finish(asked)


if __name__ == "__main__":
    raise SystemExit(main())
