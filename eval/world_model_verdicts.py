"""From the records of many windows to what can be said about a world model, each with its interval and its control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import pearsonr

from cosmos_robot.eval.calibration import calibrate
from cosmos_robot.eval.statistics import Rate, wilson
from cosmos_robot.eval.world_model_actions import GRIPPER, KINDS
from cosmos_robot.eval.world_model_metrics import decibels, mean
from cosmos_robot.eval.world_model_probes import AS_THEY_ARE

Record = Mapping[str, Any]

RULE = 0.9
"""Share of windows on which the true commands must win against every kind of falsified ones."""
MARGIN = 0.01
"""By how much of the falsified commands' error the true ones' must be below it; less is a tie."""
LEAST_WINDOWS = 10
"""Windows below which nothing is said about following."""
LEAK_DB = 6.0
"""By how much a prediction under commands that were not run may not beat the last frame where something moved."""
UNMOVED = 0.01
"""Of the squared change that really came about: a prediction that other commands change by less ignores them."""
STILL_RATIO = 0.1
"""Of the true motion: a model whose predictions change less repeats what it was shown."""
BETTER = 0.9
"""What another scale or order must bring the error down to, to count as better."""


@dataclass(frozen=True)
class Verdict:
    """Whether predictions follow the commands.

    wins: for each kind of falsified commands, on how many windows the true ones' prediction is nearer to what happened.
    all_kinds: on how many it is nearer than every kind's; ties count against. margin_db: by how much its error is below
    the nearest kind's, median. left_out: reason to windows. follows: None where there are too few windows.
    """

    wins: dict[str, Rate]
    all_kinds: Rate
    margin_db: float | None
    left_out: dict[str, int]
    follows: bool | None
    sentence: str

    def facts(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Fault:
    """Something that is wrong, or not. found: None where it could not be looked for, or where it shows on most windows
    but they are so few that it may be chance. evidence: figures, in words."""

    name: str
    found: bool | None
    evidence: str


def following(records: Sequence[Record], where: str = "pictures", kinds: Sequence[str] = KINDS) -> Verdict:
    """The verdict over windows. where: ``pictures``, by the error on pixels that moved; ``state``, by the predicted
    state, for models that predict one. kinds: what the true commands have to win against."""
    tested, left_out = [], Counter()
    for record in records:
        errors = record["error"] if where == "pictures" else (record.get("state") or {}).get("error", {})
        missing = [kind for kind in kinds if errors.get(kind) is None]
        if errors.get("true") is None:
            left_out["next to nothing moved" if where == "pictures" else "no state is predicted"] += 1
        elif missing:
            left_out[f"{' and '.join(missing)}: not to be had, or the same as the true commands"] += 1
        else:
            tested.append(errors)
    wins = {kind: wilson(sum(_wins(e, kind) for e in tested), len(tested)) for kind in kinds}
    total = wilson(sum(all(_wins(e, kind) for kind in kinds) for e in tested), len(tested))
    follows = None if len(tested) < LEAST_WINDOWS else total.rate >= RULE
    margins = [decibels(e["true"]) - max(decibels(e[kind]) for kind in kinds) for e in tested]
    margin = float(np.median(margins)) if margins and where == "pictures" else None
    what = "actions" if tuple(kinds) == KINDS else " and ".join(kinds)
    return Verdict(wins, total, margin, dict(left_out), follows, _sentence(total, follows, what, where, len(kinds)))


def gripper(records: Sequence[Record]) -> Verdict:
    """The same for the gripper alone: its reversed commands with the true motions must be predicted worse."""
    return following(records, kinds=(GRIPPER,))


def _wins(errors: Mapping[str, float], kind: str) -> bool:
    return errors["true"] < (1 - MARGIN) * errors[kind]


def _sentence(total: Rate, follows: bool | None, what: str, where: str, kinds: int) -> str:
    if follows is None:
        return (
            f"{what} ({where}): cannot be said, {total.episodes} windows could be tested, at least {LEAST_WINDOWS} are "
            "needed"
        )
    word = "follows" if follows else "does not follow"
    name = "action-following" if follows else "not action-following"
    against = f"all {kinds} falsified kinds" if kinds > 1 else "reversed ones"
    return (
        f"{name}: the model {word} {what} ({where}): the true commands win against {against} on "
        f"{total.successes} of {total.episodes} windows, {total.rate:.2f} ({total.low:.2f} to {total.high:.2f}); "
        f"the rule asks for {RULE:.2f}"
    )


def scores(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Mean PSNR, SSIM and PSNR of what moved for each step, camera and method, over windows."""
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
            **{name: mean([f[name] for f in found]) for name in ("psnr", "ssim", "moving_psnr")},
        }
        for (step, camera, method), found in cells.items()
    ]


def overall(records: Sequence[Record]) -> dict[str, dict[str, float | None]]:
    """The same over all steps and cameras: method to measure to mean."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for row in scores(records):
        for name in ("psnr", "ssim", "moving_psnr"):
            found.setdefault(row["method"], {}).setdefault(name, []).append(row[name])
    return {method: {name: mean(values) for name, values in by.items()} for method, by in found.items()}


def better_than(records: Sequence[Record], method: str) -> Rate:
    """On how many windows the model's mean PSNR of what moved is above that of ``method``; ties count against."""
    won = []
    for record in records:
        pairs = [(f["model"]["moving_psnr"], f[method]["moving_psnr"]) for f in record["frames"] if method in f]
        pairs = [(a, b) for a, b in pairs if a is not None and b is not None]
        if pairs:
            won.append(sum(a for a, _ in pairs) > sum(b for _, b in pairs))
    return wilson(sum(won), len(won))


def faults(records: Sequence[Record]) -> list[Fault]:
    """What evaluations of world models are known to go wrong by, each looked for."""
    moving = [r for r in records if r["error"].get("last")]
    return [_ignores(moving), _still(moving), _leaks(moving), _scale(moving), _exchanged(moving), _mixed(records)]


def _ignores(records: Sequence[Record]) -> Fault:
    """Falsified commands change the prediction by next to nothing, beside what really changed."""
    flags = []
    for r in records:
        effects = [r["effect"][kind] for kind in KINDS if r["effect"].get(kind) is not None]
        if effects:
            flags.append(max(effects) < UNMOVED * r["error"]["last"])
    return _by_share("ignores the commands", flags, "falsified commands leave the prediction nearly as it is")


def _still(records: Sequence[Record]) -> Fault:
    ratios = [r["motion_ratio"] for r in records if r["motion_ratio"] is not None]
    if not ratios:
        return Fault("repeats the last frame", None, "nothing moved")
    middle = float(np.median(ratios))
    words = f"where something moved, predictions change by {middle:.2f} of what really changed (median)"
    return Fault("repeats the last frame", middle < STILL_RATIO, words)


def _leaks(records: Sequence[Record]) -> Fault:
    """Under commands that were not run, what happened should not be predicted better than by the last frame."""
    gains = []
    for r in records:
        wrong = [r["error"][kind] for kind in ("zero", "mirrored") if r["error"].get(kind) is not None]
        if wrong:
            gains.append(decibels(max(wrong)) - decibels(r["error"]["last"]))
    if not gains:
        return Fault("a future frame leaks in", None, "no falsified commands to be had")
    middle = float(np.median(gains))
    words = (
        f"told to stand still or to move the other way, it predicts what happened {middle:+.1f} dB better than the "
        f"last frame does (median; {LEAK_DB:g} dB are flagged)"
    )
    return Fault("a future frame leaks in", middle >= LEAK_DB, words)


def _scale(records: Sequence[Record]) -> Fault:
    """Motions multiplied by some factor are predicted better than as they were commanded: a normaliser that was left
    out, or applied twice."""
    name, probed = "commands arrive at another scale", [r for r in records if r.get("scales")]
    if not probed:
        return Fault(name, None, "not tried: no probes were run")
    best: tuple[str, Rate] | None = None
    for factor in probed[0]["scales"]:
        errors = [(r["scales"][factor], r["error"]["true"], r["error"]["last"]) for r in probed]
        rate = wilson(sum(e is not None and e < BETTER * min(t, last) for e, t, last in errors), len(errors))
        if best is None or rate.rate > best[1].rate:
            best = factor, rate
    assert best is not None
    factor, rate = best
    words = (
        f"motions times {factor} are predicted better than as commanded, and than no motion, on {rate.successes} of "
        f"{rate.episodes} windows ({rate.low:.2f} to {rate.high:.2f})"
    )
    return Fault(name, _mostly(rate), words)


def _exchanged(records: Sequence[Record]) -> Fault:
    """With cameras exchanged the model beats the last frame, and as they are it does not or does so by less."""
    name, probed = "cameras are exchanged", [r for r in records if len(r.get("exchanged") or {}) > 1]
    if not probed:
        return Fault(name, None, "not tried: one camera, or no probes were run")
    best: tuple[str, Rate] | None = None
    for order in (o for o in probed[0]["exchanged"] if o != AS_THEY_ARE):
        pairs = [(r["exchanged"].get(order), r["exchanged"].get(AS_THEY_ARE)) for r in probed]
        pairs = [(other, own) for other, own in pairs if other is not None and own is not None]
        rate = wilson(sum(other < BETTER * min(own, 1.0) for other, own in pairs), len(pairs))
        if pairs and (best is None or rate.rate > best[1].rate):
            best = order, rate
    if best is None:
        return Fault(name, None, "not tried: next to nothing moved")
    order, rate = best
    words = (
        f"{order}: predicted better, and better than the last frame, on {rate.successes} of {rate.episodes} windows "
        f"({rate.low:.2f} to {rate.high:.2f})"
    )
    return Fault(name, _mostly(rate), words)


def _mixed(records: Sequence[Record]) -> Fault:
    """The picture predicted for one camera is what another shows, and the other way round."""
    name = "predicted cameras are exchanged"
    names = list(records[0]["cameras"]["nearest"]) if records else []
    if len(names) < 2:
        return Fault(name, None, "one camera")
    flags = [
        any(n[a] == b and n[b] == a for a in names for b in names if a != b)
        for n in (r["cameras"]["nearest"] for r in records)
    ]
    return _by_share(name, flags, "the prediction for one camera shows what another saw, and the other way round,")


def _mostly(rate: Rate) -> bool | None:
    """Whether something shows on most windows, None where they are too few to tell."""
    return True if rate.low > 0.5 else None if rate.rate > 0.5 else False


def _by_share(name: str, flags: Sequence[bool], what: str) -> Fault:
    if not flags:
        return Fault(name, None, "no window to look at")
    rate = wilson(sum(flags), len(flags))
    words = f"{what} on {rate.successes} of {rate.episodes} windows ({rate.low:.2f} to {rate.high:.2f})"
    return Fault(name, _mostly(rate), words)


def pairing(records: Sequence[Record]) -> dict[str, Any] | None:
    """How often the prediction under some commands is nearest to what the simulator makes of these same commands, of
    all kinds' outcomes; chance is one of their number. None without outcomes."""
    told = [r["outcomes"] for r in records if r.get("outcomes")]
    if not told:
        return None
    rates = {}
    for kind in ("true", *KINDS, GRIPPER):
        hits = [o["nearest"][kind] == kind for o in told if kind in o["nearest"]]
        rates[kind] = asdict(wilson(sum(hits), len(hits)))
    chance = float(np.mean([1 / len(o["nearest"]) for o in told]))
    return {"nearest_to_own_outcome": rates, "chance": chance, "repeats_db": mean([o["repeats"] for o in told])}


def states(records: Sequence[Record]) -> dict[str, Any] | None:
    """Errors of the predicted state per kind (model rows) and per field (robot units), beside a state that does not
    change. None without predicted states."""
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
    return {"error": kinds, "fields": fields, "windows": len(told)}


def paths(records: Sequence[Record]) -> dict[str, Any] | None:
    """Mean trajectory errors of predicted poses, beside a robot that stays where it was."""
    told = [r["path"] for r in records if r.get("path")]
    if not told:
        return None
    measures = ("rre_degrees", "rte", "ate")
    found = {who: {m: mean([t[who][m] for t in told]) for m in measures} for who in ("model", "last")}
    return {**found, "windows": len(told), "poses": told[0]["model"]["poses"]}


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
    told = [r["joint"] for r in records if r.get("joint")]
    if not told:
        return None
    cameras = {
        name: {who: mean([t["cameras"][name][who] for t in told]) for who in ("own", "last")}
        for name in told[0]["cameras"]
    }
    pairs = [(t["moving"]["own"], t["moving"]["recorded"]) for t in told if t["moving"]["own"] is not None]
    nearer = wilson(sum(own < other for own, other in pairs), len(pairs))
    return {"cameras": cameras, "nearer_to_its_own_commands": asdict(nearer), "windows": len(told)}


def values(records: Sequence[Record]) -> dict[str, Any] | None:
    """Predicted values against how the episodes ended; None without values or outcomes."""
    told = [(r["value"], r["success"]) for r in records if r.get("value") is not None and r.get("success") is not None]
    if not told:
        return None
    return calibrate([v for v, _ in told], [s for _, s in told]).facts()
