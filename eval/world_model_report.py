"""The report of a world-model evaluation: verdict, faults, tables, curves and films in one HTML file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cosmos_robot.eval.calibration import plot_calibration
from cosmos_robot.eval.report import STYLE
from cosmos_robot.eval.world_model_actions import GRIPPER, KINDS
from cosmos_robot.eval.world_model_verdicts import valued

METHODS = {
    "model": "the model",
    "last": "last frame repeated",
    "mean": "episode mean",
    "untrained": "weights shuffled",
}
MEASURES = {"psnr": "PSNR, dB", "ssim": "SSIM", "moving_psnr": "PSNR where something moved, dB"}
VERDICTS = {"verdict": "Action following", "gripper_verdict": "The gripper", "state_verdict": "The predicted state"}
COLOURS = {"model": "#1f6feb", "last": "#c33", "mean": "#888", "untrained": "#e3963e"}
_STYLE = STYLE + (
    "svg.curves{width:100%;max-width:42rem;height:auto}"
    "svg .tick{text-anchor:middle}svg.calibration{max-width:24rem}.films img{width:100%;max-width:60rem}"
    "svg .zero{stroke-dasharray:4}svg .count{fill:#88a}"
)


def print_result(content: Mapping[str, Any], console: Console) -> None:
    """The table of means, the faults and the verdict."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for words in MEASURES.values():
        table.add_column(words, justify="right")
    for method, scores in content["overall"].items():
        table.add_row(METHODS[method], *(_number(scores[name]) for name in MEASURES))
    console.print(table)
    console.print(_counted(content), markup=False, highlight=False)
    for sentence in _broken(content):
        console.print(sentence, style="red", markup=False, highlight=False)
    for fault in content["faults"]:
        word = {True: "FOUND", False: "not found", None: "cannot be said"}[fault["found"]]
        style = "red" if fault["found"] else None
        console.print(f"{fault['name']}: {word}; {fault['evidence']}", style=style, markup=False, highlight=False)
    for name in VERDICTS:
        if content[name]:
            console.print(content[name]["sentence"], style="bold", markup=False, highlight=False)
            for reason, count in content[name]["left_out"].items():
                console.print(f"  {count} windows not tested: {reason}", markup=False, highlight=False)
    if content["value_calibration"]:
        console.print(_values_sentence(content["value_calibration"]), markup=False, highlight=False)
    if content["ranking"]:
        console.print(ranking_sentence(content["ranking"]), markup=False, highlight=False)
    for name, why in content["not_available"].items():
        console.print(f"{name}: not available, {why}", style="dim", markup=False, highlight=False)


def write_report(path: Path, content: Mapping[str, Any], films: Path | None) -> Path:
    """Write a self-contained HTML file (films and pictures inside it) and return its path. films: where those of the
    records lie, None for none."""
    title = f"World model {content['checkpoint']} on {content['source']}"
    sections = [
        _verdicts(content),
        _faults(content["faults"]),
        _scores(content),
        _more(content),
        "" if films is None else _films(content["records"], films),
    ]
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><main><h1>{escape(title)}</h1>{''.join(sections)}</main></body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    return path


def unfilmed(records: Sequence[Mapping[str, Any]], runs: Sequence[str], folder: Path | None) -> int:
    """How many of the episodes ``runs`` that have windows lack a film in ``folder``; 0 where none is asked for."""
    measured = {record["run"] for record in records} & set(runs)
    filmed = {record["run"] for record in records if folder is not None and _has_film(record, folder)}
    return 0 if folder is None else len(measured - filmed)


def _has_film(record: Mapping[str, Any], folder: Path) -> bool:
    return bool(record.get("film")) and all((folder / record[part]).is_file() for part in ("film", "still"))


def ranking_sentence(ranking: Mapping[str, Any]) -> str:
    """What came of ranking policies, in words."""
    found = ranking["agreement"]
    if found["spearman"] is None:
        return "policy ranking: no correlation, all policies of one side score the same"
    return (
        f"policy ranking: Spearman {found['spearman']:+.2f} ({_number(found['low'])} to {_number(found['high'])}, "
        f"bootstrap over {found['starts']} starts) between the model's values and the simulator's successes of "
        f"{found['policies']} policies"
    )


def _verdicts(content: Mapping[str, Any]) -> str:
    out = []
    for name in VERDICTS:
        verdict = content[name]
        if not verdict:
            continue
        rows = (
            "".join(f"<tr><td>{kind}</td><td>{_rate(verdict['wins'][kind])}</td></tr>" for kind in verdict["wins"])
            + f"<tr><td><b>all kinds</b></td><td>{_rate(verdict['all_kinds'])}</td></tr>"
        )
        left = "".join(f"<p>{n} windows not tested: {escape(why)}</p>" for why, n in verdict["left_out"].items())
        if verdict["not_finite"]:
            left += f"<p>{verdict['not_finite']} of the tested windows with a prediction that is no number</p>"
        kind = {True: "good", False: "bad", None: ""}[verdict["follows"]]
        out.append(
            f'<section><h2>{VERDICTS[name]} <span class="{kind}">{escape(_word(verdict["follows"]))}</span></h2>'
            f"<p>{escape(verdict['sentence'])}</p><table><thead><tr><th>true commands against</th>"
            f"<th>wins (95 % interval by episode)</th></tr></thead><tbody>{rows}</tbody></table>{left}</section>"
        )
    return "".join(out)


def _word(follows: bool | None) -> str:
    return {True: "follows", False: "does not follow", None: "cannot be said"}[follows]


def _faults(faults: Sequence[Mapping[str, Any]]) -> str:
    marks = {
        True: '<span class="bad">found</span>',
        False: '<span class="good">not found</span>',
        None: "cannot be said",
    }
    rows = "".join(
        f"<tr><td>{escape(f['name'])}</td><td>{marks[f['found']]}</td><td>{escape(f['evidence'])}</td></tr>"
        for f in faults
    )
    return f"<section><h2>Faults looked for</h2><table><tbody>{rows}</tbody></table></section>"


def _scores(content: Mapping[str, Any]) -> str:
    head = "".join(f"<th>{escape(words)}</th>" for words in MEASURES.values())
    rows = "".join(
        f"<tr><td>{escape(METHODS[method])}</td>" + "".join(f"<td>{_number(found[m])}</td>" for m in MEASURES) + "</tr>"
        for method, found in content["overall"].items()
    )
    curves = "".join(
        f"<figure>{_curves(content['scores'], camera, measure)}<figcaption>{escape(camera)}: {escape(words)} over "
        "control steps</figcaption></figure>"
        for camera in dict.fromkeys(row["camera"] for row in content["scores"])
        for measure, words in MEASURES.items()
        if measure != "ssim"
    )
    key = " ".join(
        f'<span class="key" style="background:{COLOURS[method]}"></span> {escape(METHODS[method])}'
        for method in content["overall"]
    )
    full = "".join(
        f"<tr><td>{row['step']}</td><td>{escape(row['camera'])}</td><td>{escape(METHODS[row['method']])}</td>"
        + "".join(f"<td>{_number(row[m])}</td>" for m in MEASURES)
        + "</tr>"
        for row in content["scores"]
    )
    return (
        f"<section><h2>Pictures</h2><p>{escape(_counted(content))} Identical pictures count as 60 dB."
        + f"{_joints(content)}</p>"
        + "".join(f'<p class="bad">{escape(sentence)}</p>' for sentence in _broken(content))
        + f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p>{key}</p>{curves}<details><summary>by step and camera</summary><table><thead><tr><th>step</th>"
        f"<th>camera</th><th></th>{head}</tr></thead><tbody>{full}</tbody></table></details></section>"
    )


def _joints(content: Mapping[str, Any]) -> str:
    recorded = " The later chunks of a rollout are given the true recorded state, since the model predicts none."
    return recorded if content.get("states_at_joints") == "recorded" else ""


def _curves(scores: Sequence[Mapping[str, Any]], camera: str, measure: str) -> str:
    """One line per method over steps."""
    width, height, left, top = 520, 160, 44, 10
    found = [row for row in scores if row["camera"] == camera and row[measure] is not None]
    if not found:
        return "<p>nothing moved</p>"
    values, last = [row[measure] for row in found], max(row["step"] for row in found)
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 1, high + 1)

    def at(step: float, value: float) -> str:
        return f"{left + (width - left) * step / last:.1f},{top + height * (high - value) / (high - low):.1f}"

    parts = [f'<rect class="panel" x="{left}" y="{top}" width="{width - left}" height="{height}"/>']
    for method, colour in COLOURS.items():
        line = [at(row["step"], row[measure]) for row in found if row["method"] == method]
        if line:
            parts.append(f'<polyline points="{" ".join(line)}" style="stroke:{colour};stroke-width:2"/>')
            parts += [f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="3" fill="{colour}"/>' for p in line]
    for value in (low, high):
        y = at(0, value).split(",")[1]
        parts.append(f'<text class="bound" x="{left - 4}" y="{float(y) + 4:.1f}">{value:.3g}</text>')
    for step in sorted({row["step"] for row in found}):
        x = at(step, low).split(",")[0]
        parts.append(f'<text class="tick" x="{x}" y="{top + height + 14}">{step}</text>')
    return (
        f'<svg class="curves" viewBox="0 0 {width + 10} {top + height + 20}" role="img" '
        f'aria-label="{escape(measure)} of {escape(camera)}">{"".join(parts)}</svg>'
    )


def _more(content: Mapping[str, Any]) -> str:
    """What else was measured, each as a list of figures, and what was not and why."""
    named = {
        "states": "Predicted state (error, model rows; fields in the robot's units)",
        "path": "Predicted poses against true ones",
        "inverse": "Commands that an inverse model recovers from videos",
        "joint": "Video of the policy's own commands against the simulator running them",
        "pairing": "Predictions against the simulator's outcome of the same commands",
        "value_calibration": "Values against discounted returns",
        "ranking": "Policies ranked by the model and by the simulator",
    }
    out = []
    for key, words in named.items():
        if content[key]:
            drawn = _drawn_values(content) if key == "value_calibration" else ""
            out.append(f"<section><h2>{escape(words)}</h2>{drawn}{_figures(content[key])}</section>")
    absent = "".join(f"<dt>{escape(k)}</dt><dd>{escape(why)}</dd>" for k, why in content["not_available"].items())
    return "".join(out) + (f"<section><h2>Not available</h2><dl>{absent}</dl></section>" if absent else "")


def _drawn_values(content: Mapping[str, Any]) -> str:
    said = content["value_calibration"]
    found = valued(content["records"], said["gamma"], said["cut_at"])
    drawn = "" if found is None else plot_calibration(found)
    return f"<p>{escape(_values_sentence(said))}</p>{drawn}"


def _values_sentence(found: Mapping[str, Any]) -> str:
    """How far values are from returns, and what was left out."""
    cut = ""
    if found["cut_off_windows"]:
        cut = (
            f"; {found['cut_off_windows']} windows of {found['cut_off_episodes']} episodes left out, which --steps "
            f"{found['cut_at']} ended before their end"
        )
    if "ece" not in found:
        return f"values: nothing to hold against returns{cut}"

    def ranged(name: str) -> str:
        low, high = found[f"{name}_low"], found[f"{name}_high"]
        return _number(found[name]) + ("" if low is None else f" ({_number(low)} to {_number(high)})")

    auroc = "none, all went one way" if found["auroc"] is None else ranged("auroc")
    broken = f"; {found['left_out']} values are no number" if found["left_out"] else ""
    return (
        f"values against returns discounted by {found['gamma']:g} a step: ECE {ranged('ece')}, mean absolute error "
        f"{ranged('mae')}, a constant's {_number(found['constant_mae'])}; AUROC of success {auroc}; {found['count']} "
        f"windows of {found['episodes']} episodes{cut}{broken}"
    )


def _counted(content: Mapping[str, Any]) -> str:
    moving = content["overall"]["model"]["moving_windows"]
    return (
        f"{content['windows']} windows of {content['episodes']} episodes; something moved, and has a PSNR, on {moving} "
        "of them."
    )


def _broken(content: Mapping[str, Any]) -> list[str]:
    return [
        f"{what}: the prediction is no number on {count} windows; they count as lost where it has a verdict, and are "
        "in no mean"
        for what, count in content["not_finite"].items()
    ]


def _figures(value: Any) -> str:
    if isinstance(value, Mapping):
        rows = "".join(f"<dt>{escape(str(k))}</dt><dd>{_figures(v)}</dd>" for k, v in value.items())
        return f"<dl>{rows}</dl>"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"{len(value)} entries, see the JSON" if value and isinstance(value[0], Mapping) else escape(str(value))
    return _number(value) if isinstance(value, float) else escape(str(value))


def _films(records: Sequence[Mapping[str, Any]], folder: Path) -> str:
    out = []
    for record in records:
        if not _has_film(record, folder):
            continue
        film = base64.b64encode((folder / record["film"]).read_bytes()).decode()
        still = base64.b64encode((folder / record["still"]).read_bytes()).decode()
        error = record["error"]
        words = ", ".join(f"{k} {error[k]:.0f}" for k in ("true", *KINDS, GRIPPER, "last") if error.get(k) is not None)
        out.append(
            f'<figure><video controls muted loop playsinline preload="metadata" src="data:video/mp4;base64,{film}">'
            f'</video><img alt="the last frames" src="data:image/png;base64,{still}">'
            f"<figcaption>{escape(record['key'])}: {escape(record['instruction'])}. "
            "Truth, predicted, last frame; below the end, with the difference. "
            f"Squared error where something moved: {escape(words or 'nothing moved')}</figcaption></figure>"
        )
    return f'<section class="films"><h2>Films</h2>{"".join(out)}</section>' if out else ""


def _rate(rate: Mapping[str, Any]) -> str:
    if not rate["windows"]:
        return "no window"
    return (
        f"{rate['successes']}/{rate['windows']} of {rate['episodes']} episodes, {rate['rate']:.2f} "
        f"({rate['low']:.2f} to {rate['high']:.2f})"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 10 else f"{value:.2f}"
