"""The next word from the four before it."""

import torch
import torch.nn.functional as F
from torch import nn


class Words(nn.Module):
    def __init__(self, count=12_000, dim=48):
        super().__init__()
        self.count = count
        self.table = nn.Linear(count, dim, bias=False)
        self.hidden = nn.Linear(4 * dim, 128)
        self.out = nn.Linear(128, 200)

    def look_up(self, words):
        return self.table(F.one_hot(words, self.count).float())

    def forward(self, words):
        return self.out(torch.tanh(self.hidden(self.look_up(words).flatten(1))))


torch.manual_seed(0)
model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(80):
    words = torch.randint(0, 12_000, (128, 4))
    loss = F.cross_entropy(model(words), words[:, 3] % 200)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print("step", step, "loss", loss.item())
