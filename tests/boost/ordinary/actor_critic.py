"""An actor and a critic with an optimizer each; what is learned depends on the actions that were drawn, and on an environment
with a generator of its own that nobody seeds."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
of_actor, of_critic = torch.optim.Adam(actor.parameters(), lr=1e-3), torch.optim.Adam(critic.parameters(), lr=1e-3)
environment = np.random.default_rng()
state = torch.zeros(16, 4)
for _ in range(3000):
    chosen = torch.distributions.Categorical(logits=actor(state))
    action = chosen.sample()
    moved = torch.from_numpy(environment.standard_normal((16, 4), dtype=np.float32))
    following = (0.9 * state + 0.1 * moved + (action[:, None] - 0.5) * torch.tensor([1.0, 0, 0, 0])).detach()
    reward = -following[:, 0].abs()
    wanted = reward + 0.9 * critic(following).squeeze(1).detach()
    advantage = wanted - critic(state).squeeze(1)
    of_critic.zero_grad()
    advantage.square().mean().backward()
    of_critic.step()
    of_actor.zero_grad()
    (-(chosen.log_prob(action) * advantage.detach()).mean()).backward()
    of_actor.step()
    state = following
