"""Record a command in a terminal, and draw its screen at some moments as docs/images/terminal-<moment>.svg.

python docs/terminal_recording.py -- axml-ray demo

The moments: `training`, when several trees are at their leaf level, and `end`, when the command has ended.
"""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 112, 200
SHOWN = 30
"""Largest number of lines of a picture: the last ones."""
AT_LEAF_LEVEL = r"^tree \d · level (\d)/\1 .* epoch [2-9]/"
CODE = re.compile(r"\x1b\[([0-9;?]*)([a-zA-Z])|(\r)|(\n)")
CUT_CODE = re.compile(r"(\x1b(\[[0-9;?]*)?)?$")
"""The first characters of a control code at the end of a text, if any."""


class Screen:
    """The lines of a terminal, for the control codes that rich writes: line by line, up, and erase."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = 0

    def write(self, text: str) -> None:
        """Write text with complete control codes."""
        start = 0
        for match in CODE.finditer(text):
            self._put(text[start : match.start()])
            start = match.end()
            number, kind, _, line_feed = match.groups()
            if line_feed:
                self._row += 1
            elif kind == "A":
                self._row -= int(number or 1)
            elif kind == "K":
                self.lines[self._row] = ""
            elif kind == "m":
                self._put(match.group())
        self._put(text[start:])

    def _put(self, text: str) -> None:
        self.lines += [""] * (self._row + 1 - len(self.lines))
        self.lines[self._row] += text

    @property
    def last(self) -> str:
        """The last lines that are not empty."""
        return "\n".join("\n".join(line.rstrip() for line in self.lines).rstrip().splitlines()[-SHOWN:])

    def save(self, path: Path, title: str) -> None:
        """Draw the last lines as an SVG that needs no font from elsewhere."""
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        for line in self.last.splitlines():
            console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
        svg = console.export_svg(title=title)
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, monospace", "monospace")
        path.write_text(svg, encoding="utf-8")


def output(command: list[str]) -> Iterator[str]:
    """Yield what a command writes to a terminal, in parts that do not end within a control code."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    decode, rest = getincrementaldecoder("utf-8")().decode, ""
    try:
        while part := os.read(master, 1 << 16):
            text = rest + decode(part)
            rest = CUT_CODE.search(text).group()  # type: ignore[union-attr]
            yield text.removesuffix(rest)
    except OSError:  # Linux's end of a terminal that no process has open
        pass
    if code := process.wait():
        raise SystemExit(code)


def main() -> None:
    """Run the command and draw the pictures."""
    command = sys.argv[sys.argv.index("--") + 1 :]
    title = " ".join(command)
    screen, is_recorded = Screen(), False
    for text in output(command):
        screen.write(text)
        if not is_recorded and len(re.findall(AT_LEAF_LEVEL, re.sub(r"\x1b\[[0-9;]*m", "", screen.last), re.M)) > 1:
            screen.save(IMAGES / "terminal-training.svg", title)
            is_recorded = True
    screen.save(IMAGES / "terminal-end.svg", title)


if __name__ == "__main__":
    main()
