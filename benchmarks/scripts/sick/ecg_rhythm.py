"""Rhythm of short ECG strips: normal, fast, slow or irregular."""

import torch
from torch import nn

RHYTHMS = 4
LENGTH = 80
LEADS = 3


def strips(count, generator):
    kind = torch.randint(RHYTHMS, (count,), generator=generator)
    base = torch.tensor([1.2, 2.0, 0.7, 1.2])[kind]
    wobble = torch.tensor([0.03, 0.03, 0.03, 0.6])[kind]
    speed = base[:, None] + wobble[:, None] * torch.randn(count, LENGTH, generator=generator)
    phase = torch.cumsum(0.35 * speed, dim=1) + 6.283 * torch.rand(count, 1, generator=generator)
    beat = torch.exp(6 * (torch.cos(phase) - 1))
    gains = torch.tensor([1.0, 0.6, -0.4])
    signal = beat[..., None] * gains + 0.1 * torch.randn(count, LENGTH, LEADS, generator=generator)
    return signal, kind


class RhythmNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.hidden = hidden
        self.recurrent = nn.LSTMCell(LEADS, hidden)
        self.head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, RHYTHMS))

    def forward(self, signal):
        h = signal.new_zeros(len(signal), self.hidden)
        c = signal.new_zeros(len(signal), self.hidden)
        states = []
        for t in range(signal.shape[1]):
            h, c = self.recurrent(signal[:, t], (h, c))
            states.append(h)
        states = torch.stack(states, dim=1)
        return self.head(states.mean(dim=1))


def accuracy(model, signal, kind):
    model.eval()
    with torch.inference_mode():
        return (model(signal).argmax(1) == kind).float().mean().item()


def main():
    torch.manual_seed(8)
    generator = torch.Generator().manual_seed(8)
    signal, kind = strips(1600, generator)
    test_signal, test_kind = strips(200, generator)
    mean, std = signal.mean((0, 1)), signal.std((0, 1))
    signal, test_signal = (signal - mean) / std, (test_signal - mean) / std
    model = RhythmNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    for epoch in range(5):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(signal)).split(32):
            loss = nn.functional.cross_entropy(model(signal[rows]), kind[rows])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item() * len(rows)
        print(f"{epoch}: loss {total / len(signal):.3f}, accuracy {accuracy(model, test_signal, test_kind):.3f}")


if __name__ == "__main__":
    main()
