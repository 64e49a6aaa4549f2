"""Python runs this at start if the folder is on its path: nodes then send a heartbeat every 10 s, not every 30 s.

Flower readmits a killed node after two missed heartbeats, so a test waits 20 s for it instead of 60 s.
"""

import sys

if "playerfl.flower.node" in sys.orig_argv:
    from flwr.common import constant

    constant.HEARTBEAT_DEFAULT_INTERVAL = constant.HEARTBEAT_MIN_INTERVAL
