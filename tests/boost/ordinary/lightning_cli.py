"""A module and its data under Lightning's command line, with its progress bar, evaluations and checkpoints."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(LightningModule):
    def __init__(self, width: int = 32, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))

    def training_step(self, batch, at):
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, at):
        self.log("validation", F.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=5000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Rows(LightningDataModule):
    def setup(self, stage):
        x = torch.randn(160, 16)
        self.rows = TensorDataset(x, x[:, :4].argmax(1))

    def train_dataloader(self):
        return DataLoader(self.rows, 8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.rows, 32)


if __name__ == "__main__":
    LightningCLI(Classifier, Rows, seed_everything_default=0)
