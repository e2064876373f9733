"""stable-baselines3's PPO and sb3-contrib's MaskablePPO, told to do what we do."""

import time

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from settings import ADAM_EPSILON, BOUND, CLIP, HIDDEN, MAX_GRAD_NORM, VALUE_COEF
from worlds import APART, vec_env


class Tell(BaseCallback):
    """Tells of every rollout, once it is learned from."""

    def __init__(self, log):
        super().__init__()
        self.log, self.ended, self.acting, self.begun = log, [], 0.0, 0.0

    def _on_step(self):
        self.ended += [info for info in self.locals["infos"] if "episode" in info]
        return True

    def _on_rollout_start(self):
        if self.num_timesteps:
            self.tell()
        self.begun = time.perf_counter()

    def _on_rollout_end(self):
        self.acting += time.perf_counter() - self.begun

    def _on_training_end(self):
        self.tell()

    def tell(self):
        self.log.iteration(
            self.num_timesteps,
            [float(info["episode"]["r"]) for info in self.ended],
            [float(info["outcome"]["attained"]) for info in self.ended if "outcome" in info],
            self.acting,
        )
        self.ended = []


def learn(learner, problem, seed, settings, log):
    """Trains; tensors of the policy and of its normalisation, and what it does with rows of observations."""
    torch.set_num_threads(1)
    envs = VecNormalize(vec_env(problem, settings.num_envs), clip_obs=BOUND, clip_reward=BOUND, gamma=settings.gamma)
    algorithm = {"sb3": PPO, "sb3-maskable": MaskablePPO}[learner]
    model = algorithm(
        "MlpPolicy",
        envs,
        learning_rate=lambda left: settings.learning_rate * left,
        n_steps=settings.num_steps,
        batch_size=settings.minibatch,
        n_epochs=settings.num_epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=CLIP,
        ent_coef=settings.entropy_coef,
        # Their loss of values is the square, ours half of it.
        vf_coef=VALUE_COEF / 2,
        max_grad_norm=MAX_GRAD_NORM,
        seed=seed,
        device="cpu",
        policy_kwargs={
            "net_arch": {"pi": list(HIDDEN), "vf": list(HIDDEN)},
            "activation_fn": torch.nn.Tanh,
            "optimizer_kwargs": {"eps": ADAM_EPSILON},
        },
    )
    # The model has seeded them by its own.
    envs.seed(APART * seed)
    log.start()
    model.learn(settings.samples, callback=Tell(log))
    tensors = {name: tensor.contiguous() for name, tensor in model.policy.state_dict().items()}
    tensors["obs_rms.mean"] = torch.tensor(envs.obs_rms.mean)
    tensors["obs_rms.var"] = torch.tensor(envs.obs_rms.var)

    def greedy(observations):
        return np.asarray(model.predict(envs.normalize_obs(observations), deterministic=True)[0])

    return tensors, greedy
