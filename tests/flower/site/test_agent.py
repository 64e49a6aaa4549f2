"""The agent's socket, the parcels that pass it, and the relay on its other side."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import printed_by
from playerfl.errors import ConfigError
from playerfl.flower.node import connection
from playerfl.flower.node.connection import ask_agent
from playerfl.flower.site.process import listen
from playerfl.flower.site.process.listen import listening
from playerfl.flower.wire.parcel import MAGIC, Parcel, ParcelError, RawArray, from_bytes, receive
from slow_peer import hung_up_on

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs Unix sockets")
PARCEL = Parcel(
    "envelope", {"w": {"a": RawArray("uint8", (3,), "raw", b"abc")}}, {"m": {"n": [1, 2]}}, {"c": {"b": [b"\0"]}}, 7
)


def echo(parcel: Parcel) -> Parcel:
    return Parcel("response", parcel.arrays, parcel.metrics, parcel.configs, parcel.node)


@pytest.mark.parametrize("deep", [0, 60])
def test_a_parcel_arrives_and_its_answer_returns(tmp_path: Path, deep: int) -> None:
    """Also where the path is longer than the operating system allows for a socket."""
    folder = tmp_path / ("x" * deep) / ("y" * deep) if deep else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    with listening(folder / "agent.sock", echo):
        answer = ask_agent(str(folder / "agent.sock"), PARCEL)
        assert (folder / "agent.sock").stat().st_mode & 0o077 == 0
    assert (answer.kind, answer.arrays, answer.configs, answer.node) == ("response", PARCEL.arrays, PARCEL.configs, 7)
    assert not (folder / "agent.sock").exists()


def test_another_user_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Parcel] = []

    def answer(parcel: Parcel) -> Parcel:
        asked.append(parcel)
        return parcel

    monkeypatch.setattr(listen, "peer_user", lambda _: os.getuid() + 1)
    with listening(tmp_path / "agent.sock", answer), pytest.raises((ParcelError, OSError)):
        ask_agent(str(tmp_path / "agent.sock"), PARCEL)
    assert asked == []
    with listening(tmp_path / "agent.sock", answer, users=[os.getuid() + 1]):
        ask_agent(str(tmp_path / "agent.sock"), PARCEL)
    assert len(asked) == 1


def test_the_other_ends_user_is_known() -> None:
    one, two = socket.socketpair()
    with one, two:
        assert connection.peer_user(one) == os.getuid()


def test_two_agents_do_not_share_a_socket_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    with (
        listening(tmp_path / "agent.sock", echo),
        pytest.raises(ConfigError, match="another agent is listening"),
        listening(tmp_path / "agent.sock", echo),
    ):
        pass
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "agent.sock"))
    dead.close()
    with listening(tmp_path / "agent.sock", echo):
        assert ask_agent(str(tmp_path / "agent.sock"), PARCEL).kind == "response"


def test_two_agents_that_start_at_the_same_moment_do_not_share_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it listens, a socket looks like that of a dead agent."""
    started = []

    def meanwhile(*_: object) -> None:
        with pytest.raises(ConfigError, match="another agent"), listening(tmp_path / "agent.sock", echo):
            started.append("a second one")

    monkeypatch.setattr(listen.os, "chown", meanwhile)
    with listening(tmp_path / "agent.sock", echo, group=os.getgid()):
        assert ask_agent(str(tmp_path / "agent.sock"), PARCEL, 10).kind == "response"
    assert started == []


def frame(header: bytes, data: bytes = b"") -> bytes:
    return MAGIC + len(header).to_bytes(8, "little") + len(data).to_bytes(8, "little") + header + data


HEADER = '{"kind":"x","node":0,"arrays":%s,"metrics":{},"configs":%s}'
BAD = {
    "magic": b"GET / HTTP/1.1\r\n\r\n" + b" " * 40,
    "huge header": MAGIC + (2**62).to_bytes(8, "little") + bytes(8),
    "huge data": MAGIC + (2).to_bytes(8, "little") + (2**62).to_bytes(8, "little") + b"{}",
    "no json": frame(b"{"),
    "nested": frame(b"[" * 100_000),
    "missing part": frame(b'{"kind":"x"}'),
    "duplicate record": frame((HEADER % ('{"w":[],"w":[]}', "{}")).encode()),
    "duplicate name": frame((HEADER % ('{"w":[["a","u",[1],"r",1],["a","u",[1],"r",1]]}', "{}")).encode(), b"ab"),
    "too long": frame((HEADER % ('{"w":[["a","u",[1],"r",9]]}', "{}")).encode(), b"ab"),
    "negative": frame((HEADER % ('{"w":[["a","u",[1],"r",-1]]}', "{}")).encode()),
    "left over": frame((HEADER % ("{}", "{}")).encode(), b"ab"),
    "table": frame((HEADER % ("{}", '{"c":{"a":{"b":1}}}')).encode()),
    "nothing": frame((HEADER % ("{}", '{"c":{"a":null}}')).encode()),
    "float shape": frame((HEADER % ('{"w":[["a","u",[1.0],"r",0]]}', "{}")).encode()),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_bytes_that_are_not_a_parcel_are_refused_and_the_agent_lives_on(bad: bytes, tmp_path: Path) -> None:
    with pytest.raises(ParcelError):
        from_bytes(bad)
    with listening(tmp_path / "agent.sock", echo, most_bytes=2**20):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "agent.sock"))
            client.sendall(bad)
            client.shutdown(socket.SHUT_WR)
            with pytest.raises((ParcelError, OSError)):
                receive(client)
        assert ask_agent(str(tmp_path / "agent.sock"), PARCEL).kind == "response"


@given(st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=4))
def test_damaged_parcels_never_become_something_else(noise: bytes, place: int, other: bytes) -> None:
    whole = b"".join(PARCEL.pieces())
    for data in (noise, whole[:place] + other + whole[place + len(other) :], whole[:place]):
        with suppress(ParcelError):
            from_bytes(data)


def test_silent_peers_do_not_keep_the_node_from_the_agent(tmp_path: Path) -> None:
    """The socket stayed closed to everyone for as long as eight peers were silent."""
    with listening(tmp_path / "agent.sock", echo), ExitStack() as stack:
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3 * listen.MOST_CONNECTIONS)]
        for client in silent:
            client.connect(str(tmp_path / "agent.sock"))
        for _ in range(3):
            assert ask_agent(str(tmp_path / "agent.sock"), PARCEL, 10).kind == "response"


def test_a_peer_that_sends_a_byte_now_and_then_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte gave it another two minutes."""
    monkeypatch.setattr(listen, "PEER_SECONDS", 0.3)
    monkeypatch.setattr(listen, "_LOOK_SECONDS", 0.05)
    with listening(tmp_path / "agent.sock", echo), socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(tmp_path / "agent.sock"))
        assert hung_up_on(slow, b"".join(PARCEL.pieces()))


@pytest.mark.slow
def test_a_peer_that_does_not_read_its_answer_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "PEER_SECONDS", 0.3)
    monkeypatch.setattr(listen, "_LOOK_SECONDS", 0.05)
    large = Parcel("response", {"w": {"a": RawArray("uint8", (2**24,), "raw", bytes(2**24))}})
    with listening(tmp_path / "agent.sock", lambda _: large), socket.socket(socket.AF_UNIX) as deaf:
        deaf.connect(str(tmp_path / "agent.sock"))
        deaf.sendall(b"".join(PARCEL.pieces()))
        time.sleep(1)
        deaf.settimeout(10)
        with pytest.raises((ParcelError, OSError)):
            receive(deaf)


def test_an_answer_may_take_longer_than_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "PEER_SECONDS", 0.1)
    monkeypatch.setattr(listen, "_LOOK_SECONDS", 0.02)

    def slowly(parcel: Parcel) -> Parcel:
        time.sleep(0.4)
        return echo(parcel)

    with listening(tmp_path / "agent.sock", slowly):
        assert ask_agent(str(tmp_path / "agent.sock"), PARCEL, 10).kind == "response"


def test_a_message_waits_for_the_one_before_it(tmp_path: Path) -> None:
    """Two answers at the same time could use one state twice."""
    from flower.jobs import Job

    agent = Job(tmp_path, "fedavg", rounds=1).agent("site-0")
    inside: list[int] = []
    most = 0

    def respond(_: Any) -> Any:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        threading.Event().wait(0.05)
        inside.pop()
        raise ValueError

    object.__setattr__(agent, "_envelope", respond)
    threads = [threading.Thread(target=agent.answer, args=(PARCEL,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.system
def test_the_relay_and_the_node_import_neither_torch_nor_pandas() -> None:
    """Nor what Flower's node imports without using it, as long as that works with the installed version."""
    check = (
        "import playerfl.flower.node.__main__, sys\n"
        "from playerfl.flower.node.spared_imports import import_supernode\n"
        "assert callable(import_supernode())\n"
        "import playerfl.flower.client_app, playerfl.flower.node.relay\n"
        "big = {'torch', 'pandas', 'safetensors', 'playerfl.flower.site', 'sqlalchemy', 'alembic', 'pygments.lexer'}\n"
        "print(sorted(big & sys.modules.keys()))\n"
        "from flwr.supercore.object_store import ObjectStoreFactory\n"
        "print(type(ObjectStoreFactory().store()).__name__)"
    )
    assert printed_by(check).split() == ["[]", "InMemoryObjectStore"]


@pytest.mark.system
def test_a_node_that_needs_what_is_left_out_imports_it() -> None:
    """Another version of Flower may import more names from the module that is replaced."""
    check = (
        "import playerfl.flower.node.spared_imports as spared, sys\n"
        "spared.STAND_INS.clear()\n"
        "assert callable(spared.import_supernode())\n"
        "print('sqlalchemy' in sys.modules)"
    )
    assert printed_by(check) == "True"


@pytest.mark.system
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become other users")
def test_the_nodes_user_reaches_the_agent_and_others_do_not() -> None:
    """With real users: the socket's mode keeps out who is not in the node's group, and the kernel names the rest."""
    from killing import ended, forked

    node, group, other = 40_001, 40_002, 40_003
    folder = Path("/tmp") / f"playerfl-agent-{os.getpid()}"
    folder.mkdir(mode=0o755)

    def asks_as(user: int, of_group: int) -> int:
        def work() -> int:
            os.setgroups([])
            os.setgid(of_group)
            os.setuid(user)
            try:
                return 0 if ask_agent(str(folder / "agent.sock"), PARCEL).kind == "response" else 4
            except PermissionError:
                return 5
            except (ParcelError, OSError):
                return 6

        return ended(forked(work))

    try:
        with listening(folder / "agent.sock", echo, users=[node], group=group):
            assert asks_as(node, group) == 0
            assert asks_as(other, other) == 5
            assert asks_as(other, group) == 6
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_flowers_node_waits_by_our_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's waits are numbers in its code: this fails if they move, and rounds become slower."""
    import inspect
    import time

    import flwr.supernode.start_client_internal as loop

    from playerfl.flower.node.pace import LEAST_SECONDS, Pace, keep_pace

    monkeypatch.setattr(loop, "time", time)
    waits: list[float] = []
    pace = Pace(wait=waits.append)
    keep_pace(pace)
    assert loop.time is pace
    code = inspect.getsource(loop)
    for seconds, least in LEAST_SECONDS.items():
        assert f"time.sleep({seconds:g})" in code
        loop.time.sleep(seconds)
        assert waits[-1] == least
    assert abs(loop.time.time() - time.time()) < 60
