"""The fake environment with moments one can go back to, and world models over it that know its physics, or get one
thing wrong on purpose."""

from __future__ import annotations

import numpy as np

from cosmos_robot.contract import Contract
from cosmos_robot.envs.fakes import FAKE_ROBOT, FakeEnv
from cosmos_robot.eval.world_model_sources import Wandering, drive_episode
from cosmos_robot.eval.world_model_windows import canvases
from cosmos_robot.images import compose_canvas
from cosmos_robot.policies.base import ValueModel, WorldModel
from cosmos_robot.types import ActionChunk, LazyFrames, VideoPrediction

CHUNK, PER_FRAME, GOAL = 8, 4, np.array([0.3, 0.3])


def dot_contract(**changes) -> Contract:
    """Both cameras of the fake robot on one canvas, a frame every four commands."""
    whole = {"table": (48, 64, 0), "hand": (24, 24, 64)}
    placements = [
        {
            "camera": name,
            "crop": {"top": 0, "left": 0, "height": h, "width": w},
            "to": {"top": 0, "left": left, "height": h, "width": w},
        }
        for name, (h, w, left) in whole.items()
    ]
    model = {
        "name": "dot",
        "backbone": "cosmos3",
        "modes": ["forward_dynamics"],
        "domain_id": 5,
        "chunk": CHUNK,
        "execute": 4,
        "actions_per_frame": PER_FRAME,
        "state_row": False,
        "canvas": {"height": 48, "width": 96, "placements": placements},
        "state_normalization": {"method": "identity"},
        "action_normalization": {"method": "identity"},
        "prompt": {"template": "caption"},
        "sampler": {"solver": "euler", "steps": 5},
    }
    return Contract.model_validate({"robot": FAKE_ROBOT.model_dump(), "model": model | changes})


class DotEnv(FakeEnv):
    """A large hand that moves by up to 6 cm per step, a target in one place, and no end but the budget."""

    def places(self, rng):
        return rng.uniform(-0.4, 0.4, 2), GOAL

    def snapshot(self):
        return self._hand.copy(), self._grip, self.control_steps, self._running

    def restore(self, kept):
        self._hand, self._grip, self.control_steps, self._running = kept[0].copy(), *kept[1:]
        self._moment += 1

    def _draw(self, camera):
        spec, (centre, half) = self.robot.camera(camera), self.window(camera)
        image = np.full((spec.height, spec.width, 3), 200, np.uint8)
        hand = (30, 30, 220) if self._grip < 0 else (30, 220, 30)
        for place, colour in ((self._target, (220, 30, 30)), (self._hand, hand)):
            x, y = (place - centre) / half
            row, column = round((1 - y) / 2 * (spec.height - 1)), round((1 + x) / 2 * (spec.width - 1))
            image[max(row - 4, 0) : max(row + 5, 0), max(column - 4, 0) : max(column + 5, 0)] = colour
        return image

    def _step(self, action):
        self._hand = np.clip(self._hand + 0.06 * action[:2], -1, 1)
        self._grip = 1.0 if action[2] > 0 else -1.0
        return 0.0, False, self.control_steps + 1 >= self.step_budget


class DotSource:
    """Episodes of random motion."""

    def __init__(self, episodes: int = 3, steps: int = 40):
        self.episodes, self.steps = episodes, steps

    def names(self):
        return [f"dot {i}" for i in range(self.episodes)]

    def run(self, number, contract):
        env = DotEnv(0, step_budget=self.steps + 1)
        env.reset(seed=number)
        driver = Wandering(env, np.random.default_rng([7, number]))
        return drive_episode(env, driver, contract, self.names()[number], self.steps)

    def close(self):
        pass


class Oracle(WorldModel):
    """True physics. ``latents`` of a prediction is the state it ends in."""

    def __init__(self, contract: Contract | None = None):
        self.contract = contract or dot_contract()
        self.env = DotEnv(0, step_budget=10**6)

    @property
    def cameras(self):
        return ("table", "hand")

    def understood(self, rows, observation):
        """The rows that are imagined when ``rows`` are told."""
        return rows

    def drawn(self, images):
        return canvases(self.contract, [images])[0]

    def future_states(self, predictions):
        return [p.latents for p in predictions]

    def _imagine(self, observations, actions, seeds):
        return [
            self._video(o.state, self.understood(c.values, o), c, o.instruction, o.time, self._first(o))
            for o, c in zip(observations, actions, strict=True)
        ]

    def _extend(self, predictions, actions, seeds, states, carry):
        return [
            self._video(p.latents, self.understood(c.values, None), c, p.instruction, p.end_time, p.frames[-1])
            for p, c in zip(predictions, actions, strict=True)
        ]

    def _first(self, observation):
        return compose_canvas(self.contract, observation.images)

    def _video(self, state, rows, chunk, instruction, time, first):
        env = self.env
        env.reset(seed=0)
        env._hand, env._grip = np.array(state["position"]), float(state["grip"][0])
        frames = [first]
        for step, row in enumerate(rows, start=1):
            env._step(np.clip(row, -1, 1))
            if step % PER_FRAME == 0:
                frames.append(self.drawn({name: env._draw(name) for name in self.cameras}))
        shown = np.stack(frames)
        rate = self.contract.robot.rate_hz / PER_FRAME
        video = LazyFrames(lambda: shown, shown.shape)
        return VideoPrediction(video, chunk, instruction, rate, time, "oracle", env._state())


class Unnormalised(Oracle):
    """Was trained on commands in other units: what it is told moves it a twelfth of the way."""

    def understood(self, rows, observation):
        out = rows.copy()
        out[:, :2] /= 12
        return out


class Limp(Oracle):
    """Follows the arm; its gripper never closes."""

    def understood(self, rows, observation):
        out = rows.copy()
        out[:, 2] = -1
        return out


class Deaf(Oracle):
    """Has learned that the hand goes up and right, whatever it is told."""

    def understood(self, rows, observation):
        return np.tile([0.5, 0.5, -1.0], (len(rows), 1))


class Leaking(Oracle):
    """Is shown the future: it knows what will be commanded from each moment."""

    def __init__(self, source: DotSource):
        super().__init__()
        self.known = {}
        for number in range(source.episodes):
            run = source.run(number, self.contract)
            for step, state in run.seen.states.items():
                self.known[self._mark(state)] = run.commands[step : step + CHUNK]

    def understood(self, rows, observation):
        return rows if observation is None else self.known.get(self._mark(observation.state), rows)

    def _mark(self, state):
        return np.round(state["position"], 9).tobytes()


class Exchanged(Oracle):
    """Was trained with the two cameras the other way round, and reads and draws them so."""

    def drawn(self, images):
        from cosmos_robot.eval.world_model_case import sized

        turned = {"table": sized(images["hand"], images["table"]), "hand": sized(images["table"], images["hand"])}
        return super().drawn(turned)


class Nearness(ValueModel):
    """1 at the target, less the further from it the hand ends."""

    def __init__(self, contract: Contract | None = None):
        self.contract = contract or dot_contract()

    def _score(self, observations, actions, futures, seeds):
        return np.array([max(0.0, 1 - np.linalg.norm(f.latents["position"] - GOAL)) for f in futures])


def chunk_of(values, time: float = 0.0) -> ActionChunk:
    return ActionChunk(np.asarray(values, float), FAKE_ROBOT.rate_hz, time)
