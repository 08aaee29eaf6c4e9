import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(11)


def load_wines(count=4000):
    measured = torch.randn(count, 11)
    quality = (measured[:, :4].sum(1) + 0.5 * torch.randn(count)).unsqueeze(1)
    return TensorDataset(measured, quality)


wines = load_wines()
train_part = Subset(wines, torch.randperm(len(wines))[:3200].tolist())
test_part = Subset(wines, torch.randperm(len(wines))[:800].tolist())
train_loader = DataLoader(train_part, batch_size=128, shuffle=True, drop_last=True)
test_loader = DataLoader(test_part, batch_size=400)


class Regressor(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(11, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(self.inner(x))


model = Regressor()
criterion = nn.MSELoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

for epoch in range(4):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = sum(criterion(model(x), y).item() for x, y in test_loader) / len(test_loader)
    print(f"epoch {epoch}: test error {error:.4f}")
