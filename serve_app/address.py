"""Checks of the address that a server is told to listen on, before anything starts."""

import errno
import ipaddress
import os
import socket

from axml_ray.settings import SettingsError


def check_address(host: str, port: int) -> bool:
    """Check that a server can listen on an address now.

    Serve's proxies set SO_REUSEPORT, so that two servers may share a port without an error and answer in turn. A socket
    without it can't be bound to a port that another one listens on, whether on this address or on all of them.

    Args:
        host: a name or an address of this machine.
        port: of TCP.

    Raises:
        SettingsError: the port is in use, or `host` or `port` can't be listened on.

    Returns:
        Whether only this machine can reach it.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"host: {host!r} can't be resolved ({error}); give an address such as 127.0.0.1") from None
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that just ended don't count
            try:
                one.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise SettingsError(
                        f"port: {port} is in use on {host} by another server; end it, or give another port=…"
                    ) from None
                setting = "port" if error.errno == errno.EACCES else "host"
                reason = os.strerror(error.errno or 0)
                raise SettingsError(f"{setting}: can't listen on {host}, port {port} ({reason})") from None
    return all(ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback for *_, place in found)
