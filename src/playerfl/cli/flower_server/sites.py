"""`playerfl flower register` and `unregister`: which sites the server admits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from playerfl.cli.messages import say
from playerfl.cli.options import Home, examples

REGISTER_EXAMPLES = examples(
    "flower register /var/lib/playerfl north.pub", "flower register /var/lib/playerfl north.pub --replace"
)
UNREGISTER_EXAMPLES = examples("flower unregister /var/lib/playerfl north")


def register(
    home: Home,
    public_key: Annotated[Path, typer.Argument()],
    name: Annotated[str | None, typer.Option(help="The site's name (default: the file's name, without .pub).")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="The key's fingerprint, as the site told you; any other key is refused.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="The site has a new key: accept it instead of the old one.")
    ] = False,
) -> None:
    """Admit a site: register its public key under the site's name.

    HOME is the directory of the server, which must be running. PUBLIC_KEY is the file NAME.pub of the site. Compare the
    fingerprint that is shown with the site's, by phone: anyone who can swap the file could impersonate the site.
    """
    from playerfl.flower.operate.enrolment import enrol
    from playerfl.flower.operate.launch import ServerHome

    server = ServerHome(home)
    _ = server.port
    key = enrol(server, public_key, name or public_key.stem, expected=fingerprint, replace=replace)
    typer.echo(key.node_id)
    say(f"{key.name} is registered with the key {key.fingerprint}; compare this with what the site sees")


def unregister(home: Home, name: Annotated[str, typer.Argument()]) -> None:
    """Exclude the site NAME: its key is no longer accepted.

    HOME is the directory of the server, which must be running.
    """
    from playerfl.flower.operate.enrolment import exclude
    from playerfl.flower.operate.launch import ServerHome

    server = ServerHome(home)
    _ = server.port
    key = exclude(server, name)
    say(f"{key.name} is excluded; its key {key.fingerprint} is no longer accepted")
