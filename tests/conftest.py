import os
import secrets

# Ray reads these when it is imported, or when it starts its processes.
os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_USAGE_STATS_ENABLED="0",
    RAY_TRAIN_HEALTH_CHECK_INTERVAL_S="0.1",
    RAY_DATA_DISABLE_PROGRESS_BARS="1",
    OMP_NUM_THREADS="1",
)
# Nor may a test join a cluster, or write where somebody's own runs lie.
for name in ("RAY_ADDRESS", "AXML_RAY_HOME"):
    os.environ.pop(name, None)

from collections.abc import Iterator  # noqa: E402

import hypothesis  # noqa: E402
import pytest  # noqa: E402

# How long an example takes is the machine's business, not the test's.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A cluster of two CPUs in this process; every test that needs Ray takes it."""
    from axml_ray.cluster import start_cluster, stop_cluster

    start_cluster(num_cpus=2, object_store_memory=256 << 20)
    yield
    stop_cluster()
