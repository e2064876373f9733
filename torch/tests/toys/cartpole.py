"""Writes cartpole.json: episodes of Gymnasium's own CartPole-v1, to hold ours against.

pip install gymnasium==1.4.0 && python3 torch/tests/toys/cartpole.py > torch/tests/toys/cartpole.json
"""

import json

import gymnasium

# Two that fall, one that runs off the track, one that stands until it is cut short.
CHOOSERS = {
    "always right": lambda step, state: 1,
    "left, left, right": lambda step, state: int(step % 3 == 2),
    "leaning right": lambda step, state: int(4 * (state[2] - 0.06) + state[3] > 0),
    "upright": lambda step, state: int(0.1 * state[0] + 0.3 * state[1] + 2 * state[2] + state[3] > 0),
}

episodes = []
for seed, (name, choose) in enumerate(CHOOSERS.items()):
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=seed)
    start, actions, total, ended = env.unwrapped.state.tolist(), "", 0.0, False
    while not ended:
        action = choose(len(actions), env.unwrapped.state)
        _, reward, terminated, truncated, _ = env.step(action)
        actions += str(action)
        total += reward
        ended = terminated or truncated
    end = env.unwrapped.state.tolist()
    episodes.append(
        dict(name=name, start=start, actions=actions, end=end, total=total, terminated=terminated, truncated=truncated)
    )
print(json.dumps(episodes, indent=1))
