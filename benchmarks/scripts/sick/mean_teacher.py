"""Semi-supervised: a slow copy of the network teaches the fast one."""

import copy

import torch
from torch import nn


def blend(teacher, student, share):
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.lerp_(fast, share)


def next_teacher(teacher, student, share=0.01):
    fresh = copy.deepcopy(teacher)
    blend(fresh, student, share)
    return fresh


def network():
    layers = [nn.Linear(32, 64), nn.ReLU()]
    for _ in range(40):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


def main():
    torch.manual_seed(0)
    student = network()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for step in range(200):
        x = torch.randn(16, 32)
        with torch.no_grad():
            target = teacher(x).softmax(1)
        loss = nn.functional.cross_entropy(student(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher = next_teacher(teacher, student)
        if step % 50 == 0:
            print(step, loss.item())


main()
