"""Ray's token authentication: a process can connect to a cluster only with the cluster's token.

Ray's ports listen on all interfaces of the machine, regardless of the address configured, and anyone who can connect to
them can run commands as the user who started Ray. Ray reads `RAY_AUTH_MODE` and the token: `RAY_AUTH_TOKEN`, else the
file named by `RAY_AUTH_TOKEN_PATH`, else `~/.ray/auth_token`.
"""

import logging
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from axml_ray.core.errors import SettingsError

log = logging.getLogger(__name__)

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def authentication_is_on() -> bool:
    """Return whether a cluster that this process starts requires a token, which `RAY_AUTH_MODE=disabled` turns off.

    Raises:
        SettingsError: `RAY_AUTH_MODE` is neither `token` nor `disabled`.
    """
    mode = os.environ.get(MODE, "token").lower()
    if mode == "disabled":
        log.warning(
            "RAY_AUTH_MODE=disabled: anyone who can reach this machine over the network can run commands as this user; "
            "unset it to require a token"
        )
    elif mode != "token":
        raise SettingsError(f"RAY_AUTH_MODE={mode}: unknown mode. Set it to 'token', or unset it")
    return mode == "token"


def token_file() -> Path:
    """Return the file from which Ray reads the token if `RAY_AUTH_TOKEN` is not set."""
    return Path(os.environ.get(TOKEN_PATH) or Path.home() / ".ray" / "auth_token")


def read_token() -> str:
    """Return the token that Ray would use; empty if there is none."""
    if os.environ.get(TOKEN):
        return os.environ[TOKEN].strip()
    try:
        return token_file().read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def ensure_token(is_private: bool = False) -> None:
    """Create a token if there is none, before a cluster is started; a file created here is readable by this user only.

    Ray would create a missing file itself, but readable by everyone.

    Args:
        is_private: only this process and its children use the cluster, so the token may be kept in the environment if
            its file cannot be written, as without a home directory.

    Raises:
        SettingsError: `RAY_AUTH_TOKEN_PATH` has no token, or the token's file cannot be read or written.
    """
    if os.environ.get(TOKEN):
        return
    path = token_file()
    try:
        if read_token():
            if not os.environ.get(TOKEN_PATH):
                with suppress(OSError):  # another user owns the file
                    path.chmod(0o600)
            return
        if os.environ.get(TOKEN_PATH):
            raise SettingsError(
                f"RAY_AUTH_TOKEN_PATH={path}: the file has no token. Write one, or unset RAY_AUTH_TOKEN_PATH"
            )
        _write_token(path)
    except OSError as error:
        if is_private and not os.environ.get(TOKEN_PATH):
            os.environ[TOKEN] = secrets.token_hex(32)
            return
        raise SettingsError(
            f"{path}: cannot store Ray's authentication token ({error.strerror}). Set RAY_AUTH_TOKEN_PATH to a file "
            "with a token, or set RAY_AUTH_TOKEN"
        ) from None


def _write_token(path: Path) -> None:
    """Write a new token atomically; if another process has just written one, keep that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=".auth_token.", encoding="utf-8"
    ) as file:  # mode 0600
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
        if path.exists():
            path.unlink()  # `ensure_token` found it empty
        with suppress(FileExistsError):
            path.hardlink_to(file.name)
