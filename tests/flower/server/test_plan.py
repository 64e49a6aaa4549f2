"""The simulation behind `playerfl flower plan`: sums to check by hand, and what must never make it faster."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import playerfl, refused
from playerfl.errors import ConfigError
from playerfl.flower.plan.costs import FRAME_BYTES, MEASURED, Costs, ProgramCost, Size
from playerfl.flower.plan.events import Resource, Simulation, Steps
from playerfl.flower.plan.federation import Federation
from playerfl.flower.plan.forecast import needs, plan
from playerfl.flower.plan.simulate import simulate

PAUSES = 3.0 + 0.2 + 0.5 + 1.0
"""The most that waiting between two looks adds to a round: at the node, the postman, the node again, and the server."""
FREE = Costs()
IDEAL = Federation(
    sites=1,
    parameters=10**6,
    tensors=4,
    training=0.0,
    spread=0.0,
    site_mbits=1e9,
    server_mbits=1e9,
    delay=0.0,
    ask_again=1e6,
    deadline=1e7,
)


def seconds(federation: Federation, costs: Costs = FREE, **options: Any) -> float:
    return simulate(federation, costs, **options).seconds


def test_without_delays_a_round_is_the_sum_of_its_costs() -> None:
    costs = Costs(
        link=ProgramCost(1.0, 0.1, 1e-6),
        job=ProgramCost(2.0, 0.2, 2e-6),
        node=ProgramCost(3.0, 0.3, 3e-6),
        agent=ProgramCost(4.0, 0.4, 4e-6),
        merge=5e-6,
    )
    size = Size.of(10**6, 4)
    # In and out of the SuperLink, down and up; two messages at the job and at the node; one at the agent.
    alone = 4 * costs.link.of(size) + 2 * costs.job.of(size) + 2 * costs.node.of(size) + costs.agent.of(size) + 5.0
    with_training = replace(IDEAL, training=1000.0)
    assert alone + 1000.0 <= seconds(with_training, costs) <= alone + 1000.0 + PAUSES


def test_sites_in_one_process_add_up_and_sites_of_their_own_do_not() -> None:
    federation = replace(IDEAL, sites=8, training=100.0)
    assert 800.0 <= seconds(replace(federation, cores=1)) <= 800.0 + 8 * PAUSES
    assert 400.0 <= seconds(replace(federation, cores=2)) <= 400.0 + 8 * PAUSES
    assert 100.0 <= seconds(federation) <= 100.0 + PAUSES


def test_twice_the_bandwidth_halves_the_transfer() -> None:
    slow = replace(IDEAL, parameters=100_000_000, site_mbits=8.0)
    both_ways = 2 * (4e8 + FRAME_BYTES) / 1e6
    assert both_ways <= seconds(slow) <= both_ways + PAUSES
    assert both_ways / 2 <= seconds(replace(slow, site_mbits=16.0)) <= both_ways / 2 + PAUSES


@pytest.mark.slow
def test_the_servers_line_is_shared() -> None:
    """Ten sites with the server's bandwidth each need ten times as long as one."""
    one = replace(IDEAL, parameters=100_000_000, server_mbits=8.0)
    assert seconds(replace(one, sites=10)) / seconds(one) == pytest.approx(10, rel=0.05)


@pytest.mark.slow
def test_the_slowest_site_decides() -> None:
    federation = replace(IDEAL, sites=20, training=100.0, spread=0.3)
    slow = replace(federation, slow=1, slowness=10.0, spread=0.0)
    assert 1000.0 <= seconds(slow) <= 1000.0 + PAUSES
    assert seconds(federation) > 100.0
    assert seconds(replace(federation, sites=200)) > seconds(federation)


def test_every_object_of_a_message_waits_for_its_request() -> None:
    few, many = replace(IDEAL, delay=0.1), replace(IDEAL, delay=0.1, tensors=100)
    objects = Size.of(10**6, 100).objects - Size.of(10**6, 4).objects
    assert seconds(many) - seconds(few) == pytest.approx(0.1 * objects, abs=PAUSES)


@pytest.mark.parametrize("seed", range(5))
def test_kills_only_add_time(seed: int) -> None:
    federation = replace(IDEAL, sites=20, training=100.0, spread=0.2, ask_again=30.0)
    undisturbed = simulate(federation, FREE, seed=seed)
    killed = simulate(replace(federation, kills=0.2), FREE, seed=seed)
    for calm, rough in zip(undisturbed.rounds, killed.rounds, strict=True):
        assert rough.answered == calm.answered == 20
    assert killed.seconds > undisturbed.seconds
    assert sum(one.asked for one in killed.rounds) > 0
    # A killed site is missed for up to a minute, restarted, asked again, and may train again; twice in a row is rare.
    assert killed.longest < 4 * (undisturbed.longest + 100.0)


def test_a_round_ends_at_the_deadline_without_those_who_are_missing() -> None:
    federation = replace(IDEAL, sites=4, training=100.0, slow=1, slowness=1e6, deadline=500.0)
    first = simulate(federation, FREE, rounds=1).rounds[0]
    assert first.answered == 3 and 500.0 <= first.seconds <= 502.0


def test_sites_are_asked_again_and_do_not_train_again() -> None:
    """Asked at 0, 30 and 90 s; the copies are answered from the stored response."""
    federation = replace(IDEAL, training=100.0, ask_again=30.0)
    forecast = simulate(federation, FREE, rounds=1)
    assert forecast.rounds[0].asked == 3
    assert 100.0 <= forecast.seconds <= 100.0 + PAUSES
    assert plan(federation, FREE, rounds=2).sent_again
    assert not plan(IDEAL, FREE, rounds=2).sent_again


def test_the_same_seed_gives_the_same_rounds() -> None:
    federation = replace(IDEAL, sites=10, training=50.0, spread=0.5, kills=0.1, ask_again=30.0)
    assert simulate(federation, MEASURED, seed=3) == simulate(federation, MEASURED, seed=3)
    assert simulate(federation, MEASURED, seed=3) != simulate(federation, MEASURED, seed=4)


def test_a_killed_process_gives_back_what_it_holds_or_waits_for() -> None:
    simulation, done = Simulation(), list[float]()
    desk = Resource(simulation)

    def work() -> Steps:
        yield from desk.used(10.0)
        done.append(simulation.now)

    holding, waiting, _ = (simulation.start(work()) for _ in range(3))
    simulation.after(4.0, holding.kill)
    simulation.after(4.0, waiting.kill)
    simulation.run()
    assert done == [14.0] and desk.busy == 14.0


def test_what_a_plan_says_would_help() -> None:
    federation = replace(IDEAL, sites=5, parameters=10**7, training=10.0, site_mbits=8.0, slow=1, kills=0.1)
    found = plan(federation, MEASURED, rounds=3)
    assert found.without[min(found.without, key=lambda what: found.without[what])] <= found.forecast.seconds
    assert found.without["with lines 10 times as fast"] < found.without["if training took no time"]
    assert {"without slow sites", "without kills"} <= found.without.keys()


def test_uploads_wait_on_disk() -> None:
    small, large = needs(replace(IDEAL, sites=10)), needs(replace(IDEAL, sites=10, parameters=10**9))
    assert small.server_disk < 100e6 and 80e9 < large.server_disk < 90e9
    assert large.server_memory > 5 * 4e9 > small.server_memory


@pytest.mark.parametrize(
    "changes",
    [{"sites": 0}, {"site_mbits": 0.0}, {"training": float("nan")}, {"kills": 1.5}, {"slow": 2}, {"tensors": 10**7}],
)
def test_impossible_federations_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(next(iter(changes.values()))))):
        replace(IDEAL, **changes)


def test_the_command(tmp_path: Path) -> None:
    arguments = ["flower", "plan", "--sites", "5", "--parameters", "2e6", "--training", "60", "--rounds", "2"]
    said = playerfl(*arguments, cwd=tmp_path)
    assert said.returncode == 0 and "5 sites, 2,000,000 parameters: 8.0 MB" in said.stdout
    found = json.loads(playerfl(*arguments, "--json", cwd=tmp_path).stdout)
    assert found["forecast"]["rounds"][0]["answered"] == 5 and found["seconds"] > 60
    late = playerfl(*arguments, "--deadline", 30, cwd=tmp_path)
    assert late.returncode == 1 and "only 0 of 5 sites respond before the deadline of 30 s" in late.stderr
    assert "parameters must be above 0" in refused(playerfl(*arguments, "--parameters", 0, cwd=tmp_path))
