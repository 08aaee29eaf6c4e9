"""Started as a program with arguments and a file of settings; the model is in a module of its own."""

import argparse
import logging
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from network import build


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--lr", type=float)
    arguments = parser.parse_args()
    settings = yaml.safe_load(arguments.config.read_text())
    settings.update({name: value for name, value in vars(arguments).items() if value is not None})
    logging.basicConfig(level="INFO", format="%(message)s")
    width = shutil.get_terminal_size().columns
    torch.manual_seed(settings["seed"])
    model = build(settings["layers"])
    optimizer = getattr(torch.optim, settings["optimizer"])(model.parameters(), lr=settings["lr"])
    x, y = torch.randn(512, 16), torch.randint(0, 4, (512,))
    for step in range(settings["steps"]):
        rows = torch.randint(0, 512, (8,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            logging.info("%s", f"{step} {loss.item():.3f}".ljust(width))


if __name__ == "__main__":
    main()
