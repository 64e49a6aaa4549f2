"""analyze_layers: the paper's four quantities for every layer, at every site and at three points in training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from playerfl.analysis.cka import Formula, Maps, gram, representations, similarity_between_sites
from playerfl.analysis.correlation import Correlation, correlate
from playerfl.analysis.gradient_variance import gradient_variance
from playerfl.analysis.hessian import Method, hessian_traces
from playerfl.analysis.moments import MOMENTS, weights_at_moments
from playerfl.data.examples import Examples, map_tensors, tensors_in
from playerfl.errors import ConfigError, DataError
from playerfl.layers.gradients import mean_gradient, preserve_state
from playerfl.layers.layer_map import LayerName, state_entries
from playerfl.layers.sensitivity import federation_sensitivity, layer_importance
from playerfl.runs.api import limited_threads
from playerfl.runs.experiment import Experiment
from playerfl.runs.run import Listener
from playerfl.runs.settings_table import with_settings
from playerfl.runs.setup import Setup, prepare_setup
from playerfl.tasks.load import load_task
from playerfl.tasks.task import Task
from playerfl.weights import Weights

QUANTITIES = {
    "gradient_variance": "gradient variance",
    "hessian": "Hessian eigenvalue sum / parameters",
    "cka": "CKA with the other sites",
    "score": "layer score s",
    "sensitivity": "federation sensitivity, % of the first layer",
}


@dataclass(frozen=True)
class LayerFinding:
    """One number: a quantity of one layer, at one site and moment."""

    seed: int
    moment: str
    site: str
    layer: LayerName
    quantity: str
    value: float
    standard_error: float | None = None


@dataclass(frozen=True)
class LayerAnalysis:
    """All findings, and how the quantities correlate."""

    task: str
    layers: tuple[LayerName, ...]
    findings: Sequence[LayerFinding]
    notes: tuple[str, ...] = ()

    def curves(self, quantity: str, moment: str) -> dict[tuple[int, str], list[float]]:
        """For each seed and site, one number per layer (nan if there is none)."""
        places = {layer: i for i, layer in enumerate(self.layers)}
        curves: dict[tuple[int, str], list[float]] = {}
        for finding in self.findings:
            if (finding.quantity, finding.moment) == (quantity, moment):
                curve = curves.setdefault((finding.seed, finding.site), [math.nan] * len(self.layers))
                curve[places[finding.layer]] = finding.value
        return curves

    def errors(self, quantity: str, moment: str) -> dict[LayerName, float]:
        """The mean standard error of each estimated layer."""
        errors: dict[LayerName, list[float]] = {}
        for finding in self.findings:
            if (finding.quantity, finding.moment) == (quantity, moment) and finding.standard_error is not None:
                errors.setdefault(finding.layer, []).append(finding.standard_error)
        return {layer: sum(values) / len(values) for layer, values in errors.items()}

    def correlations(self) -> dict[str, dict[str, dict[str, Correlation | None]]]:
        """Spearman's ρ over layers, by moment, then "score" or "sensitivity", then the other quantity.

        Federation sensitivity never decreases with depth, so its ρ is that of depth itself: any quantity that grows
        with depth has ρ = 1 with it. The ρ of the layer score says more.
        """
        return {
            moment: {
                measure: {
                    other: correlate(_matched(self.curves(measure, moment), self.curves(other, moment)))
                    for other in ("gradient_variance", "hessian", "cka")
                }
                for measure in ("score", "sensitivity")
            }
            for moment in MOMENTS
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "task": self.task,
            "layers": list(self.layers),
            "findings": [asdict(finding) for finding in self.findings],
            "correlations": {
                moment: {m: {o: c and asdict(c) for o, c in by.items()} for m, by in measures.items()}
                for moment, measures in self.correlations().items()
            },
            "notes": list(self.notes),
        }


def _matched(
    left: Mapping[tuple[int, str], list[float]], right: Mapping[tuple[int, str], list[float]]
) -> dict[object, tuple[list[float], list[float]]]:
    return {key: (curve, right[key]) for key, curve in left.items() if key in right}


@dataclass(frozen=True)
class AnalysisOptions:
    """How the quantities are computed."""

    rows: int = 256
    """Training examples per site for the Hessian; gradients use all of them."""
    probes: int = 32
    method: Method = "auto"
    inputs: int = 512
    """Inputs for CKA, an equal share from every site."""
    formula: Formula = "centred"
    maps: Maps = "flatten"
    normalise_variance: bool = False


Watch = Callable[[str, int], tuple[Listener | None, Callable[[], None]]]
"""Takes the name of a stage and its number of steps; returns a listener for rounds, and a function to call after
each step."""


_MODELS_OF_THE_RUN = (
    "the models at the end of federated training are those that the run's sites keep, after averaging: if two sites "
    "keep the model of the same round, their federated layers are identical and have a CKA of 1"
)


def _unwatched(what: str, steps: int) -> tuple[Listener | None, Callable[[], None]]:
    return None, lambda: None


def analyze_layers(
    task: str | Task,
    *,
    seeds: Sequence[int] = (0,),
    rounds: int | None = None,
    federated: str | Mapping[str, Weights] = "fedavg",
    settings: Mapping[str, Any] | Sequence[str] = (),
    options: AnalysisOptions | None = None,
    watch: Watch = _unwatched,
) -> LayerAnalysis:
    """Trains sites alone and together, and measures every layer at three moments.

    `federated`: the algorithm for the third moment, or each site's model after it. `rounds`, `settings`: as in
    `playerfl.run`.
    """
    if not seeds:
        raise ConfigError("give at least one seed")
    chosen = task if isinstance(task, Task) else load_task(task)
    given = analysis_table(chosen, rounds, settings)
    parts: list[LayerAnalysis] = []
    for seed in seeds:
        table = {**given, "seed": seed}
        experiment = Experiment.resolve(table, chosen)
        with limited_threads(experiment.threads):
            setup = prepare_setup(experiment, chosen)
            weights = weights_at_moments(
                table, chosen, setup, federated=federated, watch=lambda what, steps: watch(what, steps)[0]
            )
            parts.append(measure_moments(chosen.name, seed, setup, weights, options or AnalysisOptions(), watch))
    findings = [finding for part in parts for finding in part.findings]
    notes = [note for part in parts for note in part.notes]
    if not isinstance(federated, str):
        notes.append(_MODELS_OF_THE_RUN)
    return replace(parts[0], findings=findings, notes=tuple(dict.fromkeys(notes)))


def analysis_table(task: Task, rounds: int | None, settings: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """An experiment's settings without its algorithm."""
    table: dict[str, Any] = {"task": task.name}
    if rounds is not None:
        table["rounds"] = rounds
    table = with_settings(table, settings)
    if "algorithm" in table:
        raise ConfigError("an analysis chooses its own algorithms; leave algorithm settings out")
    return table


def measure_moments(
    name: str,
    seed: int,
    setup: Setup,
    weights: Mapping[str, Mapping[str, Weights]],
    options: AnalysisOptions,
    watch: Watch = _unwatched,
) -> LayerAnalysis:
    """The four quantities for given models, by moment and site."""
    layers, loss = setup.learner.layers, setup.learner.loss
    # A new model: the memory layout for fast convolutions does not allow batched second derivatives.
    model = setup.build_model()
    findings: list[LayerFinding] = []
    notes: list[str] = []
    probe_inputs = common_inputs({site: data.train for site, data in setup.sites.items()}, options.inputs)
    several = len(setup.sites) > 1
    if not several:
        notes.append("there is only one site, so there is no similarity between sites")
    _, tick = watch("layers measured", len(weights) * len(setup.sites) * len(layers.names))
    for moment, models in weights.items():
        grams = {}
        for site, held in models.items():
            load_weights(model, held)
            train = setup.sites[site].train
            with preserve_state(model):
                model.eval()
                gradients, _ = mean_gradient(model, _contiguous(train.batches(512)), loss)
            scores = layer_importance(dict(model.named_parameters()), gradients, layers)
            by_quantity = {
                "gradient_variance": gradient_variance(gradients, layers, normalise=options.normalise_variance),
                "score": scores,
                "sensitivity": _relative(federation_sensitivity(scores)),
            }
            findings += [
                LayerFinding(seed, moment, site, layer, quantity, value)
                for quantity, values in by_quantity.items()
                for layer, value in values.items()
            ]
            traces = hessian_traces(
                model, _contiguous(_first(train, options.rows)), loss, layers,
                method=options.method, probes=options.probes, seed=seed, tick=tick,
            )  # fmt: skip
            findings += [
                LayerFinding(seed, moment, site, layer, "hessian", trace.per_parameter, trace.error_per_parameter)
                for layer, trace in traces.items()
            ]
            if several:
                # The last layer's outputs are the logits, which the paper leaves out.
                kept = layers.names[:-1]
                outputs = representations(model, probe_inputs, layers, maps=options.maps)
                centre = options.formula != "printed"
                grams[site] = {layer: gram(outputs[layer], centre=centre) for layer in kept if layer in outputs}
        if several:
            for site, values in similarity_between_sites(grams, options.formula).items():
                findings.extend(
                    LayerFinding(seed, moment, site, layer, "cka", value) for layer, value in values.items()
                )
    if any(finding.quantity == "hessian" and finding.value < 0 for finding in findings):
        notes.append("some Hessian traces are negative; log axes show their size, with open markers")
    return LayerAnalysis(name, layers.names, findings, tuple(notes))


def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copies a site's weights into a model."""
    with torch.no_grad():
        for name, entry in state_entries(model).items():
            entry.copy_(weights[name])


def _relative(sensitivity: Mapping[str, float]) -> dict[str, float]:
    """F_l as a percentage of the first non-zero layer, as the paper plots it."""
    first = next((value for value in sensitivity.values() if value > 0), math.nan)
    return {layer: 100 * value / first for layer, value in sensitivity.items()}


def _first(examples: Examples, rows: int) -> Iterable[tuple[Any, Any]]:
    left = rows
    for inputs, targets in examples.batches(min(rows, 512)):
        taken = min(left, len(targets))
        yield map_tensors(inputs, lambda t, n=taken: t[:n]), targets[:taken]  # type: ignore[misc]
        left -= taken
        if left <= 0:
            return


def _contiguous(batches: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    return ((map_tensors(inputs, lambda t: t.cpu().contiguous()), targets.cpu()) for inputs, targets in batches)


def common_inputs(parts: Mapping[str, Examples], wanted: int) -> Any:
    """The same inputs for all models: an equal share from every site, limited by the smallest site."""
    share = min(wanted // len(parts), *(len(part) for part in parts.values()))
    if share < 1:
        raise DataError(f"{wanted} inputs are too few for {len(parts)} sites; give at least one per site")
    taken = [next(iter(_first(part, share)))[0] for _, part in sorted(parts.items())]
    columns = [torch.cat(column).cpu().contiguous() for column in zip(*map(tensors_in, taken), strict=True)]
    first = taken[0]
    if isinstance(first, Mapping):
        return dict(zip(first, columns, strict=True))
    return tuple(columns) if isinstance(first, tuple) else columns[0]
