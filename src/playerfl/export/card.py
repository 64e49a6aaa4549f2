"""The model card: what a model predicts, from what, how well, how it was trained and what it is not for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from playerfl.export.folder import target_of
from playerfl.export.ranges import between
from playerfl.report.write.escaping import markdown

_KINDS = {
    "number": "a number",
    "boolean": "true or false",
    "percent": "a percentage",
    "ratio": "two numbers, such as 120/80",
    "time": "a time of day",
}
_MOST_SHOWN = 20
_RANGE_RULE = (
    "The limits of a range are quantiles with at least five rows beyond them, moved outwards; none is the value of one "
    "patient."
)


def card_text(about: Mapping[str, Any], *, has_onnx: bool, why_no_onnx: str | None) -> str:
    """README.md of a model folder; `about`: what model.json says."""
    parts = [
        _title(about),
        _inputs(about),
        _quality(about),
        _training(about),
        _limits(about),
        _disclosed(about),
        _use(about, has_onnx=has_onnx, why_no_onnx=why_no_onnx),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _title(about: Mapping[str, Any]) -> list[str]:
    target = target_of(about["encoding"])
    if target.classes:
        shown = ", ".join(map(markdown, target.classes[:_MOST_SHOWN]))
        more = ", …" if len(target.classes) > _MOST_SHOWN else ""
        says = f"It gives the probability of each of {len(target.classes)} classes: {shown}{more}."
    else:
        says = "It predicts a number" + (", in the target's own units." if "table" in about["encoding"] else ".")
    return [f"# A model of {markdown(target.name)} for {markdown(about['site'])}", "", says]


def _inputs(about: Mapping[str, Any]) -> list[str]:
    encoding = about["encoding"]
    if "table" in encoding:
        return ["## Inputs", "", *_table_inputs(encoding["table"], about["ranges"])]
    if "pictures" in encoding:
        side = encoding["pictures"]["side"]
        intro = f"PNG or JPEG images, scaled to {side} x {side} pixels, with colours from -1 to 1."
        usual = " and ".join(f"{r['column']} {between(r['low'], r['high'])}" for r in about["ranges"])
        return ["## Inputs", "", f"{intro} Usual ranges: {usual}; other images are marked." if usual else intro]
    shapes = "; ".join(
        f"`{record['name']}`, {record['dtype']} of the shape (rows{''.join(f', {n}' for n in record['shape'])})"
        for record in about["inputs"]
    )
    return ["## Inputs", "", f"Tensors, prepared as the task {markdown(about['task'])} prepares them: {shapes}."]


def _table_inputs(table: Mapping[str, Any], ranges: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = ["| column | content | typical in the training rows | usual range |", "|---|---|---|---|"]
    for column in table["columns"]:
        kind = column["kind"]
        content = _KINDS.get(kind["kind"]) or "one of: " + ", ".join(map(markdown, kind["categories"]))
        limits = [limits for limits in ranges if limits["column"] == kind["name"]]
        measured = kind["kind"] in ("number", "percent", "ratio")
        typical = ", ".join(f"{scale['centre']:.4g} ± {scale['spread']:.2g}" for scale in column["scales"])
        usual = ", ".join(between(limit["low"], limit["high"]) for limit in limits)
        rows.append(_row([markdown(kind["name"]), content, *([typical, usual] if measured else ["", ""])]))
    missing = (
        "A missing value is replaced by the typical value of its column."
        if table["fills_missing"]
        else "No value may be missing: the model was trained without missing values."
    )
    codes = ", ".join(map(markdown, table["missing_codes"]))
    meant = f" These values mean a missing one: {codes}." if codes else ""
    return [
        *rows,
        "",
        f"{missing}{meant} Columns must have these names; their order does not matter.",
        "",
        "Outside the usual range the model may only extrapolate; such values, and categories that the training rows "
        "do not have, are marked in predictions.",
    ]


def _quality(about: Mapping[str, Any]) -> list[str]:
    test = about["test"]
    lines = ["## How good it is", ""]
    if not test["scores"]:
        return [*lines, "No test scores are known."]
    lines += [f"On {test['rows']} test rows of {markdown(about['site'])}, which were not used for training:", ""]
    has_baseline = bool(test["baseline"])
    always = "always the most frequent class" if target_of(about["encoding"]).classes else "always the mean"
    head = ["score", "this model", *([always] if has_baseline else [])]
    lines += [_row(head), _row(["---", *["--:"] * (len(head) - 1)])]
    for name, value in test["scores"].items():
        of_baseline = test["baseline"].get(name)
        lines.append(
            _row(
                [
                    markdown(name),
                    _number(value) + _interval(test["intervals"].get(name)),
                    *([_number(of_baseline) if of_baseline is not None else ""] if has_baseline else []),
                ]
            )
        )
    return [*lines, "", _certainty(test)]


def _certainty(test: Mapping[str, Any]) -> str:
    if test["intervals"]:
        return "The brackets are 95 % intervals over the test rows."
    rows = test["rows"]
    if "accuracy" not in test["scores"] or not rows:
        return f"With {rows} test rows, other patients may give different numbers."
    share = 1.96 * (0.25 / rows) ** 0.5
    return f"With {rows} test rows, an accuracy is uncertain by up to ± {share:.2f}; other patients may differ."


def _training(about: Mapping[str, Any]) -> list[str]:
    experiment, layers = about["experiment"], about["layers"]
    others = [f"{site} ({rows} rows)" for site, rows in about["sites"].items() if site != about["site"]]
    together = f", together with {_listed(others)}" if others else ""
    lines = [
        "## How it was trained",
        "",
        f"With {markdown(experiment['algorithm']['name'])}, {experiment['rounds']} rounds, seed {experiment['seed']}, "
        f"on {about['sites'][about['site']]} training rows of {markdown(about['site'])}{together}.",
    ]
    if about["round"] is not None:
        lines.append(f"The site kept the model after round {about['round']}, chosen on its validation rows.")
    if layers["shared"] and layers["private"]:
        lines.append(
            f"The layers {_listed(layers['shared'])} are averages over the sites; {_listed(layers['private'])} never "
            f"left {markdown(about['site'])}."
        )
    elif layers["shared"]:
        lines.append("All layers are averages over the sites, or started from them.")
    else:
        lines.append("No layer was shared with another site.")
    if layers["reason"]:
        lines.append(f"Why the cut is there: {markdown(layers['reason'])}.")
    made_with = about["environment"]
    commit = f", commit {made_with['git_commit']}" if made_with.get("git_commit") else ""
    lines.append(
        f"Made with playerfl {made_with.get('playerfl', '?')}{commit}, torch {made_with.get('torch', '?')}, Python "
        f"{made_with.get('python', '?')}. `experiment.toml` has every setting."
    )
    return lines


def _limits(about: Mapping[str, Any]) -> list[str]:
    site = markdown(about["site"])
    return [
        "## What it is not for",
        "",
        f"- Patients of other sites: it was chosen and tested on rows of {site}"
        + (", and scales numbers as for that site.\n" if "table" in about["encoding"] else ".\n")
        + "- Rows measured in different units from its training rows, or coded differently.\n"
        "- Decisions without a person: it has not been validated for clinical use.\n"
        "- Probabilities are the network's own; check their calibration before you rely on them.",
    ]


def _disclosed(about: Mapping[str, Any]) -> list[str]:
    site, lines = markdown(about["site"]), ["## What it reveals about the training rows", ""]
    if "table" in about["encoding"]:
        columns = about["encoding"]["table"]["columns"]
        extremes = [
            column["kind"]["name"]
            for column in columns
            if any(scale["low"] is not None and scale["low"] != -scale["high"] for scale in column["scales"])
        ]
        lines.append(
            f"Besides the weights, the folder holds of each column of {site}: mean and spread (or median and robust "
            f"spread), the share of each category, and the usual range. {_RANGE_RULE}"
        )
        if extremes:
            lines.append(f"Exception: the clipping limits of {_listed(extremes)} are extreme values of single rows.")
    elif about["ranges"]:
        what = "brightness and contrast of the images" if "pictures" in about["encoding"] else "the inputs"
        lines.append(f"Besides the weights, the folder holds the usual range of {what} of {site}. {_RANGE_RULE}")
    else:
        lines.append("Nothing beyond the weights and the test scores.")
    lines.append("A model's weights may reveal more; ask before you pass it on.")
    return lines


def _use(about: Mapping[str, Any], *, has_onnx: bool, why_no_onnx: str | None) -> list[str]:
    encoding = about["encoding"]
    given = "new.csv" if "table" in encoding else "PICTURES" if "pictures" in encoding else "new.npz"
    lines = ["## How to use it", "", "```sh", f"playerfl predict . {given} --out predictions.csv", "```", ""]
    lines += [
        "Or in Python, with torch alone (`load_model.py` is in this folder):",
        "",
        "```python",
        *_code(about),
        "```",
        "",
    ]
    lines.append("`graph.json` lists the model's operations, `weights.safetensors` has its numbers; neither is code.")
    if has_onnx:
        lines.append(f"`model.onnx` is the same model for onnxruntime: {_onnx_words(encoding)}")
    else:
        lines.append(f"There is no ONNX file: {why_no_onnx}.")
    return lines


def _code(about: Mapping[str, Any]) -> list[str]:
    if "table" not in about["encoding"]:
        return ["from load_model import load", 'model = load(".")', "model.predictions(inputs)  # a tensor, as above"]
    row = {column["kind"]["name"]: _example(column) for column in about["encoding"]["table"]["columns"]}
    return ["from load_model import load", 'model = load(".")', f"model.predict([{row!r}])"]


def _example(column: Mapping[str, Any]) -> Any:
    kind = column["kind"]
    centre = column["scales"][0]["centre"] if column["scales"] else 0.0
    if kind["kind"] == "category":
        return kind["categories"][0]
    samples: dict[str, Any] = {"boolean": True, "percent": f"{centre:.0f} %", "ratio": "120/80", "time": "07:30"}
    return samples.get(kind["kind"], float(f"{centre:.3g}"))


def _onnx_words(encoding: Mapping[str, Any]) -> str:
    if "table" in encoding:
        filled = "" if encoding["table"]["fills_missing"] else " or missing"
        return (
            "its input `inputs` (float64) has one column per number, true/false (1 or 0) and category (1 for the one "
            "that applies, else 0), in the order of the table above, before scaling; a missing value is nan. It marks "
            "nothing and knows no categories: check rows first (`model.inputs` and `model.outside` of `load_model.py` "
            f"do). Its output is nan if an input is infinite{filled}."
        )
    if "pictures" in encoding:
        deep = (encoding["pictures"]["low"], encoding["pictures"]["high"]) != (0.0, 65535.0)
        scaled = "`inputs` has colours from -1 to 1" if deep else "`pixels` has colours from 0 to 255"
        return f"its input {scaled}, of images that are already scaled to that size, channels first."
    return "its inputs are those above."


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.4f}"


def _interval(bounds: Sequence[float] | None) -> str:
    return "" if bounds is None else f" ({bounds[0]:.4f} to {bounds[1]:.4f})"


def _listed(names: Sequence[str]) -> str:
    escaped = [markdown(name) for name in names]
    return escaped[0] if len(escaped) == 1 else f"{', '.join(escaped[:-1])} and {escaped[-1]}"
