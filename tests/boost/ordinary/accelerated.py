"""Accelerate prepares model, optimizer, loader and schedule, and accumulates; a bar shows the progress."""

import shutil

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
x = torch.randn(510, 16)  # the last batch is a short one
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3000)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=8, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
bar = tqdm(total=3000, disable=not accelerator.is_local_main_process, ncols=shutil.get_terminal_size().columns)
while bar.n < 3000:
    for rows, wanted in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(rows), wanted)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                bar.update()
                bar.set_postfix(loss=f"{loss.item():.3f}")
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
