"""A command in a real terminal has bars and a summary; without one, it has lines.

python -m pytest tests/jobs/test_terminal.py
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
import synthetic
import yaml

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^\d\d:\d\d:\d\d  prepare: 220 train, 20 valid, 60 test documents, ", re.M)

pytestmark = pytest.mark.processes


class InTerminal:
    """A command that runs in a pseudo-terminal of 100 columns.

    Args:
        command: its words.
    """

    def __init__(self, command: list[str]):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
        self._process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self._output = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._master, 1 << 16):
                self._output += part
        except OSError:  # Linux's end of a terminal that no process has open
            pass

    def result(self) -> str:
        """Wait until the command succeeds; return what it wrote, with control codes."""
        assert self._process.wait(120) == 0, self._output.decode()
        self._reader.join(10)
        os.close(self._master)
        return self._output.decode().replace("\r\n", "\n")


def without_codes(text: str) -> str:
    """The text without control codes, with a new line where one is erased."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", text.replace("\x1b[2K", "\n"))


def test_bars_in_a_terminal_and_lines_elsewhere(tmp_path: Path) -> None:
    commands = []
    for name in ("terminal", "piped"):
        path = tmp_path / name / "config.yaml"
        content = synthetic.experiment(tmp_path / name)
        path.write_text(yaml.safe_dump(content))
        commands.append([sys.executable, str(ROOT / "jobs" / "prepare_corpus.py"), "--config", str(path)])
    live = InTerminal(commands[0])
    piped = subprocess.run(
        commands[1], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    drawn = live.result()
    text = without_codes(drawn)
    assert "prepare: reading the texts" in text and "of 1 parts" in text and "\x1b[?25l" in drawn
    assert LINE.search(text), text
    # All of the bars is gone in the end: after the corpus's path come the next command and the summary.
    assert re.search(
        r"\nCorpus: /.*\n(.*\n)+time +[\d.]+ s in all · prepare [\d.]+ s *\npeak memory +\d+\.\d GiB *\n$", text
    ), text
    assert drawn.rfind("\x1b[?25h") > drawn.rfind("\x1b[?25l")

    assert "\x1b" not in piped.stderr + piped.stdout and "peak memory" not in piped.stderr
    assert LINE.search(piped.stderr) and all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in piped.stderr.splitlines())
