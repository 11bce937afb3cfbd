"""Start or stop a Ray head on this machine, for `ray job submit`, `serve deploy` and `serve run`.

    axml-ray cluster start [--dashboard-port 8265] [--port 6379] …
    axml-ray cluster stop

The head belongs to the directory that it was started from: its log and its record are in `runs/` there, relative paths
of submitted jobs start there, and `stop` stops only that head.
"""

import argparse

from axml_ray.cli.console import count, job_of_flags, number
from axml_ray.cluster.connection import OBJECT_STORE_BYTES
from axml_ray.cluster.local import PORTS, start, stop
from axml_ray.core.limits import available_cpus


def _port(text: str) -> int:
    return int(number("a port, 1 to 65535", lambda port: 1 <= port <= 65_535 and port.is_integer())(text))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("action", choices=("start", "stop"))
    for flag, (port, what) in PORTS.items():
        parser.add_argument(
            f"--{flag}", type=_port, default=port, metavar="PORT", help=f"for {what}; {port} by default"
        )
    parser.add_argument("--num-cpus", type=count, default=available_cpus(), metavar="N",
                        help="CPUs that jobs may use; by default those that this process may use")  # fmt: skip
    parser.add_argument("--object-store-memory", type=count, default=OBJECT_STORE_BYTES, metavar="BYTES",
                        help="of Ray's object store; 1 GiB by default")  # fmt: skip


@job_of_flags(__doc__, add_flags)
def main(given: argparse.Namespace) -> None:
    """Start or stop the head."""
    if given.action == "stop":
        stop()
        return
    ports = {flag: getattr(given, flag.replace("-", "_")) for flag in PORTS}
    start(ports, given.num_cpus, given.object_store_memory)
