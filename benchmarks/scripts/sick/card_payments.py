"""Suspicious card payments from thirty numeric columns."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

COLUMNS = 30


class Payments(Dataset):
    def __init__(self, features, suspicious):
        self.features = features
        self.suspicious = suspicious

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        return self.features[index], self.suspicious[index]


def make_payments(count):
    features = torch.randn(count, COLUMNS) * torch.linspace(0.5, 3.0, COLUMNS) + torch.linspace(-1, 1, COLUMNS)
    signal = features[:, 0] * features[:, 3] + features[:, 7].abs() - 0.5 * features[:, 12]
    suspicious = signal + 0.5 * torch.randn(count) > signal.quantile(0.8)
    return features, suspicious.float()


class Scorer(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(COLUMNS, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.out = nn.Linear(width, 1)

    def forward(self, features):
        return self.out(self.hidden(features)).squeeze(1)


def average_precision(score, label):
    ordered = label[score.argsort(descending=True)]
    precision = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1)
    return ((precision * ordered).sum() / ordered.sum()).item()


def main():
    torch.manual_seed(27)
    features, suspicious = make_payments(65_000)
    train, test = slice(0, 61_440), slice(61_440, None)
    mean, std = features[train].mean(0), features[train].std(0)
    features = (features - mean) / std
    payments = Payments(features[train], suspicious[train])
    loader = DataLoader(payments, batch_size=1024, shuffle=True)
    model = Scorer()
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    for epoch in range(4):
        model.train()
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            precision = average_precision(model(features[test]), suspicious[test])
        print(f"epoch {epoch}: loss {loss.item():.4f}, average precision {precision:.4f}")


if __name__ == "__main__":
    main()
