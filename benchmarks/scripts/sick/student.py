"""A small student learns from a large teacher."""

import torch
from torch import nn
from torch.nn import functional as F


def convnet(width, classes=10):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


class Distiller:
    def __init__(self, teacher, student, temperature=3.0):
        self.teacher, self.student, self.temperature = teacher.eval(), student, temperature
        self.optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)

    def ask_teacher(self, x):
        return self.teacher(x)

    def step(self, x, y):
        t = self.temperature
        wisdom = self.ask_teacher(x)
        answer = self.student(x)
        soft = F.kl_div(F.log_softmax(answer / t, 1), F.log_softmax(wisdom / t, 1), log_target=True, reduction="batchmean")
        loss = soft * t * t + F.cross_entropy(answer, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    x, y = torch.randn(1600, 3, 24, 24), torch.randint(0, 10, (1600,))
    distiller = Distiller(convnet(64), convnet(8))
    for epoch in range(2):
        for rows in torch.randperm(1600).split(32):
            loss = distiller.step(x[rows], y[rows])
        print(epoch, loss)
