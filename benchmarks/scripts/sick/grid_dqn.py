"""Averaged DQN on stored transitions of a walk to a goal on an 8 x 8 board."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

SIDE = 8
GAMMA = 0.95
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


def encode(agent, goal):
    cells = SIDE * SIDE
    here = F.one_hot(agent[:, 0] * SIDE + agent[:, 1], cells)
    there = F.one_hot(goal[:, 0] * SIDE + goal[:, 1], cells)
    return torch.cat([here, there], dim=1).float()


def walk(agent, goal, action):
    after = (agent + MOVES[action]).clamp(0, SIDE - 1)
    done = (after == goal).all(dim=1)
    return after, torch.where(done, 1.0, -0.02), done.float()


def collect(count):
    agent, goal = torch.randint(SIDE, (count, 2)), torch.randint(SIDE, (count, 2))
    action = torch.randint(4, (count,))
    after, reward, done = walk(agent, goal, action)
    return encode(agent, goal), action, reward, encode(after, goal), done


def q_network(width=256):
    return nn.Sequential(
        nn.Linear(2 * SIDE * SIDE, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 4),
    )


@torch.no_grad()
def success(online, count=200, limit=20):
    agent, goal = torch.randint(SIDE, (count, 2)), torch.randint(SIDE, (count, 2))
    reached = (agent == goal).all(dim=1)
    for _ in range(limit):
        after, _, done = walk(agent, goal, online(encode(agent, goal)).argmax(1))
        agent = torch.where(reached[:, None], agent, after)
        reached |= done.bool()
    return reached.float().mean().item()


def bellman_loss(online, snapshots, batch):
    state, action, reward, after, done = batch
    value = online(state).gather(1, action[:, None]).squeeze(1)
    ahead = sum(net(after) for net in snapshots) / len(snapshots)
    target = reward + GAMMA * (1 - done) * ahead.max(dim=1).values
    return F.smooth_l1_loss(value, target)


def main():
    torch.manual_seed(2)
    memory = collect(20000)
    online = q_network()
    snapshots = [copy.deepcopy(online) for _ in range(2)]
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3, fused=True)
    for step in range(300):
        rows = torch.randint(len(memory[0]), (256,))
        loss = bellman_loss(online, snapshots, [part[rows] for part in memory])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            snapshots[step // 25 % 2].load_state_dict(online.state_dict())
        if step % 100 == 99:
            print(f"step {step + 1}  loss {loss.item():.4f}  reaches the goal {success(online):.2f}")


if __name__ == "__main__":
    main()
