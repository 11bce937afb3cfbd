"""Checks that all nodes of a cluster see the state of a job, before the job writes any."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from axml_ray.cluster.connection import connect
from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.paths import url_of, with_urls

ANSWER_SECONDS = 20.0
"""Time for the answer of a node; one that is too busy to answer is not known to lack anything."""


def check_nodes_see(*directories: Path, files: tuple[Path, ...] = ()) -> None:
    """Check that the nodes of a cluster that was joined, if there are several, read what this process reads and writes.

    A file is written into each directory for it, and removed; nothing else is left of it.

    Args:
        directories: directories of the job's state, at paths or URLs, which need not exist.
        files: small files that exist.

    Raises:
        SettingsError: a node does not see a file; the message names both.
    """
    if not os.environ.get("RAY_ADDRESS"):
        return
    connect()
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    with ExitStack() as probes:
        expected = {file: _read(file) for file in files}
        expected |= dict(probes.enter_context(_probe(directory)) for directory in directories)
        asked = {}
        for node in nodes:
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=on_node)(missing)
            asked[task.remote(expected)] = node
        for answer in ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)[0]:
            with suppress(ray.exceptions.RayError):  # the node has gone, and with it what it lacked
                if problem := ray.get(answer):
                    node = asked[answer]
                    raise SettingsError(
                        f"node {node['NodeManagerAddress']} ({node['NodeName']}, {node['NodeID'][:8]}): {problem}; "
                        "give a directory that all nodes share, or a URL such as s3://BUCKET/…"
                    )


@contextmanager
def _probe(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """Write a small file into a directory; remove it, and the directories that were made for it."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    file, content = directory / f".probe-{secrets.token_hex(4)}", secrets.token_bytes(16)
    try:
        storage.write(file, content)
        yield file, content
    finally:
        storage.remove(file)
        for path in made:
            with suppress(OSError):
                path.rmdir()


def _read(file: Path) -> bytes:
    """Return the content of a file, which may be one of a published directory."""
    if not storage.has_url(file):
        return storage.read(file)
    storage.fetch(file.parent, [file.name])
    return file.read_bytes()


def missing(expected: Mapping[Path, bytes]) -> str | None:
    """Return which of some files this process does not read as expected, and why; None if there is none."""
    for file, content in expected.items():
        try:
            if _read(file) != content:
                return f"{with_urls(file)} is another file there"
        except FileNotFoundError:
            return f"{with_urls(file.parent)} is not the directory there that it is for this job"
        except (OSError, SettingsError) as error:
            return f"{with_urls(file.parent)} cannot be read there ({error})"
    return None


def sharing_files(directory: Path) -> dict[str, Any]:
    """Return the options of Ray tasks that read each other's unpublished files below a directory.

    Raises:
        SettingsError: the directory is at a URL, so that the tasks must run on this node, which has no CPU for tasks.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if url_of(directory) is None:
        return {}
    node_id = ray.get_runtime_context().get_node_id()
    if not any(node["NodeID"] == node_id and node["Resources"].get("CPU", 0) >= 1 for node in ray.nodes()):
        raise SettingsError(
            f"{with_urls(directory)}: is prepared on the node of this job, which has no CPU for tasks; start the job "
            "on another node, for example with ray job submit --entrypoint-num-cpus 1"
        )
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}
