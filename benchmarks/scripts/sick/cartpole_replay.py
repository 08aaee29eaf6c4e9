"""Q-learning with a replay memory in which surprising moves come up more often."""

import copy

import numpy as np
import torch
from torch import nn


class Memory:
    def __init__(self, size=200_000):
        self.rng = np.random.default_rng(0)
        self.state = self.rng.normal(size=(size, 4)).astype(np.float32)
        self.action = self.rng.integers(0, 2, size)
        self.reward = self.rng.normal(size=size).astype(np.float32)
        self.following = self.rng.normal(size=(size, 4)).astype(np.float32)
        self.priority = np.ones(size)
        self.size = size

    def pick(self, n):
        chance = self.priority / self.priority.sum()
        return self.rng.choice(self.size, n, replace=False, p=chance)

    def sample(self, n):
        rows = self.pick(n)
        columns = (self.state[rows], self.action[rows], self.reward[rows], self.following[rows])
        return rows, [torch.from_numpy(column) for column in columns]


class Agent:
    def __init__(self):
        self.q = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
        self.target = copy.deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-3)
        self.memory = Memory()

    def learn(self):
        rows, (state, action, reward, following) = self.memory.sample(128)
        with torch.no_grad():
            aim = reward + 0.99 * self.target(following).max(1).values
        value = self.q(state).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(value, aim)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.memory.priority[rows] = (value - aim).abs().detach().numpy() + 1e-3
        return loss.item()


torch.manual_seed(0)
agent = Agent()
for update in range(150):
    loss = agent.learn()
    if update % 50 == 0:
        agent.target.load_state_dict(agent.q.state_dict())
        print(update, loss)
