"""Which jobs may share a stack, which of them are neighbours in it, and how wide their batches are."""

from __future__ import annotations

from collections.abc import Hashable

from playerfl.data.examples import TensorExamples
from playerfl.learning.job import EvalJob, Job, TrainJob

# Weights in a stack. Gradients and optimiser state make it four times as much, which should fit in the cache.
STACK_NUMBERS = 2_000_000
# The width of a batch is a multiple of this many rows; Layout says why.
LANES = 32


def group_of(job: Job) -> Hashable | None:
    """Jobs with equal groups may be stacked; None if this one may not."""
    learner = job.learner
    if learner.trainer != "stacked":
        return None
    if isinstance(job, EvalJob):
        tensors = all(isinstance(examples, TensorExamples) for examples in job.splits.values())
        padded = ((split, padded_rows(len(examples))) for split, examples in job.splits.items())
        return (id(learner), *padded) if tensors and job.splits else None
    touched = job.measure is not None and job.measure.embedding_rows == "touched"
    if touched or job.attach or not isinstance(job.examples, TensorExamples) or not _in_step(job):
        return None
    pulled = None if job.pull is None else (job.pull.strength, frozenset(job.pull.towards))
    return (
        id(learner),
        (type(job.optimizer), job.optimizer.slots, job.optimizer.inner_steps),
        job.epochs,
        job.batch_size,
        batch_width(job),
        job.only,
        pulled,
        job.measure,
    )


def _in_step(job: TrainJob) -> bool:
    """Whether all parameters have taken the same number of steps: a stack keeps one count per model."""
    for slot in job.optimizer.counts:
        known = job.state.get(slot, {})
        held = [known.get(name) for name in job.learner.trainable(job.only)]
        if any(count is not held[0] and (count is None or held[0] is None or count != held[0]) for count in held):
            return False
    return True


def batch_width(job: TrainJob) -> int:
    """Rows of a batch with its padding: given by the batch size, or less at a site with far fewer rows."""
    enough = LANES
    while enough < len(job.examples):
        enough *= 2
    return min(enough, padded_rows(job.batch_size))


def padded_rows(rows: int) -> int:
    return -(-rows // LANES) * LANES


def batch_count(job: TrainJob) -> int:
    return -(-len(job.examples) // job.batch_size)


def cohort_key(job: TrainJob) -> Hashable:
    """Equal for models that may share a cohort: the same number of batches, optimiser, rates and counts of steps."""
    name = job.learner.trainable(job.only)[0]
    held = [job.state.get(slot, {}).get(name) for slot in job.optimizer.counts]
    return (
        batch_count(job),
        job.optimizer,
        job.rate_factors,
        *(0.0 if count is None else float(count) for count in held),
    )
