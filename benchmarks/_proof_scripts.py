"""Short training scripts of five kinds, for benchmarks/boost_proof.py. Each takes a seed and trains from random weights."""

_HEAD = """\
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(sys.argv[1]))
if torch.cuda.is_available():
    torch.set_default_device("cuda")
"""

CNN = (
    _HEAD
    + """\

class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1)  # with a bias before batch norm, as many write it
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.short = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + self.short(x)).relu()


class ResNet(nn.Module):  # 18 layers, narrow
    def __init__(self, width=8):
        super().__init__()
        sizes = [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1)]
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(a * width, b * width, stride) for a, b, stride in sizes))
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


model = ResNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
patterns = torch.randn(10, 3, 16, 16)
for step in range(400):
    y = torch.randint(0, 10, (16,))
    x = patterns[y] + 2 * torch.randn(16, 3, 16, 16)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)

TRANSFORMER = (
    _HEAD
    + """\

class Reader(nn.Module):
    def __init__(self, words=64, width=64):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.words(x) + self.places.weight[: x.shape[1]], mask=mask, is_causal=True))


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(400):
    text = torch.randint(0, 5, (16, 33)).cumsum(1) % 64
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
)

MLP = (
    _HEAD
    + """\
model = nn.Sequential(
    nn.Linear(40, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
way = torch.randn(40)
for step in range(400):
    x = torch.randn(64, 40)
    loss = F.mse_loss(model(x).squeeze(1), (x * way).sum(1).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)

GAN = (
    _HEAD
    + """\
width = 16
maker = nn.Sequential(
    nn.ConvTranspose2d(32, 4 * width, 4, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU(),
    nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
    nn.ConvTranspose2d(2 * width, 1, 4, 2, 1), nn.Tanh(),
)
judge = nn.Sequential(
    nn.Conv2d(1, width, 4, 2, 1), nn.LeakyReLU(0.2),
    nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
    nn.Conv2d(2 * width, 1, 4), nn.Flatten(0),
)
of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
patterns = torch.randn(10, 1, 16, 16).tanh()
one, none = torch.ones(32), torch.zeros(32)
for step in range(400):
    real = patterns[torch.randint(0, 10, (32,))] + 0.1 * torch.randn(32, 1, 16, 16)
    fake = maker(torch.randn(32, 32, 1, 1))
    of_judge.zero_grad()
    F.binary_cross_entropy_with_logits(judge(real), one).backward()
    F.binary_cross_entropy_with_logits(judge(fake.detach()), none).backward()
    of_judge.step()
    of_maker.zero_grad()
    F.binary_cross_entropy_with_logits(judge(fake), one).backward()
    of_maker.step()
"""
)

RNN = (
    _HEAD
    + """\

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cells, self.head = nn.Embedding(50, 48), nn.LSTM(48, 64, 2, batch_first=True), nn.Linear(64, 50)

    def forward(self, x):
        return self.head(self.cells(self.words(x))[0])


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(400):
    text = torch.randint(0, 4, (16, 25)).cumsum(1) % 50
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
)

SCRIPTS = {"cnn": CNN, "transformer": TRANSFORMER, "mlp": MLP, "gan": GAN, "rnn": RNN}
