"""`playerfl flower site`: the agent that owns a site's data, and the node that connects it to the server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from playerfl.cli.options import DataDir, examples

if TYPE_CHECKING:
    from playerfl.flower.operate.site_node import SiteNode
    from playerfl.flower.site.policy import Policy

SITE_EXAMPLES = examples(
    "flower site --name north --key north.key --ca ca.crt --server fl.example.org:443 --state state --task ./data",
    "flower site --name north --agent-only --policy site.toml --state state --socket agent.sock --node-user flower",
    "flower site --name north --node-only --key north.key --ca ca.crt --server fl.example.org:443 --state node "
    "--socket agent.sock",
)


def site(
    name: Annotated[str, typer.Option(help="The site's name in the federation.")],
    state: Annotated[Path, typer.Option(help="The site's directory: private layers, audit log, jobs. Back it up.")],
    key: Annotated[Path | None, typer.Option(help="The site's private key.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The server's ca.crt.")] = None,
    server: Annotated[str | None, typer.Option(metavar="NAME:PORT", help="The server's address.")] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="File that says which jobs this site accepts (default: site.toml in --state, or else strict defaults)."
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="The site's data: a folder, FILE.py:NAME or a bundled task (default: the policy's)."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="This site's copy of the model, for jobs that replace the task's (default: the policy's).",
        ),
    ] = None,
    data_dir: DataDir = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps (default: the experiment's).")] = None,
    port: Annotated[int, typer.Option(help="Port on loopback; must differ between sites on one machine.")] = 9094,
    retry: Annotated[
        float, typer.Option(help="Seconds before a node that has stopped is restarted (0: never).")
    ] = 15.0,
    agent_only: Annotated[bool, typer.Option("--agent-only", help="Run the agent; start the node separately.")] = False,
    node_only: Annotated[bool, typer.Option("--node-only", help="Run the node; start the agent separately.")] = False,
    socket: Annotated[
        Path | None, typer.Option(help="The socket between agent and node (default: agent.sock in --state).")
    ] = None,
    node_user: Annotated[
        list[str] | None, typer.Option(help="With --agent-only: the user that the node runs as; can be repeated.")
    ] = None,
) -> None:
    """Take part as a site, until Ctrl-C.

    The agent has the data, the private layers, the policy and the audit log. The node has the key and the connection to
    the server; it accepts no connections from elsewhere, and it runs no code that the server sends. To run them as two
    users, start the command twice, with --agent-only and with --node-only.
    """
    from playerfl.errors import ConfigError
    from playerfl.flower.operate.processes import ending_on_signals

    if agent_only and node_only:
        raise ConfigError("--agent-only and --node-only exclude each other; leave both out to run agent and node")
    agent_socket = socket or state / "agent.sock"
    with ending_on_signals():
        if agent_only:
            run_agent(name, state, agent_socket, policy, task, model, data_dir, device, node_user or [], None)
            return
        node = _node(name, key, ca, server, state, agent_socket, port, separate=node_only)
        if node_only:
            keep_running(node, retry)
        else:
            run_agent(name, state, agent_socket, policy, task, model, data_dir, device, [], (node, retry))


def _node(
    name: str,
    key: Path | None,
    ca: Path | None,
    server: str | None,
    state: Path,
    agent_socket: Path,
    port: int,
    *,
    separate: bool,
) -> SiteNode:
    from playerfl.errors import ConfigError
    from playerfl.flower.operate.site_node import SiteNode
    from playerfl.storage.ownership import make_private

    if key is None or ca is None or server is None:
        raise ConfigError("a node needs --key, --ca and --server; or run the agent alone with --agent-only")
    if not separate:
        # Before the node's own directory in it, which would make a stranger's directory look like a site's.
        make_private(state)
    node = SiteNode(name, key, server, ca, state if separate else state / ".node", agent_socket, port)
    node.check()
    return node


def run_agent(
    name: str,
    state: Path,
    agent_socket: Path,
    policy_file: Path | None,
    task: str | None,
    model: str | None,
    data_dir: Path | None,
    device: str | None,
    node_users: list[str],
    node: tuple[SiteNode, float] | None,
) -> None:
    """Runs the agent, with a node as its child or without one."""
    from playerfl.cli.messages import say
    from playerfl.flower.site.agent import SiteAgent
    from playerfl.flower.site.open_site import group_of, open_site, user_ids
    from playerfl.flower.site.process.listen import listening
    from playerfl.flower.site.process.memory import use_one_arena
    from playerfl.storage.locking import locked
    from playerfl.storage.ownership import check_owner, make_private

    use_one_arena()
    check_owner(state)
    policy = read_policy(state, policy_file)
    if node is not None:
        policy.check_server(node[0].server)
    make_private(state)
    # Two agents in one directory would overwrite each other's private layers.
    with locked(state):
        agent = SiteAgent(open_site(name, state, policy, task, data_dir, device, model))
        agent.site.begin()
        users = user_ids(node_users)
        group, most = group_of(node_users), policy.jobs.most_message_bytes
        with listening(agent_socket, agent.answer, users, group=group, most_bytes=most):
            approval = "every new job needs approval" if policy.approval == "person" else "jobs start without approval"
            say(f"{name}: the agent is ready ({approval}); playerfl flower jobs --state {state} shows the jobs")
            if node is not None:
                keep_running(*node)
                return
            while True:
                time.sleep(3600)


def read_policy(state: Path, file: Path | None) -> Policy:
    """The policy in a file; by default site.toml in the site's directory, or the strict defaults."""
    from playerfl.flower.site.policy import Policy

    if file is None and (state / "site.toml").exists():
        file = state / "site.toml"
    return Policy() if file is None else Policy.read(file)


def keep_running(node: SiteNode, retry: float) -> None:
    """Restarts the node whenever it stops, unless it was told to stop."""
    from playerfl.cli.messages import say
    from playerfl.flower.operate.processes import LOOPBACK, Running, listens

    while True:
        with Running(node.command(), node.environment()) as running:
            code = running.process.wait()
        if code == 0:
            return
        why = (
            f"port {node.port} is taken, perhaps by another site on this machine; give each its own --port"
            if listens(LOOPBACK, node.port)
            else "usually this means that its key is not registered yet, or that the server has not yet noticed that "
            "the previous node is gone (which takes up to a minute)"
        )
        say(f"the node stopped with exit code {code}; {why}")
        if not retry:
            raise typer.Exit(1)
        time.sleep(retry)
