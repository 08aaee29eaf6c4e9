"""Part-of-speech tags for a made-up language, with a bidirectional GRU."""

import torch
from torch import nn

WORDS, TAGS, LENGTH = 800, 9, 18


def grammar(generator):
    follow = torch.softmax(2.0 * torch.randn(TAGS, TAGS, generator=generator), dim=1)
    spoken = torch.softmax(2.5 * torch.randn(TAGS, WORDS, generator=generator), dim=1)
    return follow, spoken


def speak(count, follow, spoken, generator):
    tag = torch.randint(TAGS, (count,), generator=generator)
    tags, words = [], []
    for _ in range(LENGTH):
        tags.append(tag)
        words.append(torch.multinomial(spoken[tag], 1, generator=generator).squeeze(1))
        tag = torch.multinomial(follow[tag], 1, generator=generator).squeeze(1)
    return torch.stack(words, dim=1), torch.stack(tags, dim=1)


class Tagger(nn.Module):
    def __init__(self, dim=48, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(WORDS, dim)
        self.drop = nn.Dropout(0.1)
        self.rnn = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.project = nn.Linear(2 * hidden, TAGS)

    def forward(self, words):
        states, _ = self.rnn(self.drop(self.embed(words)))
        return self.project(states)


class Trainer:
    def __init__(self, model, lr=3e-3):
        self.model = model
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)

    def step(self, words, tags):
        logits = self.model(words)
        loss = self.criterion(logits.view(len(words), TAGS, -1), tags)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, words, tags, batch):
        self.model.train()
        losses = [self.step(words[rows], tags[rows]) for rows in torch.randperm(len(words)).split(batch)]
        return sum(losses) / len(losses)

    @torch.no_grad()
    def accuracy(self, words, tags):
        self.model.eval()
        return (self.model(words).argmax(dim=-1) == tags).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(40)
    generator = torch.Generator().manual_seed(40)
    follow, spoken = grammar(generator)
    train_words, train_tags = speak(1600, follow, spoken, generator)
    test_words, test_tags = speak(200, follow, spoken, generator)
    trainer = Trainer(Tagger())
    for epoch in range(6):
        loss = trainer.fit(train_words, train_tags, batch=32)
        print(f"epoch {epoch}  loss {loss:.3f}  tag accuracy {trainer.accuracy(test_words, test_tags):.3f}")
