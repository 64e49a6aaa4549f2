"""A peer that sends a byte now and then, which no listener should put up with."""

from __future__ import annotations

import socket


def hung_up_on(slow: socket.socket, message: bytes) -> bool:
    """Whether the other end hangs up while a message arrives, a byte every twentieth of a second."""
    slow.settimeout(0.05)
    for byte in message:
        try:
            slow.sendall(bytes([byte]))
            if slow.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False
