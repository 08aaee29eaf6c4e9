"""Next note of folk melodies with an LSTM."""

import argparse

import torch
from torch import nn

NOTES = 36


def compose(count, length, generator):
    """Melodies repeat a motif of eight notes, moved up or down with every repeat."""
    motif = torch.randint(-4, 5, (count, 8), generator=generator).cumsum(1)
    repeats = length // 8 + 1
    shift = torch.randint(-2, 3, (count, repeats), generator=generator).cumsum(1)
    melody = (motif[:, None, :] + shift[:, :, None]).flatten(1)[:, : length + 1]
    return (melody + NOTES // 2).remainder(NOTES)


class MelodyModel(nn.Module):
    def __init__(self, dim=64, hidden=96):
        super().__init__()
        self.embed = nn.Embedding(NOTES, dim)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(hidden, NOTES)

    def forward(self, notes):
        states, _ = self.lstm(self.embed(notes))
        return self.out(states)


def next_note_loss(model, melodies):
    logits = model(melodies[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), melodies[:, 1:].flatten())


def fit(model, melodies, held_out, args):
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, fused=True)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(melodies)).split(args.batch):
            loss = next_note_loss(model, melodies[rows])
            optimizer.zero_grad()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        model.eval()
        with torch.no_grad():
            perplexity = next_note_loss(model, held_out).exp().item()
        print(f"epoch {epoch}: loss {total / len(melodies):.3f}, held-out perplexity {perplexity:.2f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument("--clip", type=float, default=0.25)
    args = parser.parse_args()
    torch.manual_seed(29)
    generator = torch.Generator().manual_seed(29)
    melodies = compose(1280 + 128, args.length, generator)
    fit(MelodyModel(), melodies[:1280], melodies[1280:], args)


if __name__ == "__main__":
    main()
