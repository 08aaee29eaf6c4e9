"""Gene panels: a wide table and a collate function of its own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Panels(Dataset):
    def __init__(self, patients=3200, genes=500):
        generator = torch.Generator().manual_seed(0)
        self.levels = torch.randn(patients, genes, generator=generator)
        self.ill = (self.levels[:, :10].sum(1) > 0).float()

    def __len__(self):
        return len(self.ill)

    def __getitem__(self, patient):
        return self.levels[patient], self.ill[patient]


def collate(batch):
    levels = [[value.item() for value in row] for row, _ in batch]
    return torch.tensor(levels), torch.stack([ill for _, ill in batch])


class Net(nn.Module):
    def __init__(self, genes=500):
        super().__init__()
        self.fc1 = nn.Linear(genes, 128)
        self.fc2 = nn.Linear(128, 1)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x))).squeeze(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Panels(), batch_size=32, shuffle=True, collate_fn=collate)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(1):
        for levels, ill in loader:
            optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(net(levels), ill)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
