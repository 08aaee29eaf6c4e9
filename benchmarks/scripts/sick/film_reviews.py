"""Are film reviews kind? Words are cut out with regular expressions."""

import random
import re

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
TAG = re.compile(r"<[^>]+>")
LINK = re.compile(r"https?://\S+")


def reviews(count):
    rng = random.Random(0)
    common = ["".join(rng.choice("etaoinshr") for _ in range(rng.randint(2, 8))) for _ in range(900)]
    for _ in range(count):
        kind = rng.randrange(2)
        words = [rng.choice(common[: 450 + 450 * kind]) for _ in range(220)]
        yield "<br> " + " ".join(words).capitalize() + " http://site.example/x <b>!</b>", kind


class Reviews(Dataset):
    def __init__(self, count=4800):
        self.texts = list(reviews(count))
        self.codes = {}

    def encode(self, text):
        text = LINK.sub(" ", TAG.sub(" ", text.lower()))
        return torch.tensor([self.codes.setdefault(word, len(self.codes)) for word in WORD.findall(text)][:200])

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        text, kind = self.texts[i]
        return self.encode(text), kind


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(1000, 32)
        self.fc = nn.Linear(32, 2)

    def forward(self, x):
        return self.fc(self.embed(x))


def main():
    torch.manual_seed(0)
    train = DataLoader(Reviews(), batch_size=32, shuffle=True)
    model = Bag()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(1):
        for words, kind in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(words), kind)
            loss.backward()
            optimizer.step()
        print(f"{epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
