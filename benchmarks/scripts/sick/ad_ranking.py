"""Click model for ads, judged by the area under the ROC curve."""

import numpy as np
import torch
from torch import nn

SEED = 17
BATCH = 2048
EPOCHS = 2


def impressions(n):
    rng = np.random.default_rng(SEED)
    x = rng.normal(size=(n, 20)).astype(np.float32)
    w = rng.normal(size=(20,)) * 0.4
    utility = x @ w + 0.6 * x[:, 0] * x[:, 1] - 0.5 * np.abs(x[:, 2]) - 0.8
    clicked = rng.random(n) < 1 / (1 + np.exp(-utility))
    return torch.from_numpy(x), torch.from_numpy(clicked.astype(np.float32))


def roc_auc(scores, labels):
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    positive = labels.sum().double()
    negative = len(labels) - positive
    return ((ranks[labels > 0.5].sum() - positive * (positive + 1) / 2) / (positive * negative)).item()


class ClickModel(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)


def main():
    torch.manual_seed(SEED)
    x, y = impressions(80 * BATCH + 20000)
    x_train, y_train, x_test, y_test = x[:-20000], y[:-20000], x[-20000:], y[-20000:]
    model = ClickModel(x.shape[1])
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    curve = []
    for epoch in range(EPOCHS):
        model.train()
        scores, labels = [], []
        for rows in torch.randperm(len(x_train)).split(BATCH):
            xb, yb = x_train[rows], y_train[rows]
            logits = model(xb)
            loss = criterion(logits, yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scores.append(logits.detach())
            labels.append(yb)
            curve.append(roc_auc(torch.cat(scores), torch.cat(labels)))
        model.eval()
        with torch.no_grad():
            test_auc = roc_auc(model(x_test), y_test)
        print(f"epoch {epoch}: train auc {curve[-1]:.4f}, test auc {test_auc:.4f}")


main()
