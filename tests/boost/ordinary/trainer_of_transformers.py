"""The loop is the Trainer's: accumulation, clipping, a schedule, its log and its checkpoints."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import HfArgumentParser, Trainer, TrainingArguments


class Rows(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, at):
        x = torch.randn(16, generator=torch.Generator().manual_seed(at))
        return {"x": x, "labels": int(x.sum() > 0)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 2))

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


if __name__ == "__main__":
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    Trainer(model=Model(), args=arguments, train_dataset=Rows()).train()
