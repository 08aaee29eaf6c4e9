"""Names are spelled out letter by letter, one sample at a time; there is too little of them for a worker."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NAMES = ["anna", "bertil", "cecilia", "david", "erik", "frida", "gustav", "helena"] * 1000


class Names(Dataset):
    def __len__(self):
        return len(NAMES)

    def __getitem__(self, index):
        letters = torch.tensor([ord(letter) - ord("a") + 1 for letter in NAMES[index]])
        spelled = torch.zeros(16, dtype=torch.long)
        spelled[: len(letters)] = letters
        return spelled, index % 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(27, 32)
        self.out = nn.Sequential(nn.Linear(16 * 32, 1024), nn.ReLU(), nn.Linear(1024, 8))

    def forward(self, names):
        return self.out(self.letters(names).flatten(1))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for names, labels in DataLoader(Names(), batch_size=24, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(names), labels).backward()
    optimizer.step()
