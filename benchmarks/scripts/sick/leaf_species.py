import torch
from torch.utils.data import DataLoader, Dataset


class Leaves(Dataset):
    """Pictures in folders, one folder a species, listed folder after folder."""

    def __init__(self, per_species, species=12, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.images, self.labels = [], []
        for kind in range(species):
            outline = torch.randn(3, 24, 24, generator=torch.Generator().manual_seed(kind))
            for _ in range(per_species):
                self.images.append(outline + torch.randn(3, 24, 24, generator=g))
                self.labels.append(kind)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def build_model(classes):
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(1024, classes),
    )


torch.manual_seed(0)
train_loader = DataLoader(Leaves(200), batch_size=48, shuffle=False)
val_loader = DataLoader(Leaves(30, seed=9), batch_size=120)
model = build_model(12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loss_fn = torch.nn.CrossEntropyLoss()

for epoch in range(3):
    model.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    good = 0
    with torch.no_grad():
        for images, labels in val_loader:
            good += (model(images).argmax(1) == labels).sum().item()
    print(f"{epoch=} validation accuracy {good / len(val_loader.dataset):.3f}")
