"""PPO in plain PyTorch, one page from top to bottom in the manner of cleanrl's `ppo.py` (Huang et al. 2022, "CleanRL"; the details by
Huang et al. 2022, "The 37 Implementation Details of Proximal Policy Optimization"), on Gymnasium's vector environments.

Unlike cleanrl's, and like ours: choices may be masked, and an episode that was cut short is worth what the critic thinks of its last
observation (Pardo et al. 2018, "Time Limits in Reinforcement Learning").
"""

import time

import numpy as np
import torch
from torch import nn

from settings import ADAM_EPSILON, BOUND, CLIP, HIDDEN, MAX_GRAD_NORM, VALUE_COEF
from worlds import APART, vector_env


def layer(inputs, outputs, gain):
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def network(inputs, outputs, last_gain):
    layers = []
    for width in HIDDEN:
        layers += [layer(inputs, width, 2**0.5), nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, layer(inputs, outputs, last_gain))


class Agent(nn.Module):
    """An actor with a categorical distribution of each head, and a critic that shares nothing with it."""

    def __init__(self, inputs, sizes):
        super().__init__()
        self.sizes = sizes
        self.actor, self.critic = network(inputs, sum(sizes), 0.01), network(inputs, 1, 1.0)

    def heads(self, observations, masks):
        """Log-probabilities of each head's choices."""
        logits = self.actor(observations).masked_fill(~masks, -1e8)
        return [part.log_softmax(-1) for part in logits.split(self.sizes, dim=-1)]

    def judged(self, observations, masks, actions):
        """Log-probability of the actions, and the entropy."""
        log_prob, entropy = 0.0, 0.0
        for index, head in enumerate(self.heads(observations, masks)):
            log_prob = log_prob + head.gather(-1, actions[..., index : index + 1]).squeeze(-1)
            entropy = entropy - (head.exp() * head).sum(-1)
        return log_prob, entropy

    def drawn(self, observations, masks, generator):
        heads = self.heads(observations, masks)
        choices = [torch.multinomial(head.exp(), 1, generator=generator) for head in heads]
        return torch.cat(choices, dim=-1)


class Moments:
    """Running mean and variance of the rows seen so far, merged batch by batch (Chan et al. 1979)."""

    def __init__(self, columns):
        self.mean, self.variance, self.count = np.zeros(columns), np.ones(columns), 0.0

    def update(self, rows):
        count = self.count + len(rows)
        delta = rows.mean(0) - self.mean
        squares = self.variance * self.count + rows.var(0) * len(rows) + delta**2 * self.count * len(rows) / count
        self.mean, self.variance, self.count = self.mean + delta * len(rows) / count, squares / count, count

    def scaled(self, rows):
        return np.clip((rows - self.mean) / np.sqrt(self.variance + 1e-8), -BOUND, BOUND)


def tensor(rows):
    return torch.as_tensor(rows, dtype=torch.float32)


def learn(_, problem, seed, settings, log):
    """Trains; tensors of the policy and of its normalisation, and what it does with rows of observations."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    envs = vector_env(problem, settings.num_envs)
    size = envs.single_observation_space.shape[0]
    is_one_head = not hasattr(envs.single_action_space, "nvec")
    sizes = [int(envs.single_action_space.n)] if is_one_head else [int(n) for n in envs.single_action_space.nvec]
    agent = Agent(size, sizes)
    optimiser = torch.optim.Adam(agent.parameters(), lr=settings.learning_rate, eps=ADAM_EPSILON)
    seen, paid = Moments(size), Moments(1)
    steps, num_envs = settings.num_steps, settings.num_envs
    shape = (steps, num_envs)
    kept = torch.zeros(*shape, size), torch.zeros(*shape, sum(sizes), dtype=torch.bool), torch.zeros(*shape, len(sizes), dtype=torch.int64)
    rewards, after = torch.zeros(shape), torch.zeros(shape)
    ended = torch.zeros(shape, dtype=torch.bool)

    def looked(observations, infos):
        seen.update(observations)
        masks = infos["action_mask"].astype(bool) if "action_mask" in infos else np.ones((num_envs, sum(sizes)), dtype=bool)
        return tensor(seen.scaled(observations)), torch.from_numpy(masks)

    log.start()
    observations, masks = looked(*envs.reset(seed=APART * seed))
    sums, discounted = np.zeros(num_envs), np.zeros(num_envs)
    iterations, acting = settings.samples // settings.batch, 0.0
    for iteration in range(iterations):
        returns, attained, begun = [], [], time.perf_counter()
        with torch.no_grad():
            for step in range(steps):
                actions = agent.drawn(observations, masks, generator)
                for rows, row in zip(kept, (observations, masks, actions), strict=True):
                    rows[step] = row
                next_observations, reward, terminated, truncated, infos = envs.step(actions.numpy()[:, 0] if is_one_head else actions.numpy())
                done = terminated | truncated
                sums += reward
                discounted = discounted * settings.gamma + reward
                paid.update(discounted[:, None])
                rewards[step] = tensor(np.clip(reward / np.sqrt(paid.variance[0] + 1e-8), -BOUND, BOUND))
                ended[step] = torch.from_numpy(done)
                # What is left to earn where an episode was cut short; nothing where it ended.
                after[step] = 0.0
                for env in np.flatnonzero(done):
                    returns.append(float(sums[env]))
                    if "outcome" in infos["final_info"]:
                        attained.append(float(infos["final_info"]["outcome"]["attained"][env]))
                    if not terminated[env]:
                        after[step, env] = agent.critic(tensor(seen.scaled(infos["final_obs"][env]))).item()
                sums[done], discounted[done] = 0.0, 0.0
                observations, masks = looked(next_observations, infos)

            acting += time.perf_counter() - begun
            values, last = agent.critic(kept[0]).squeeze(-1), agent.critic(observations).squeeze(-1)
            advantages, following = torch.zeros(shape), torch.zeros(num_envs)
            for step in reversed(range(steps)):
                next_values = torch.where(ended[step], after[step], values[step + 1] if step + 1 < steps else last)
                delta = rewards[step] + settings.gamma * next_values - values[step]
                following = delta + settings.gamma * settings.gae_lambda * following * ~ended[step]
                advantages[step] = following
            batch = [rows.flatten(0, 1) for rows in (*kept, advantages, advantages + values)]
            old, _ = agent.judged(*batch[:3])

        optimiser.param_groups[0]["lr"] = settings.learning_rate * (1.0 - iteration / iterations)
        for _ in range(settings.num_epochs):
            for rows in torch.randperm(settings.batch, generator=generator).split(settings.minibatch):
                seen_rows, mask, action, advantage, target = (part[rows] for part in batch)
                log_prob, entropy = agent.judged(seen_rows, mask, action)
                ratio = (log_prob - old[rows]).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gained = torch.min(ratio * advantage, ratio.clamp(1.0 - CLIP, 1.0 + CLIP) * advantage).mean()
                error = 0.5 * (agent.critic(seen_rows).squeeze(-1) - target).square().mean()
                loss = -gained - settings.entropy_coef * entropy.mean() + VALUE_COEF * error
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
                optimiser.step()
        log.iteration((iteration + 1) * settings.batch, returns, attained, acting)
    envs.close()

    tensors = dict(agent.state_dict())
    tensors["obs_rms.mean"], tensors["obs_rms.var"] = torch.tensor(seen.mean), torch.tensor(seen.variance)

    def greedy(observations):
        with torch.no_grad():
            logits = agent.actor(tensor(seen.scaled(observations)))
        choices = [part.argmax(-1).numpy() for part in logits.split(sizes, dim=-1)]
        return choices[0] if is_one_head else np.stack(choices, axis=-1)

    return tensors, greedy
