"""A worker on a node of its own, which writes checkpoints and a level at a URL and prints what it then reads."""

import datetime
import json
import sys

import torch
import torch.distributed as dist

from axml_ray.core.files import save_tensors
from axml_ray.core.paths import absolute
from axml_ray.network.level_network import TABLE
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level_files import (
    MODEL,
    check_rows,
    is_saved,
    load_rows,
    read_level,
    read_manifest,
    save_level,
    save_rows,
    write_together,
)


class Network:
    """A level's network as far as its weights are saved."""

    def __init__(self, rank: int):
        self.rank = rank

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {TABLE: torch.full((2, 3), float(self.rank)), "bias": torch.ones(2)}


def main(rank: int, store: str, url: str) -> None:
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit)
    context = DistributedContext.current(torch.device("cpu"))
    checkpoint, level = (absolute(f"{url}/{name}") for name in ("level-1.checkpoint", "level-1"))
    rows = torch.zeros(2, 3)
    numbers = []
    for number in range(2):  # the second replaces the first
        with write_together(
            checkpoint, context, "checkpoint.json", {"format": "test", "fingerprint": "key", "number": number}
        ) as work:
            save_rows(work, {"weight": torch.full((2, 3), float(10 * number + rank))}, context.shard)
            check_rows(work, context)
            if context.is_first:
                save_tensors({"bias": torch.ones(2)}, work / MODEL)
        manifest = read_manifest(checkpoint, "checkpoint.json", "test", "key")
        assert manifest is not None and manifest["workers"] == 2
        numbers.append(manifest["number"])
        load_rows(checkpoint, "weight", rows, 2, context.shard)
        context.barrier()
    save_level(Network(rank), level, "key", {}, context)  # type: ignore[arg-type]
    assert is_saved(level, "key")
    found = {
        "numbers": numbers,
        "rows": rows[0].tolist(),
        "fetched": sorted(path.name for path in checkpoint.iterdir()),
        "left": sorted(path.name for path in checkpoint.parent.iterdir()),
        "table": read_level(level)[TABLE][:, 0].tolist(),
    }
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
