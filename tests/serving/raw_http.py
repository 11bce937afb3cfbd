"""HTTP as a client may send it that is no library: in pieces, too slow, not to its end."""

import socket
from urllib.parse import urlsplit


def raw(server: str, *parts: bytes, wait: float = 60) -> bytes:
    """What the server sends for bytes as they are."""
    place = urlsplit(server)
    with socket.create_connection((place.hostname, place.port), timeout=wait) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        while more := connection.recv(65_536):
            received += more
            if b"\r\n\r\n" in received and received.endswith(b"}"):
                break
        return received


def head(length: int | None, more: str = "") -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST /v1/tag HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n{size}\r\n{more}\r\n".encode()
