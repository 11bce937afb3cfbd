import sys
from collections.abc import Callable

import pytest

from axml_ray.cli import dispatch

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `axml-ray` with some words in this process; returns its exit code, output and error."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = 0
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["axml-ray"])
            patch.setattr("axml_ray.cli.console.keep_logs", lambda: None)  # Ray's logs, of all tests
            patch.setattr(type(sys.stdout), "reconfigure", lambda *_, **__: None, raising=False)
            try:
                dispatch.main([str(word) for word in words])
            except SystemExit as ended:
                code = int(ended.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call
