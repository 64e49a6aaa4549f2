"""What Flower's node imports but never uses: left out, the node takes a quarter less memory."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

# httpx and mako colour their output if they find it, and do without it otherwise.
_OPTIONAL = "pygments"
# A node keeps its messages in memory; the class for a database would bring SQLAlchemy and Alembic.
_DATABASE = "flwr.supercore.object_store.sql_object_store"


class SqlObjectStore:
    """Stands in for Flower's class of this name."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("this node keeps nothing in a database")


STAND_INS: dict[str, Any] = {"SqlObjectStore": SqlObjectStore}
"""What Flower imports from the module of that class."""


def import_supernode() -> Any:
    """Flower's function that runs a SuperNode, imported without what it does not use."""
    stand_in = ModuleType(_DATABASE)
    stand_in.__dict__.update(STAND_INS)
    left_out: dict[str, ModuleType | None] = {_OPTIONAL: None, _DATABASE: stand_in}
    added = {name: module for name, module in left_out.items() if name not in sys.modules}
    # None has Python raise ImportError, as if the package were not installed.
    sys.modules.update(added)  # type: ignore[arg-type]
    try:
        from flwr.supernode.cli.flower_supernode import flower_supernode
    except ImportError:
        # Another version of Flower may use what is left out here.
        for name in [name for name in sys.modules if name in added or name.partition(".")[0] == "flwr"]:
            del sys.modules[name]
        from flwr.supernode.cli.flower_supernode import flower_supernode
    return flower_supernode
