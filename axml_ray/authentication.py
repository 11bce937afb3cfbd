"""Ray's token authentication: every process that talks to a cluster proves that it knows the cluster's token.

Ray's ports listen on all interfaces of the machine, whatever address it is told, and whoever may talk to them can run
commands as the user who started Ray. Ray reads `RAY_AUTH_MODE` and the token: `RAY_AUTH_TOKEN`, else the file named by
`RAY_AUTH_TOKEN_PATH`, else `~/.ray/auth_token`.
"""

import logging
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from axml_ray.settings import SettingsError

log = logging.getLogger(__name__)

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def authentication_is_on() -> bool:
    """Whether a cluster that this process starts asks for a token: yes, unless `RAY_AUTH_MODE=disabled` says no.

    Raises:
        SettingsError: `RAY_AUTH_MODE` is a mode that Ray doesn't have.
    """
    mode = os.environ.get(MODE, "token").lower()
    if mode == "disabled":
        log.warning(
            "RAY_AUTH_MODE=disabled: whoever reaches this machine over the network can run commands as this user; "
            "unset it to ask for a token"
        )
    elif mode != "token":
        raise SettingsError(f"RAY_AUTH_MODE={mode}: no such mode; use token, or unset it")
    return mode == "token"


def token_file() -> Path:
    """The file that Ray reads the token from where `RAY_AUTH_TOKEN` isn't set."""
    return Path(os.environ.get(TOKEN_PATH) or Path.home() / ".ray" / "auth_token")


def read_token() -> str:
    """The token that Ray would use; empty if there is none."""
    if os.environ.get(TOKEN):
        return os.environ[TOKEN].strip()
    try:
        return token_file().read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def ensure_token(alone: bool = False) -> None:
    """Make sure that Ray finds a token, before a cluster is started; only this user can read a file made here.

    Ray makes the file itself where it is missing, but readable by everyone.

    Args:
        alone: no other program has to find the token, so that without a home directory one in this process's
            environment will do.

    Raises:
        SettingsError: `RAY_AUTH_TOKEN_PATH` has no token, or the token's file can't be read or written.
    """
    if os.environ.get(TOKEN):
        return
    path = token_file()
    try:
        if read_token():
            if not os.environ.get(TOKEN_PATH):
                with suppress(OSError):  # of another owner
                    path.chmod(0o600)
            return
        if os.environ.get(TOKEN_PATH):
            raise SettingsError(f"RAY_AUTH_TOKEN_PATH={path}: no token there; write one, or unset RAY_AUTH_TOKEN_PATH")
        _write_token(path)
    except OSError as error:
        if alone and not os.environ.get(TOKEN_PATH):
            os.environ[TOKEN] = secrets.token_hex(32)
            return
        raise SettingsError(
            f"{path}: Ray's authentication token can't be kept there ({error.strerror}); set RAY_AUTH_TOKEN_PATH to a "
            "file with a token, or RAY_AUTH_TOKEN"
        ) from None


def _write_token(path: Path) -> None:
    """Write a new token whole or not at all; where another process has just written one, that one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".auth_token.", encoding="utf-8") as file:  # 0600
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
        if path.exists():
            path.unlink()  # empty
        with suppress(FileExistsError):
            path.hardlink_to(file.name)
