"""From the records of many windows to what can be said about a world model, each with its interval and its control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import pearsonr

from cosmos_robot.eval.calibration import GAMMA, Calibration, calibrate, discounted
from cosmos_robot.eval.statistics import Share, clustered
from cosmos_robot.eval.world_model_actions import GRIPPER, KINDS
from cosmos_robot.eval.world_model_metrics import decibels, mean

Record = Mapping[str, Any]

RULE = 0.9
"""Share of windows on which the true commands must win against every kind of falsified ones."""
MARGIN = 0.01
"""By how much of the falsified commands' error the true ones' must be below it; less is a tie."""
LEAST_WINDOWS = 10
"""Windows below which nothing is said about following, nor about a fault."""
LEAST_EPISODES = 3
"""Episodes below which nothing is said either: windows of one episode are alike."""


@dataclass(frozen=True)
class Verdict:
    """Whether predictions follow the commands.

    wins: for each kind of falsified commands, on how many windows the true ones' prediction is nearer to what happened.
    all_kinds: on how many it is nearer than every kind's; ties count against. margin_db: by how much its error is below
    the nearest kind's, median. left_out: reason to windows. not_finite: tested windows on which some prediction is no
    number; under the true commands that loses, under falsified ones alone it wins. follows: None where there are too
    few windows or episodes.
    """

    wins: dict[str, Share]
    all_kinds: Share
    margin_db: float | None
    left_out: dict[str, int]
    not_finite: int
    follows: bool | None
    sentence: str

    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def following(records: Sequence[Record], where: str = "pictures", kinds: Sequence[str] = KINDS) -> Verdict:
    """The verdict over windows. where: ``pictures``, by the error on pixels that moved; ``state``, by the predicted
    state, for models that predict one. kinds: what the true commands have to win against."""
    tested, runs, left_out = [], [], Counter()
    for record in records:
        errors = _errors(record, where)
        missing = [kind for kind in kinds if errors.get(kind) is None]
        same = [k for k in kinds if k in (record.get("outcomes") or {}).get("same", {}).get(where, ())]
        if errors.get("true") is None:
            left_out["next to nothing moved" if where == "pictures" else "no state is predicted"] += 1
        elif missing:
            left_out[f"{' and '.join(missing)}: not to be had, or the same as the true commands"] += 1
        elif same:
            left_out[f"{' and '.join(same)}: led to the same outcome as the true commands"] += 1
        else:
            tested.append(errors)
            runs.append(record["run"])
    wins = {kind: clustered([_wins(e, kind) for e in tested], runs) for kind in kinds}
    total = clustered([all(_wins(e, kind) for kind in kinds) for e in tested], runs)
    follows = total.rate >= RULE if enough(total) else None
    broken = sum(not all(np.isfinite(e[k]) for k in ("true", *kinds)) for e in tested)
    pictures = tested if where == "pictures" else []
    margins = [decibels(e["true"]) - max(decibels(e[kind]) for kind in kinds) for e in pictures]
    margin = float(np.median(margins)) if margins else None
    what = "actions" if tuple(kinds) == KINDS else " and ".join(kinds)
    words = _sentence(total, follows, what, where, len(kinds))
    return Verdict(wins, total, margin, dict(left_out), broken, follows, words)


def enough(share: Share) -> bool:
    """Whether a share is of so many windows and episodes that anything is said."""
    return share.windows >= LEAST_WINDOWS and share.episodes >= LEAST_EPISODES


def in_words(share: Share) -> str:
    """A share with its interval."""
    return (
        f"{share.successes} of {share.windows} windows of {share.episodes} episodes ({share.low:.2f} to "
        f"{share.high:.2f})"
    )


def _errors(record: Record, where: str) -> Mapping[str, float | None]:
    """The error under each kind of commands: None where there is nothing to say, infinite where the prediction is no
    number."""
    told = record if where == "pictures" else record.get("state") or {}
    return {**told.get("error", {}), **{kind: float("inf") for kind in told.get("not_finite", ())}}


def gripper(records: Sequence[Record]) -> Verdict:
    """The same for the gripper alone: its reversed commands with the true motions must be predicted worse."""
    return following(records, kinds=(GRIPPER,))


def _wins(errors: Mapping[str, float], kind: str) -> bool:
    return errors["true"] < (1 - MARGIN) * errors[kind]


def _sentence(total: Share, follows: bool | None, what: str, where: str, kinds: int) -> str:
    if follows is None:
        return (
            f"{what} ({where}): cannot be said, {total.windows} windows of {total.episodes} episodes could be tested, "
            f"at least {LEAST_WINDOWS} of {LEAST_EPISODES} are needed; raise --episodes or --windows"
        )
    word = "follows" if follows else "does not follow"
    name = "action-following" if follows else "not action-following"
    against = f"all {kinds} falsified kinds" if kinds > 1 else "reversed ones"
    return (
        f"{name}: the model {word} {what} ({where}): the true commands win against {against} on "
        f"{in_words(total)}; the rule asks for {RULE:.2f}"
    )


def scores(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Mean PSNR, SSIM and PSNR of what moved for each step, camera and method, over windows; ``moving_windows``: those
    on which enough moved there."""
    cells: dict[tuple[int, str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        for frame in record["frames"]:
            for method, found in frame.items():
                if isinstance(found, Mapping):
                    cells.setdefault((frame["step"], frame["camera"], method), []).append(found)
    return [
        {
            "step": step,
            "camera": camera,
            "method": method,
            "windows": len(found),
            "moving_windows": sum(f["moving_psnr"] is not None for f in found),
            **{name: mean([f[name] for f in found]) for name in ("psnr", "ssim", "moving_psnr")},
        }
        for (step, camera, method), found in cells.items()
    ]


def overall(records: Sequence[Record]) -> dict[str, dict[str, float | None]]:
    """The same over all steps and cameras: method to measure to mean, and ``moving_windows`` with a PSNR of what moved
    in some place."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for row in scores(records):
        for name in ("psnr", "ssim", "moving_psnr"):
            found.setdefault(row["method"], {}).setdefault(name, []).append(row[name])
    moving = sum(any(f["model"]["moving_psnr"] is not None for f in r["frames"]) for r in records)
    return {
        method: {**{name: mean(values) for name, values in by.items()}, "moving_windows": moving}
        for method, by in found.items()
    }


def better_than(records: Sequence[Record], method: str) -> Share:
    """On how many windows the model's squared error over all pixels that moved is below that of ``method``; ties count
    against. Windows on which too little moved are left out."""
    won, runs = [], []
    for record in records:
        told = [f for f in record["frames"] if method in f and f["model"]["moving_error"] is not None]
        if told:
            own, other = (sum(f[who]["moving_error"] * f["moved_pixels"] for f in told) for who in ("model", method))
            won.append(own < other)
            runs.append(record["run"])
    return clustered(won, runs)


def not_finite(records: Sequence[Record]) -> dict[str, int]:
    """What was predicted that is no number, and on how many windows."""
    found = Counter[str]()
    for r in records:
        found["state"] += bool((r.get("state") or {}).get("not_finite"))
        found["path"] += bool((r.get("path") or {}).get("not_finite"))
        found["value"] += bool(r.get("value_not_finite"))
    return {what: count for what, count in found.items() if count}


def pairing(records: Sequence[Record]) -> dict[str, Any] | None:
    """How often the prediction under some commands is nearest to what the simulator makes of these same commands, of
    all kinds' outcomes; chance is one of their number. ``left_out``: reason to how often a kind's outcome was no other
    than another's, or nothing moved. None without outcomes."""
    held = [r for r in records if r.get("outcomes")]
    if not held:
        return None
    told, rates, left_out = [r["outcomes"] for r in held], {}, Counter[str]()
    for kind in ("true", *KINDS, GRIPPER):
        tested = [r for r in held if kind in r["outcomes"]["nearest"]]
        hits = [r["outcomes"]["nearest"][kind] == kind for r in tested]
        rates[kind] = asdict(clustered(hits, [r["run"] for r in tested]))
    for outcome in told:
        left_out.update(f"{kind}: {why}" for kind, why in outcome["left_out"].items())
    chance = float(np.mean([1 / (len(o["nearest"]) + len(o["left_out"])) for o in told]))
    repeats = mean([o["repeats"] for o in told])
    return {"nearest_to_own_outcome": rates, "chance": chance, "left_out": dict(left_out), "repeats_db": repeats}


def states(records: Sequence[Record]) -> dict[str, Any] | None:
    """Errors of the predicted state per kind (model rows) and per field (robot units), beside a state that does not
    change; ``not_finite``: windows on which some predicted state is no number, which is left out of its mean. None
    without predicted states."""
    told = [r["state"] for r in records if r.get("state")]
    if not told:
        return None
    fields = {
        name: {
            "model": mean([t["fields"][name]["model"] for t in told]),
            "last": mean([t["fields"][name]["last"] for t in told]),
            "unit": told[0]["fields"][name]["unit"],
        }
        for name in told[0]["fields"]
    }
    kinds = {kind: mean([t["error"].get(kind) for t in told]) for kind in ("true", *KINDS, "last")}
    broken = sum(bool(t["not_finite"]) for t in told)
    return {"error": kinds, "fields": fields, "windows": len(told), "not_finite": broken}


def paths(records: Sequence[Record]) -> dict[str, Any] | None:
    """Mean trajectory errors of predicted poses, beside a robot that stays where it was; ``not_finite``: windows on
    which a predicted pose is no number, which are in no mean. None without poses."""
    held = [r["path"] for r in records if r.get("path")]
    told = [path for path in held if not path.get("not_finite")]
    if not held:
        return None
    measures, counts = ("rre_degrees", "rte", "ate"), {"windows": len(told), "not_finite": len(held) - len(told)}
    found = {who: {m: mean([t[who][m] for t in told]) for m in measures} for who in ("model", "last")}
    return {**found, **counts, "poses": told[0]["model"]["poses"] if told else None}


def recovered(records: Sequence[Record]) -> dict[str, Any] | None:
    """Commands that an inverse model recovers, from predictions, from what happened and from still pictures: root mean
    square error, and the correlation of mean commands over windows, pooled over columns that vary."""
    told = [r["inverse"] for r in records if r.get("inverse")]
    if not told:
        return None
    true = np.array([t["true_mean"] for t in told])
    varying = true.std(axis=0) > 1e-9
    out: dict[str, Any] = {"windows": len(told)}
    for who in ("model", "truth", "last"):
        found = np.array([t[who]["mean"] for t in told])
        out[who] = {
            "rmse": mean([t[who]["rmse"] for t in told]),
            "correlation": _correlation(found[:, varying], true[:, varying]),
        }
    return out


def _correlation(found: np.ndarray, true: np.ndarray) -> float | None:
    """Pearson's, after each column has been brought to mean 0 and the true one's spread 1."""
    if len(true) < 3 or not true.size:
        return None
    scale = true.std(axis=0)
    a, b = (((x - x.mean(axis=0)) / scale).ravel() for x in (found, true))
    return None if a.std() < 1e-12 else float(pearsonr(a, b)[0])


def agreement(records: Sequence[Record]) -> dict[str, Any] | None:
    """Video against the simulator running the commands that came with it: PSNR per camera beside the last frame's, and
    how often the video is nearer to that than to what the recorded commands led to."""
    held = [r for r in records if r.get("joint")]
    told = [r["joint"] for r in held]
    if not told:
        return None
    cameras = {
        name: {who: mean([t["cameras"][name][who] for t in told]) for who in ("own", "last")}
        for name in told[0]["cameras"]
    }
    pairs = [(r["run"], r["joint"]["moving"]) for r in held if r["joint"]["moving"]["own"] is not None]
    nearer = clustered([m["own"] < m["recorded"] for _, m in pairs], [run for run, _ in pairs])
    return {"cameras": cameras, "nearer_to_its_own_commands": asdict(nearer), "windows": len(told)}


def valued(records: Sequence[Record], gamma: float = GAMMA, cut_at: int | None = None) -> Calibration | None:
    """Predicted values against the discounted returns from the moments they are of, with intervals over episodes; None
    without any to compare.

    gamma: per control step. cut_at: control steps after which episodes were ended that might have gone on: those of
    this length that did not succeed are left out.
    """
    whole = [r for r in _with_values(records) if not _cut_off(r, cut_at)]
    found = [float("nan") if r["value_not_finite"] else r["value"] for r in whole]
    if not np.isfinite(found).any():
        return None
    returns = [discounted(r["success"], r["value_steps_left"], gamma) for r in whole]
    return calibrate(found, returns, [r["success"] for r in whole], [r["run"] for r in whole])


def values(records: Sequence[Record], gamma: float = GAMMA, cut_at: int | None = None) -> dict[str, Any] | None:
    """``valued`` as plain values, with how many windows and episodes were left out as cut off; None without values or
    outcomes."""
    told = _with_values(records)
    if not told:
        return None
    cut, held = [r for r in told if _cut_off(r, cut_at)], valued(told, gamma, cut_at)
    counts = {"cut_off_windows": len(cut), "cut_off_episodes": len({r["run"] for r in cut})}
    return {"gamma": gamma, "cut_at": cut_at, **counts, **({} if held is None else held.facts())}


def _with_values(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if "value_steps_left" in r and r.get("success") is not None]


def _cut_off(record: Record, cut_at: int | None) -> bool:
    return cut_at is not None and not record["success"] and record["steps"] >= cut_at
