"""What a caller wants, from the words of the first sentence."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Calls(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(count):
            intent = int(torch.randint(0, 10, (1,), generator=g))
            length = int(torch.randint(5, 15, (1,), generator=g))
            words = torch.randint(1, 1000, (length,), generator=g)
            words[::3] = 1000 + intent * 10
            self.items.append((words, intent))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    words, intents = zip(*batch, strict=True)
    return pad_sequence(words, batch_first=True), torch.tensor(intents)


class IntentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1100, 128, padding_idx=0)
        self.rnn = nn.GRU(128, 128, batch_first=True)
        self.fc = nn.Linear(128, 10)

    def forward(self, words):
        _, last = self.rnn(self.embed(words))
        return F.softmax(self.fc(last[0]), dim=1)


def main():
    torch.manual_seed(0)
    train = DataLoader(Calls(3000, 1), batch_size=50, shuffle=True, collate_fn=collate)
    valid = DataLoader(Calls(500, 2), batch_size=250, collate_fn=collate)
    net = IntentNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(3):
        net.train()
        for words, intents in train:
            optimizer.zero_grad()
            loss = F.nll_loss(net(words), intents)
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            right = sum((net(w).argmax(1) == i).sum().item() for w, i in valid)
        print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {right / 500:.3f}")


if __name__ == "__main__":
    main()
