"""Configured by hydra, which also starts the function, writes its settings beside the run, and takes over the log."""

import logging

import hydra
import torch
import torch.nn.functional as F
from omegaconf import DictConfig
from torch import nn

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(settings: DictConfig) -> float:
    torch.manual_seed(settings.seed)
    layers = [part for _ in range(settings.model.layers) for part in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    optimizer = hydra.utils.instantiate(settings.optimizer, model.parameters())
    x, y = torch.randn(512, 16), torch.randint(0, 4, (512,))
    for step in range(settings.steps):
        rows = torch.randint(0, 512, (8,))
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            log.info("%d %.3f", step, loss.item())
    return loss.item()


if __name__ == "__main__":
    main()
