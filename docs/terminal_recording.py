"""Record a command in a terminal, and draw its screen at some moments as docs/images/terminal-<moment>.svg.

python docs/terminal_recording.py -- axml-ray demo

The moments: `first`, when the first table of scores is printed; `training`, when several trees are at their leaf level;
and `end`, when the command has ended.
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
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 112, 200
SHOWN = 26
"""Largest number of lines of a picture: the last ones."""
CODE = re.compile(r"\x1b\[([0-9;?]*)([a-zA-Z])|(\r)|(\n)")


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

    def save(self, path: Path, title: str) -> None:
        """Draw the last lines as an SVG that needs no font from elsewhere."""
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        for line in lines[-SHOWN:]:
            console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
        svg = console.export_svg(title=title)
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, monospace", "monospace")
        path.write_text(svg, encoding="utf-8")


def output(command: list[str]) -> Iterator[str]:
    """Yield what a command writes to a terminal, in parts that end between control codes."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    rest = b""
    try:
        while part := os.read(master, 1 << 16):
            # Characters and codes may be cut anywhere; lines and frames end with a line feed or a code.
            complete = re.match(rb"(?s).*(\n|\x1b\[[0-9;?]*[a-zA-Z])", rest + part)
            text = complete.group() if complete else b""
            rest = (rest + part)[len(text) :]
            yield text.decode()
    except OSError:  # Linux's end of a terminal that no process has open
        pass
    yield rest.decode()
    if code := process.wait():
        raise SystemExit(code)


def main() -> None:
    """Run the command and draw the pictures."""
    command = sys.argv[sys.argv.index("--") + 1 :]
    title = " ".join(command)
    screen, is_done = Screen(), {"first": False, "training": False}
    for text in output(command):
        screen.write(text)
        last = "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", line) for line in screen.lines[-SHOWN:])
        moments = {
            "first": "The networks are trained now." in last,
            "training": len(re.findall(r"^tree \d · level (\d)/\1 .* epoch [2-9]/", last, re.M)) > 1,
        }
        for name, is_now in moments.items():
            if is_now and not is_done[name]:
                is_done[name] = True
                screen.save(IMAGES / f"terminal-{name}.svg", title)
    screen.save(IMAGES / "terminal-end.svg", title)


if __name__ == "__main__":
    main()
