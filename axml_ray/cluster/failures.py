"""Root causes of errors of Ray, and records of failures in `<run>/errors/`.

Records remain when the cluster, and Ray's logs with it, are gone. A record has the error with its traceback, those of
the workers included, and of each task that failed Ray's reason and the end of its worker's log.
"""

import re
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axml_ray.core.errors import JobError, SettingsError
from axml_ray.core.files import check_fences, whole_file
from axml_ray.core.lease import LeaseLostError

ERROR_PREFIX = re.compile(r"^(axml_ray\.[\w.]+|([\w.]+\.)?(RuntimeError|OSError)): ")
"""Exception names that are removed from error messages, because they tell users nothing."""
EXPLAINED = re.compile(r"^(axml_ray|ray\.exceptions)\.[\w.]+: |^\w+: \[Errno ")
"""How a message begins that needs no traceback: an error of this package, of Ray, or of the operating system."""
DETAILS = "details: "
"""How the note begins that names the record of an exception."""
MAX_TASKS, MAX_LINES = 5, 100
"""Number of failed tasks in a record, the last ones, and of lines of each log."""
REPORT_SECONDS = 3.0
"""Time to wait for the record of a failed task, which workers and raylets send to the head about once a second."""


def root_cause(error: BaseException) -> str:
    """Return the last line of an error's message: the original error, without Ray's remote tracebacks."""
    return ERROR_PREFIX.sub("", _last_line(error))


def failure(error: BaseException, message: str) -> RuntimeError:
    """Return the error to raise for one of Ray: a `JobError` if the message explains it.

    It does if the cause is an error of this package or of the operating system, or if Ray reports the end of a process.
    Any other exception of a task is a fault of the program, whose traceback is needed.

    Args:
        error: the error of a task.
        message: what failed, and the root cause.
    """
    from ray.exceptions import RayTaskError

    is_explained = not isinstance(error, RayTaskError) or EXPLAINED.match(_last_line(error))
    return JobError(message) if is_explained else RuntimeError(message)


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's message with the exception's name, without that of Ray Data about retries."""
    from ray.exceptions import UserCodeException

    text = str(error).strip()
    if isinstance(error, UserCodeException):
        text = text.rpartition("\n\nThe above exception")[0] or text
    return text.splitlines()[-1] if text else type(error).__name__


@contextmanager
def recorded_failures(directory: Path) -> Iterator[None]:
    """Record an exception that leaves the block, unless it is a SettingsError, which its line explains.

    Args:
        directory: directory of the run; nothing is recorded if it doesn't exist. If the record doesn't fit on its disk,
            it is written to the directory of temporary files.
    """
    began = time.time()
    try:
        yield
    except SettingsError:
        raise
    except Exception as error:
        record_failure(directory, error, began)
        raise


def record_failure(directory: Path, error: Exception, since: float) -> None:
    """Write the record of an error, and add a note that names the file to the error; see `recorded_failures`.

    Args:
        directory: directory of the run.
        error: the error.
        since: time when the work began that failed, in seconds since the epoch; earlier failed tasks are left out.
    """
    if not directory.is_dir():
        return
    version = sys.modules["axml_ray"].__version__  # an import of the package would be one of what it offers
    head = f"axml-ray {version}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}\n{shlex.join(sys.orig_argv)}\n"
    text = "\n".join([head, "".join(traceback.format_exception(error)), *_failed_tasks(since)])
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 1_000_000:06d}.txt"
    for path in (directory / "errors" / name, Path(tempfile.gettempdir()) / f"axml-ray-error-{name}"):
        try:
            check_fences(path)
            path.parent.mkdir(exist_ok=True)
            with whole_file(path) as temporary:
                temporary.write_text(text, encoding="utf-8", errors="replace")
            error.add_note(f"{DETAILS}{path}")
            return
        except OSError:  # its disk is full
            continue
        except LeaseLostError:  # the run is another job's now
            return


def record_of(error: BaseException) -> Path | None:
    """Return the path of the record of an exception, if it has one."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(DETAILS)]
    return Path(notes[-1].removeprefix(DETAILS)) if notes else None


def _failed_tasks(since: float) -> Iterator[str]:
    """Yield a section for each of the last tasks of this job that failed; none if this process has no cluster.

    Args:
        since: time before which failures are left out, in seconds since the epoch.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    from ray.util.state import get_log, list_tasks

    # Of several clusters on a machine, Ray's functions would not know which one is meant.
    context = ray.get_runtime_context()
    filters = [("job_id", "=", context.get_job_id()), ("state", "=", "FAILED")]
    tasks: list[Any] = []
    end = time.monotonic() + REPORT_SECONDS
    try:
        while not tasks and time.monotonic() < end:
            failed = list_tasks(context.gcs_address, filters=filters, detail=True, raise_on_missing_output=False)
            tasks = [task for task in failed if (task.end_time_ms or 0) >= 1000 * since]
            time.sleep(0 if tasks else 0.2)
    except Exception as error:  # a cluster without dashboard, or one that is failing
        yield f"The failed tasks are unknown: {type(error).__name__}: {error}\n"
    for task in sorted(tasks, key=lambda task: task.end_time_ms or 0)[-MAX_TASKS:]:
        where = f"process {task.worker_pid} on node {task.node_id}"
        yield f"Task {task.name}, attempt {task.attempt_number + 1}, {where}: {task.error_type}\n{task.error_message}\n"
        for suffix in ("err", "out"):
            try:
                if task.node_id == context.get_node_id():
                    from ray._private.worker import global_worker

                    # From Ray's directory: its agent, which sends logs, doesn't run where another cluster has its port.
                    [path] = Path(global_worker.node.get_logs_dir_path()).glob(f"worker-*-{task.worker_pid}.{suffix}")
                    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
                    log = "".join(lines[-MAX_LINES:])
                else:
                    log = "".join(
                        get_log(
                            context.gcs_address, task.node_id, pid=task.worker_pid, tail=MAX_LINES, suffix=suffix,
                            errors="replace", timeout=10,
                        )
                    )  # fmt: skip
                yield f"The end of its worker's log (.{suffix}):\n{log}\n"
            except Exception as error:  # its node is gone, or it never had a worker
                yield f"Its worker's log (.{suffix}) cannot be read: {type(error).__name__}: {error}\n"
