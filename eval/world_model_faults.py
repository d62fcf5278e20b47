"""What evaluations of world models are known to go wrong by, each looked for in the records of many windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cosmos_robot.eval.statistics import Share, clustered
from cosmos_robot.eval.world_model_actions import KINDS
from cosmos_robot.eval.world_model_metrics import decibels
from cosmos_robot.eval.world_model_probes import AS_THEY_ARE
from cosmos_robot.eval.world_model_verdicts import LEAST_EPISODES, LEAST_WINDOWS, Record, enough, in_words

LEAK_DB = 6.0
"""By how much a prediction under commands that were not run may not beat the last frame where something moved."""
UNMOVED = 0.01
"""Of the squared change that really came about: a prediction that other commands change by less ignores them."""
STILL_RATIO = 0.1
"""Of the true motion: a model whose predictions change less repeats what it was shown."""
BETTER = 0.9
"""What another scale or order must bring the error down to, to count as better."""


@dataclass(frozen=True)
class Fault:
    """Something that is wrong, or not. found: True where it shows on most windows, False where it does not, both with
    the whole interval, else None: it could not be looked for, or the windows or episodes are too few to tell. evidence:
    figures, in words, and why nothing is said."""

    name: str
    found: bool | None
    evidence: str


def faults(records: Sequence[Record]) -> list[Fault]:
    """Each fault, found or not."""
    moving = [r for r in records if r["error"].get("last")]
    return [_ignores(moving), _still(moving), _leaks(moving), _scale(moving), _exchanged(moving), _mixed(records)]


def can_tell(windows: int, episodes: int) -> bool:
    """Whether a fault that shows on every one of so many windows, evenly of so many episodes, is found."""
    share = clustered([True] * windows, [window % max(1, episodes) for window in range(windows)])
    return enough(share) and share.low > 0.5


def shortfalls(episodes: int, windows: int, probed: int) -> list[str]:
    """What the numbers asked for cannot suffice for, and the flag that changes it. windows, probed: of each episode."""
    held, tried = episodes * windows, episodes * min(probed, windows)
    asked = f"{held} windows of {episodes} episodes"
    if held < LEAST_WINDOWS or episodes < LEAST_EPISODES:
        needed = f"a verdict and a fault need {LEAST_WINDOWS} windows of {LEAST_EPISODES} episodes"
        return [f"at most {asked}: {needed}; raise --episodes{'' if episodes < LEAST_EPISODES else ' or --windows'}"]
    if not can_tell(held, episodes):
        return [f"at most {asked}: too few for any fault to be found or ruled out; raise --episodes"]
    if probed and not can_tell(tried, episodes):
        return [
            f"at most {tried} probed windows of {episodes} episodes: too few to find or rule out that commands arrive "
            "at another scale or cameras are exchanged; raise --episodes or --probed"
        ]
    return []


def _judged(name: str, share: Share, what: str, more: str = "") -> Fault:
    words = f"{what} on {in_words(share)}{more}"
    if not enough(share):
        needed = f"at least {LEAST_WINDOWS} windows of {LEAST_EPISODES} episodes are needed"
        return Fault(name, None, f"{words}; {needed}")
    if share.low <= 0.5 <= share.high:
        return Fault(name, None, f"{words}; too few to tell whether that is most, raise --episodes")
    return Fault(name, share.low > 0.5, words)


def _ignores(records: Sequence[Record]) -> Fault:
    """Falsified commands change the prediction by next to nothing, beside what really changed."""
    flags, runs = [], []
    for r in records:
        effects = [r["effect"][kind] for kind in KINDS if r["effect"].get(kind) is not None]
        if effects:
            flags.append(max(effects) < UNMOVED * r["error"]["last"])
            runs.append(r["run"])
    what = "falsified commands leave the prediction nearly as it is"
    return _judged("ignores the commands", clustered(flags, runs), what)


def _still(records: Sequence[Record]) -> Fault:
    told = [r for r in records if r["motion_ratio"] is not None]
    share = clustered([r["motion_ratio"] < STILL_RATIO for r in told], [r["run"] for r in told])
    what = f"where something moved, predictions change by less than {STILL_RATIO:g} of what really changed"
    middle = f", by {np.median([r['motion_ratio'] for r in told]):.2f} of it in the median" if told else ""
    return _judged("repeats the last frame", share, what, middle)


def _leaks(records: Sequence[Record]) -> Fault:
    """Under commands that were not run, what happened should not be predicted better than by the last frame."""
    gains, runs = [], []
    for r in records:
        wrong = [r["error"][kind] for kind in ("zero", "mirrored") if r["error"].get(kind) is not None]
        if wrong:
            gains.append(decibels(max(wrong)) - decibels(r["error"]["last"]))
            runs.append(r["run"])
    what = (
        f"told to stand still or to move the other way, it predicts what happened {LEAK_DB:g} dB better than the last "
        "frame does"
    )
    middle = f", {np.median(gains):+.1f} dB in the median" if gains else ""
    return _judged("a future frame leaks in", clustered([gain >= LEAK_DB for gain in gains], runs), what, middle)


def _scale(records: Sequence[Record]) -> Fault:
    """Motions multiplied by some factor are predicted better than as they were commanded: a normaliser that was left
    out, or applied twice."""
    name, probed = "commands arrive at another scale", [r for r in records if r.get("scales")]
    if not probed:
        return Fault(name, None, "not tried: no probes were run")
    variants = [
        {"as commanded": r["error"]["true"] / r["error"]["last"]}
        | {f"motions times {k}": e / r["error"]["last"] for k, e in r["scales"].items() if e is not None}
        for r in probed
    ]
    return _best(name, "as commanded", variants, [r["run"] for r in probed])


def _exchanged(records: Sequence[Record]) -> Fault:
    """With cameras exchanged the model beats the last frame, and as they are it does not or does so by less."""
    name, probed = "cameras are exchanged", [r for r in records if len(r.get("exchanged") or {}) > 1]
    probed = [r for r in probed if r["exchanged"].get(AS_THEY_ARE) is not None]
    if not probed:
        return Fault(name, None, "not tried: one camera, no probes were run, or next to nothing moved")
    variants = [{order: ratio for order, ratio in r["exchanged"].items() if ratio is not None} for r in probed]
    return _best(name, AS_THEY_ARE, variants, [r["run"] for r in probed])


def _best(name: str, plain: str, variants: Sequence[Mapping[str, float]], runs: Sequence[str]) -> Fault:
    """Whether some variant is better than the ``plain`` one, and than the last frame.

    variants: for each window the error of each variant over the last frame's, the plain one's among them. Where none is
    below 1 on most windows the model predicts too badly for the comparison to tell anything.
    """
    shares, able = {}, []
    for variant in dict.fromkeys(v for tried in variants for v in tried):
        pairs = [(t[variant], t[plain], run) for t, run in zip(variants, runs, strict=True) if variant in t]
        able.append(np.mean([error < 1 for error, _, _ in pairs]) > 0.5)
        if variant != plain:
            better = [error < BETTER * min(own, 1.0) for error, own, _ in pairs]
            shares[variant] = clustered(better, [run for _, _, run in pairs])
    if not shares:
        return Fault(name, None, "not tried: next to nothing moved")
    variant = max(shares, key=lambda v: shares[v].rate)
    fault = _judged(name, shares[variant], f"{variant}: predicted better than {plain}, and than the last frame,")
    if fault.found is False and not any(able):
        weak = f"neither {plain} nor otherwise is the last frame beaten on most windows, so a fault would not show"
        return Fault(name, None, f"{fault.evidence}; {weak}")
    return fault


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
    share = clustered(flags, [r["run"] for r in records])
    return _judged(name, share, "the prediction for one camera shows what another saw, and the other way round,")
