#!/usr/bin/env python

# # Rows from a stream
# In[1]:


import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

try:  # noqa: SIM105
    get_ipython().run_line_magic("matplotlib", "inline")
except NameError:
    pass


# In[2]:


class Stream(IterableDataset):
    def __iter__(self):
        draw = torch.Generator().manual_seed(0)
        while True:
            x = torch.randn(16, generator=draw)
            yield x, int(x.sum() > 0)


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


# In[3]:


def evaluate():
    model.eval()
    with torch.no_grad():
        right = (model(held_out).argmax(1) == (held_out.sum(1) > 0)).float().mean()
    model.train()
    return float(right)


held_out = torch.randn(64, 16)
history = []
for step, (x, y) in enumerate(DataLoader(Stream(), batch_size=8)):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        history.append(evaluate())
        print(f"\r{step}: {history[-1]:.2f}", end="")
    if step == 3000:
        break


# In[ ]:
