"""Throughput and latency of the server under load, compared with the Tagger in one process on the same cores.

    python benchmarks/serving.py [--bundle bundles/quickstart] [--texts corpora/quickstart] [--seconds 20]
                                 [--soak-minutes 6] [--quick] [--json PATH]

Locust's clients and the server share the machine's cores, so the share is a lower bound of what a server reaches whose
clients are elsewhere. Texts are those of the corpus's test split.

- Loads: 1, 8 and 64 clients that ask one text after the other, and 8 that ask 64 texts at a time; latencies also of 64
  clients at half of what they reach.
- Servers: all trees in one replica, and a replica for each tree.
- The soak asks one text at a time for some minutes, at 80% of saturation, and compares the memory of the server's
  processes (proportional set size) over its quarters.
- `--quick` takes 8 seconds of each load and one minute of soak.

Figures: `saturation_share` (texts a second with 64 texts a request, of those of the Tagger with 64 texts a call),
`saturation_share_of_all_at_once` (of the Tagger with all texts in one call), `single_text_share` (64 clients with a
text each, of the Tagger with 64 texts a call), each also with `apart_` before it; `p50_ms`, `p95_ms`,
`p99_ms` (at half of what 64 clients reach), `failed_requests`, `requests`, `soak_requests`, `soak_growth_mib` (last
against first quarter).
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import results_file
from environments import PeerError, Requirements, environment
from rich.console import Console
from rich.table import Table
from rich.text import Text

from axml_ray import Tagger
from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import absolute
from axml_ray.corpus.store import Corpus

LOCUST = Requirements(("locust==2.47.0",))
CLIENTS = Path(__file__).with_name("serving_clients.py")
WARM_SECONDS = 5.0
START_SECONDS = 180
USERS = (1, 8, 64)
MANY = 64
"""Texts of a large request."""
SERVERS = {"together": True, "apart": False}
"""Value of the setting `colocate_members` of each server."""
PASSES = 3


@contextmanager
def server(bundle: Path, together: bool) -> Iterator[tuple[str, int]]:
    """A server of its own; gives its address and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [f"--bundle={bundle}", f"--port={port}", f"--colocate_members={together}"]
    flags += [] if together else ["--cpus=0.25"]  # a deployment for each tree, on few cores
    process = subprocess.Popen(
        [sys.executable, "-m", "serve_app", *flags],
        cwd=results_file.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Serving "):
                break
        else:
            raise SettingsError("the server did not start:\n" + "".join(lines[-5:]))
        timer.cancel()
        threading.Thread(target=process.stdout.read, daemon=True).start()  # or it would wait for a reader at its end
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        timer.cancel()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=START_SECONDS)


def load(python: Path, url: str, seconds: float, users: int, **more: Any) -> dict[str, Any]:
    """Return the requests, failures, requests a second and latencies in ms that locust's clients counted."""
    settings = {"USERS": users, **{name.upper(): value for name, value in more.items() if value is not None}}
    words = [python, "-m", "locust", "-f", CLIENTS, "--headless", "--host", url, "-u", users, "-r", users]
    words += [
        "-t",
        f"{max(1, round(seconds))}s",
        "--json",
        "--stop-timeout",
        "30",
        "--loglevel",
        "ERROR",
        "--only-summary",
    ]
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **{name: str(value) for name, value in settings.items()}},
        capture_output=True,
        text=True,
    )
    start = done.stdout.find("[")
    if start < 0:
        raise SettingsError(f"locust said nothing:\n{done.stderr[-2_000:]}")
    [report] = json.loads(done.stdout[start:])
    times = {float(ms): count for ms, count in report["response_times"].items()}
    return {
        "clients": users,
        "texts_a_request": int(more.get("texts_a_request") or 1),
        "requests": report["num_requests"],
        "failed": report["num_failures"],
        "requests_per_s": report["num_requests"] / (report["last_request_timestamp"] - report["start_time"]),
        **{f"p{share}_ms": quantile(times, share / 100) for share in (50, 95, 99)},
    }


def quantile(times: Mapping[float, int], share: float) -> float:
    """Return the latency in ms that a share of requests does not exceed."""
    most, counted = share * sum(times.values()), 0
    for ms in sorted(times):
        counted += times[ms]
        if counted >= most:
            return ms
    raise SettingsError("no request was answered")


def in_process(tagger: Tagger, texts: list[str], at_once: int) -> float:
    """Return the texts per second of the Tagger with `at_once` texts per call; the median of some passes."""
    seconds = []
    for _ in range(PASSES + 1):
        started = time.perf_counter()
        for start in range(0, len(texts), at_once):
            tagger.tag(texts[start : start + at_once])
        seconds.append(time.perf_counter() - started)
    return len(texts) / statistics.median(seconds[1:])  # the first pass compiles kernels for new shapes


def resident_mib(process: int) -> float:
    """Return the memory of the replicas and the proxy of the server that a process started, in MiB."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            status = (directory / "stat").read_text()
            names[int(directory.name)] = (directory / "cmdline").read_text()
        except OSError:
            continue
        parents[int(directory.name)] = int(status.rpartition(")")[2].split()[1])
    total = 0.0
    for number, name in names.items():
        if not name.startswith(("ray::ServeReplica", "ray::ProxyActor")):
            continue
        above = number
        while above in parents and above != process:
            above = parents[above]
        if above == process:
            rollup = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) / 1024
    return total


def soak(python: Path, url: str, process: int, minutes: float, rate: float, texts: Path) -> dict[str, Any]:
    """Measure the memory during some minutes of load."""
    mebibytes: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            mebibytes.append(resident_mib(process))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        row = load(python, url, 60 * minutes, 16, rate=rate, texts=texts)
    finally:
        ended.set()
        watcher.join()
    parts = [
        statistics.median(mebibytes[place * len(mebibytes) // 4 : (place + 1) * len(mebibytes) // 4])
        for place in range(4)
    ]
    return {**row, "minutes": minutes, "quarters_mib": parts}


def measure(options: argparse.Namespace, console: Console) -> results_file.Result:
    """Measure all servers and loads."""
    python = environment(console, "locust", LOCUST)
    texts = test_texts(options.texts, 2_000)
    tagger = Tagger.load(options.bundle)
    trees = len(tagger.bundle.manifest.level_sizes)
    of_tagger = {size: in_process(tagger, texts, size) for size in (MANY, len(texts))}
    del tagger
    rows: list[dict[str, Any]] = [
        {"part": "in process", "trees": trees, "texts_a_call": size, "texts_per_s": rate}
        for size, rate in of_tagger.items()
    ]
    figures: dict[str, float] = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(texts, file)
        file.flush()
        path = Path(file.name)
        for name, together in SERVERS.items():

            def add(part: str, row: dict[str, Any], name: str = name) -> dict[str, Any]:
                rows.append({"part": part, "server": name, **row})
                console.print_json(json.dumps(rows[-1]), indent=None)
                return row

            prefix = "" if name == "together" else f"{name}_"
            with console.status(f"the server, {name}"), server(options.bundle, together) as (url, process):
                load(python, url, WARM_SECONDS, 16, texts=path)
                for users in USERS:
                    single = add("closed", load(python, url, options.seconds, users, texts=path))["requests_per_s"]
                large = add("closed", load(python, url, options.seconds, 8, texts=path, texts_a_request=MANY))
                half = add("half", load(python, url, options.seconds, USERS[-1], texts=path, rate=single / 2))
                most = MANY * large["requests_per_s"]
                figures |= {
                    f"{prefix}saturation_share": most / of_tagger[MANY],
                    f"{prefix}saturation_share_of_all_at_once": most / of_tagger[len(texts)],
                    f"{prefix}single_text_share": single / of_tagger[MANY],
                }
                if name == "together":
                    row = add("soak", soak(python, url, process, options.soak_minutes, 0.8 * single, path))
                    figures |= {name: half[name] for name in ("p50_ms", "p95_ms", "p99_ms")}
                    figures["soak_requests"] = row["requests"]
                    figures["soak_growth_mib"] = row["quarters_mib"][3] - row["quarters_mib"][0]
    measured = [row for row in rows if "failed" in row]
    figures["requests"] = sum(row["requests"] for row in measured)
    figures["failed_requests"] = sum(row["failed"] for row in measured)
    return figures, rows


def test_texts(directory: Path, most: int) -> list[str]:
    """Return texts of the test split of a prepared corpus."""
    texts: list[str] = []
    for file in Corpus.open(directory).files("test"):
        texts += pq.read_table(file, columns=["text"])["text"].to_pylist()
    return texts[:most]


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the loads as a table for a rich console."""
    shown = Table(title="requests a second, and milliseconds")
    for name in ("server", "load", "clients", "texts each", "requests/s", "p50", "p95", "p99", "failed"):
        shown.add_column(name, justify="left" if name in ("server", "load") else "right")
    for row in rows:
        if "failed" in row:
            numbers = [f"{row[name]:,.0f}" for name in ("p50_ms", "p95_ms", "p99_ms")]
            shown.add_row(row["server"], row["part"], str(row["clients"]), str(row["texts_a_request"]),
                          f"{row['requests_per_s']:,.1f}", *numbers, str(row["failed"]))  # fmt: skip
    return shown


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=absolute, default=absolute("bundles/quickstart"), help="what is served")
    parser.add_argument("--texts", type=absolute, default=absolute("corpora/quickstart"), help="a prepared corpus")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--soak-minutes", type=float, default=6.0, help="of the soak")
    parser.add_argument("--quick", action="store_true", help="8 seconds of each, one minute of soak")
    parser.add_argument("--json", type=absolute, default=results_file.RESULTS / "serving.json", help="where to")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.soak_minutes = 8.0, 1.0
    console = Console()
    try:
        figures, rows = measure(options, console)
    except (SettingsError, PeerError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    console.print(table(rows))
    for name, value in figures.items():
        console.print(f"{name}: {value:.3f}", highlight=False)
    results_file.write(options.json, figures, rows)
    console.print(Text(f"written to {options.json}"))


if __name__ == "__main__":
    main()
