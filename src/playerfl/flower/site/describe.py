"""What a job will do at this site, in words, for the person who approves it."""

from __future__ import annotations

from playerfl.algorithms import Algorithm, Local, PartialAlgorithm
from playerfl.errors import ConfigError
from playerfl.flower.site.contract import Contract
from playerfl.flower.site.privacy import epsilon
from playerfl.flower.wire.envelopes import Privacy
from playerfl.layers.layer_map import some
from playerfl.runs.experiment import Experiment


def described(contract: Contract) -> list[str]:
    """Sentences about a job: the model, the layers that will leave, the rounds, the privacy, and warnings."""
    experiment = Experiment.from_resolved(contract.terms.experiment)
    names = list(contract.layers)
    training = experiment.training
    batches = -(-contract.rows // training.batch_size)
    lines = [
        f"model: {len(names)} layers ({some(names, 6)}), fingerprint {contract.terms.model}",
        f"algorithm: {_settings(experiment.algorithm)}",
        f"data: this site's {contract.rows} training rows; options: {_settings(experiment.data) or 'none'}",
        f"layers that leave this site: {_leaving(experiment.build_algorithm(), names, contract.cut)}",
        f"rounds: {experiment.rounds}, each {training.local_epochs} epoch(s) of {batches} batches of up to "
        f"{training.batch_size} rows, {training.optimizer}, learning rate {training.learning_rate:g}",
        f"privacy: {_privacy(contract.privacy, experiment.rounds)}",
        f"merged with: at least {contract.terms.merge_sites} sites, according to the server",
        "also sent: the number of training rows, validation and test scores of every round",
    ]
    if batches == 1 and training.local_epochs == 1 and not contract.privacy.noise:
        lines.append(
            "WARNING: one batch holds all rows, so an upload is an exact gradient, from which a dishonest server can "
            "reconstruct rows more easily; ask for smaller batches, or for noise"
        )
    return lines


def _settings(table: dict[str, object]) -> str:
    rest = ", ".join(f"{key} = {value}" for key, value in table.items() if key != "name" and value is not None)
    return f"{table['name']} ({rest})" if "name" in table and rest else str(table.get("name", rest))


def _leaving(algorithm: Algorithm, names: list[str], cut: int | None) -> str:
    if isinstance(algorithm, Local):
        return "none"
    if getattr(algorithm, "private_pull", 0):
        return f"ALL of them ({some(names, 6)}): private_pull sends private layers too"
    if not isinstance(algorithm, PartialAlgorithm):
        return f"all of them ({some(names, 6)})"
    if cut is None:
        return (
            f"the first of {some(names, 6)}. The server decides once, after a measurement, how many; "
            "approve with --most-layers to set a limit"
        )
    if cut == 0:
        return "none"
    private = f"; private: {some(names[cut:], 6)}" if names[cut:] else "; NONE is private"
    return f"{some(names[:cut], 6)}{private}"


def _privacy(privacy: Privacy, rounds: int) -> str:
    parts = []
    if privacy.clip:
        parts.append(f"updates clipped to norm {privacy.clip:g}")
    if privacy.noise:
        parts.append(f"noise {privacy.noise:g} (ε = {epsilon(privacy.noise, rounds):.3g} for all rounds, δ = 1e-5)")
    if privacy.sensitivity_noise:
        parts.append(f"noise {privacy.sensitivity_noise:g} on layer scores (no guarantee)")
    if privacy.secure_range:
        parts.append("secure aggregation: the server sees sums only, if it follows the protocol")
    return "; ".join(parts) or "none: the server reads this site's uploads as they are"


def check_most_layers(contract: Contract, most_layers: int | None) -> None:
    """Refuses a limit that makes no sense for the model."""
    if most_layers is not None and not 0 <= most_layers <= len(contract.layers):
        raise ConfigError(f"--most-layers must be between 0 and {len(contract.layers)}, not {most_layers}")
