"""What a job will do at this site, in words, for the person who approves it."""

from __future__ import annotations

from playerfl.algorithms import Algorithm, Local, PartialAlgorithm
from playerfl.errors import ConfigError
from playerfl.flower.site.files.contract import Contract
from playerfl.flower.site.policy import Policy, Sharing, listed
from playerfl.flower.site.privacy import epsilon
from playerfl.layers.layer_map import some
from playerfl.runs.experiment import Experiment
from playerfl.wording import counted

_MOST_SHOWN = 200


def described(contract: Contract, policy: Policy) -> list[str]:
    """Sentences about a job: the model, the layers that will leave, the rounds, the privacy, and warnings."""
    experiment = Experiment.from_resolved(contract.terms.experiment)
    names = list(contract.layers)
    own_model = (
        f"; it is this site's own (--model) instead of the task's, and the server's is {experiment.model[-80:]!r}"
        if experiment.model is not None
        else ""
    )
    training = experiment.training
    batches = -(-contract.rows // training.batch_size)
    work = f"{counted(training.local_epochs, 'epoch')} of {counted(batches, 'batch', 'batches')}"
    lines = [
        f"model: {counted(len(names), 'layer')} ({some(names, 6)}), fingerprint {contract.terms.model}{own_model}",
        f"algorithm: {_settings(experiment.algorithm)}",
        f"data: this site's {counted(contract.rows, 'training row')}; options: {_settings(experiment.data) or 'none'}",
        f"layers that leave this site: {_leaving(experiment.build_algorithm(), contract)}",
        f"rounds: {experiment.rounds}, each {work} of up to {counted(training.batch_size, 'row')}, "
        f"{training.optimizer}, learning rate {training.learning_rate:g}",
        f"privacy: {_privacy(contract, policy.sharing, experiment.rounds)}",
        f"merged with: at least {counted(contract.terms.merge_sites, 'site')}, according to the server",
        f"also sent: {'; '.join(_also_sent(contract, policy.sharing))}",
    ]
    if kept := _kept(policy.sharing):
        lines.append(f"kept here by the policy: {', '.join(kept)}")
    if batches == 1 and training.local_epochs == 1 and not contract.privacy.noise:
        lines.append(
            "WARNING: one batch holds all rows, so an upload is an exact gradient, from which a dishonest server can "
            "reconstruct rows more easily; ask for smaller batches, or for noise"
        )
    return lines


def _settings(table: dict[str, object]) -> str:
    # Options come from the server: one with line breaks must not look like further lines of this description.
    rest = ", ".join(f"{key} = {_shown(value)}" for key, value in table.items() if key != "name" and value is not None)
    return f"{table['name']} ({rest})" if "name" in table and rest else str(table.get("name", rest))


def _shown(value: object) -> str:
    """A value; a very long one must not push the other lines off the screen."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} … ({len(text):,} characters in all)"


def _leaving(algorithm: Algorithm, contract: Contract) -> str:
    names, cut = list(contract.layers), contract.cut
    if isinstance(algorithm, Local):
        return "none"
    if getattr(algorithm, "private_pull", 0):
        return f"ALL of them ({some(names, 6)}): private_pull sends private layers too"
    if not isinstance(algorithm, PartialAlgorithm):
        return f"all of them ({some(names, 6)}){_kept_back(contract, names)}"
    if cut is None:
        return (
            f"the first of {some(names, 6)}. The server decides once, after a measurement, how many; "
            f"approve with --most-layers to set a limit{_kept_back(contract, names)}{_also_used(contract, [])}"
        )
    if cut == 0:
        return "none"
    private = f"; private: {some(names[cut:], 6)}" if names[cut:] else "; NONE is private"
    return f"{some(names[:cut], 6)}{private}{_kept_back(contract, names[:cut])}{_also_used(contract, names[cut:])}"


def _also_used(contract: Contract, private: list[str]) -> str:
    """Tensors of shared layers that private ones use too; all that several layers use, if nothing is private yet."""
    owner = {entry: layer for layer, entries in contract.layers.items() for entry in entries}
    users = {
        entry: [layer for layer in layers if layer != owner[entry] and (not private or layer in private)]
        for entry, layers in contract.tied.items()
        if owner[entry] not in private and entry not in contract.kept_back
    }
    return "".join(
        f"; {entry} leaves with {owner[entry]}, although it is part of {' and '.join(others)}, too"
        for entry, others in users.items()
        if others
    )


def _kept_back(contract: Contract, layers: list[str]) -> str:
    """What of these layers leaves, if not all of it does."""
    entries = [entry for layer in layers for entry in contract.layers[layer]]
    kept_back = set(contract.kept_back)
    leaving = [entry for entry in entries if entry not in kept_back]
    if len(leaving) == len(entries):
        return ""
    shown = f"{leaving[0]}{' …' if len(leaving) > 1 else ''}" if leaving else "none"
    return f"; of their {len(entries)} tensors {len(leaving)} leave ({shown}), the others are frozen or stay here"


def _also_sent(contract: Contract, sharing: Sharing) -> list[str]:
    """What the server learns besides the layers."""
    parts = ["the number of training rows"]
    if contract.numbers_at_start:
        parts.append(f"{listed(contract.numbers_at_start)}, measured on this site's rows before the first round")
    if contract.numbers_per_round:
        parts.append(f"{listed(contract.numbers_per_round)} in every round")
    if sharing.scores:
        parts.append("training, validation and test scores of every round")
    if sharing.column_names:
        parts.append("names of columns and classes, fingerprints of categories")
    if sharing.data_check != "none":
        parts.append(_CHECKS[sharing.data_check])
    if not contract.privacy.noise:
        parts.append("a fingerprint of the finished model")
    return parts


_CHECKS = {
    "findings": "how many warnings the data check has, by topic",
    "columns": "the data check's warnings by topic, and rounded medians and percentiles of columns",
}


def _kept(sharing: Sharing) -> list[str]:
    return [
        *([] if sharing.scores else ["scores"]),
        *([] if sharing.column_names else ["names of columns and classes"]),
        *(["the data check"] if sharing.data_check == "none" else []),
    ]


def _privacy(contract: Contract, sharing: Sharing, rounds: int) -> str:
    privacy, parts = contract.privacy, []
    if privacy.clip:
        parts.append(f"updates clipped to norm {privacy.clip:g}")
    if privacy.noise:
        parts.append(f"noise {privacy.noise:g} (ε = {epsilon(privacy.noise, rounds):.3g} for all rounds, δ = 1e-5)")
        uncounted = [*contract.numbers_at_start, *(["scores"] if sharing.scores else [])]
        if uncounted:
            parts.append(f"ε does not cover {' and '.join(uncounted)}, which leave without noise")
    if privacy.sensitivity_noise:
        parts.append(f"noise {privacy.sensitivity_noise:g} on layer scores (no guarantee)")
    if privacy.secure_range:
        parts.append("secure aggregation: the server sees sums only, if it follows the protocol")
    return "; ".join(parts) or "none: the server reads this site's uploads as they are"


def check_most_layers(contract: Contract, most_layers: int | None) -> None:
    """Refuses a limit that makes no sense for the model."""
    if most_layers is not None and not 0 <= most_layers <= len(contract.layers):
        raise ConfigError(f"--most-layers must be between 0 and {len(contract.layers)}, not {most_layers}")
