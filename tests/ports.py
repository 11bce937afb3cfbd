"""Ports for servers that tests start."""

import random
import socket

# Below the ports that Linux gives to connections and to processes that ask for any (from 32768), so that nothing takes
# one in the seconds between this and the server's start; above those that Ray gives to its workers (to 19999).
_PORTS = iter(random.SystemRandom().sample(range(20_000, 32_768), 12_768))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing has bound, a different one at each call."""
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port is free")
