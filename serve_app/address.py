"""A check that a server can listen on an address, made before anything is started."""

import errno
import ipaddress
import os
import socket

from axml_ray.core.errors import SettingsError


def check_address(host: str, port: int) -> bool:
    """Check that a server can listen on an address now.

    Serve's proxies set SO_REUSEPORT, with which two servers can share a port without an error, and clients reach either
    of them. A socket without that option cannot be bound to a port that is in use, on this address or on all of them.

    Args:
        host: name or address of this machine.
        port: TCP port.

    Raises:
        SettingsError: the port is in use, or a server cannot listen on this host or port.

    Returns:
        Whether only this machine can reach the address.
    """
    try:
        candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"host: {host!r} can't be resolved ({error}); give an address such as 127.0.0.1") from None
    for family, kind, protocol, _, address in candidates:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore connections in TIME_WAIT
            try:
                probe.bind(address)
            except OSError as error:
                raise _address_error(host, port, error) from None
    # An IPv6 address may have a zone, as in fe80::1%eth0.
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in candidates)


def _address_error(host: str, port: int, error: OSError) -> SettingsError:
    """Return the error for an address to which a socket could not be bound."""
    if error.errno == errno.EADDRINUSE:
        return SettingsError(f"port: {port} is in use on {host} by another server; stop it, or give another port=…")
    setting, fix = "host", "give an address of this machine, such as 127.0.0.1"
    if error.errno == errno.EACCES:
        setting, fix = "port", "give a port above 1023"
    return SettingsError(f"{setting}: can't listen on {host}, port {port} ({os.strerror(error.errno or 0)}); {fix}")
