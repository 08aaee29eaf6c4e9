"""Recognises birds in spectrograms; a trainer class with its own validation."""

import torch
from torch import nn


class Spectrograms:
    def __init__(self, count, batch_size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.label = torch.randint(0, 6, (count,), generator=generator)
        self.audio = torch.randn(count, 1, 40, 48, generator=generator)
        for row, label in enumerate(self.label.tolist()):
            self.audio[row, 0, label * 6 : label * 6 + 4] += 0.5
        self.batch_size = batch_size

    def __iter__(self):
        order = torch.randperm(len(self.label))
        for rows in order.split(self.batch_size):
            yield self.audio[rows], self.label[rows]


class BirdNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 48, 3, padding=1)
        self.drop = nn.Dropout(0.4)
        self.fc = nn.Linear(48 * 10 * 12, 6)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        return self.fc(self.drop(x.flatten(1)))


class Trainer:
    def __init__(self, model, train_data, val_data, lr=1e-3):
        self.model, self.train_data, self.val_data = model, train_data, val_data
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.loss = nn.CrossEntropyLoss()

    def fit(self, epochs):
        self.model.train()
        for epoch in range(epochs):
            for audio, label in self.train_data:
                self.training_step(audio, label)
            print("epoch", epoch, "val", self.validate())

    def training_step(self, audio, label):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(audio), label)
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        right = sum((self.model(audio).argmax(1) == label).sum().item() for audio, label in self.val_data)
        return right / len(self.val_data.label)


if __name__ == "__main__":
    torch.manual_seed(1)
    Trainer(BirdNet(), Spectrograms(1600, 64, 5), Spectrograms(400, 100, 6)).fit(5)
