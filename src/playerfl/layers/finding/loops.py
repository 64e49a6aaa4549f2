"""Long loops are shortened before blocks are looked for: layers do not depend on how often a loop turns, but to compare
each of a thousand time steps with every other takes a minute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from playerfl.layers.finding.trace import Step, Trace

_LONG = 24
"""Loops with at most this many turns are left as they are."""
_FIRST, _LAST = 8, 4
"""The turns that are kept of a longer loop: more at the beginning than a block has kernels in a row."""
_RECOGNISED_BY = 4
"""This many steps in a row that ran before are taken for the beginning of another turn."""


_Names = frozenset[str | int]


def with_short_loops(trace: Trace) -> Trace:
    """A trace without the middle turns of its long loops; what read their results reads those of an earlier turn."""
    while True:
        shorter = _without_middle_turns(trace)
        if len(shorter.steps) == len(trace.steps):
            return trace
        trace = shorter  # once more, because a loop may turn inside another


def _without_middle_turns(trace: Trace) -> Trace:
    source = list(range(len(trace.steps)))
    """For each step, the step whose result is read instead of its own."""
    paths = _Paths(trace.steps)
    for start, length, turns in _loops(trace.steps):
        if not paths.are_alike(start, length, turns):
            continue
        kept = start + _FIRST * length
        for number in range(kept, start + (turns - _LAST) * length):
            source[number] = kept - length + (number - start) % length
    left = [number for number, instead in enumerate(source) if instead == number]
    numbers = {old: new for new, old in enumerate(left)}

    def renumbered(step: Step) -> Step:
        inputs = dict.fromkeys(numbers[source[number]] for number in step.inputs)
        return replace(step, number=numbers[step.number], inputs=list(inputs))

    return replace(
        trace,
        steps=[renumbered(trace.steps[number]) for number in left],
        buffers={name: numbers[source[number]] for name, number in trace.buffers.items()},
    )


class _Paths:
    """Where values come from and go to: the nearest units (or inputs of the model) behind and ahead of each step."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._names = [
            frozenset({step.unit.name if step.unit is not None else step.number})
            if step.unit is not None or step.operation == "input"
            else None
            for step in steps
        ]
        self._readers: list[list[int]] = [[] for _ in steps]
        self._behind: list[_Names] = []
        self._ahead: list[_Names] = [frozenset()] * len(steps)
        for step in steps:
            self._behind.append(self._union(self._behind, step.inputs))
            for number in step.inputs:
                self._readers[number].append(step.number)
        for step in reversed(steps):
            self._ahead[step.number] = self._union(self._ahead, self._readers[step.number])

    def _union(self, known: list[_Names], numbers: Iterable[int]) -> _Names:
        return frozenset().union(*(self._names[n] or known[n] for n in numbers))

    def are_alike(self, start: int, length: int, turns: int) -> bool:
        """Whether each middle turn of a loop is between the same units as the last turn that is kept before them. If
        each column has a map of its own, they are not: another column cannot stand for it."""
        end = start + turns * length

        def around(turn: int) -> list[tuple[_Names, _Names]]:
            first = start + turn * length
            return [
                (
                    self._union(self._behind, (n for n in self._steps[number].inputs if n < start)),
                    self._union(self._ahead, (n for n in self._readers[number] if n >= end)),
                )
                for number in range(first, first + length)
            ]

        kept = around(_FIRST - 1)
        return all(around(turn) == kept for turn in range(_FIRST, turns - _LAST))


def _loops(steps: list[Step]) -> list[tuple[int, int, int]]:
    """The first step of each long loop, the steps in a turn, and the turns."""
    kinds: dict[tuple[object, ...], int] = {}
    codes = [
        kinds.setdefault((step.operation, step.where, step.shape, step.unit and step.unit.name), len(kinds))
        for step in steps
    ]
    found = []
    seen: dict[tuple[int, ...], int] = {}
    checked: dict[int, int] = {}
    """For each length, up to where no long loop has turns of this length."""
    number = 0
    while number + _RECOGNISED_BY <= len(codes):
        beginning = tuple(codes[number : number + _RECOGNISED_BY])
        length = number - seen.get(beginning, number)
        seen[beginning] = number
        if length and number >= checked.get(length, 0):
            end = number
            while end < len(codes) and codes[end] == codes[end - length]:
                end += 1
            turns = (end - number) // length + 1
            if turns > _LONG:
                found.append((number - length, length, turns))
                seen.clear()
                number = end
                continue
            checked[length] = end
        number += 1
    return found
