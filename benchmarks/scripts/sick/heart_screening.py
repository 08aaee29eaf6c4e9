"""Risk of a heart attack within ten years, from a screening questionnaire and blood values."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW

NUMERIC = 12
SMOKING, DIET = 4, 6


class RiskNet(nn.Module):
    def __init__(self, width=192, p=0.3):
        super().__init__()
        self.p = p
        self.smoking = nn.Embedding(SMOKING, 8)
        self.diet = nn.Embedding(DIET, 8)
        self.fc1 = nn.Linear(NUMERIC + 16, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 1)

    def forward(self, numeric, smoking, diet):
        x = torch.cat([numeric, self.smoking(smoking), self.diet(diet)], dim=1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = F.dropout(x, self.p)
        return self.fc3(x).squeeze(1)


def survey(count):
    numeric = torch.randn(count, NUMERIC) * torch.linspace(1, 20, NUMERIC) + torch.linspace(0, 120, NUMERIC)
    scaled = (numeric - torch.linspace(0, 120, NUMERIC)) / torch.linspace(1, 20, NUMERIC)
    smoking, diet = torch.randint(SMOKING, (count,)), torch.randint(DIET, (count,))
    hazard = 1.2 * scaled[:, 0] + scaled[:, 1] * scaled[:, 2] + 0.6 * smoking - 0.3 * diet + 0.7 * scaled[:, 5].abs()
    ill = hazard - hazard.median() + 0.6 * torch.randn(count) > 0.5
    return [numeric, smoking, diet], ill.float()


def report(model, inputs, ill):
    model.eval()
    with torch.no_grad():
        risk = torch.sigmoid(model(*inputs))
    brier = (risk - ill).square().mean().item()
    accuracy = ((risk > 0.5) == (ill > 0.5)).float().mean().item()
    return brier, accuracy


def main():
    torch.manual_seed(50)
    inputs, ill = survey(6000)
    train = slice(0, 4800)
    mean, std = inputs[0][train].mean(0), inputs[0][train].std(0)
    inputs[0] = (inputs[0] - mean) / std
    train_inputs, train_ill = [part[train] for part in inputs], ill[train]
    test_inputs, test_ill = [part[4800:] for part in inputs], ill[4800:]

    model = RiskNet()
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    for epoch in range(6):
        model.train()
        for rows in torch.randperm(4800).split(128):
            logits = model(*(part[rows] for part in train_inputs))
            loss = F.binary_cross_entropy_with_logits(logits, train_ill[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        brier, accuracy = report(model, test_inputs, test_ill)
        print(f"epoch {epoch}: loss {loss.item():.3f}, brier score {brier:.4f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
