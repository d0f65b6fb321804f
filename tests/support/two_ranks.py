"""One of two processes that meet: `python two_ranks.py RANK FILE`. Prints what it heard."""

import json
import sys
import threading

import torch
from torch import distributed as processes

from ralseg.errors import DataError, NotFiniteError
from ralseg.runtime import distributed


class Stubborn(Exception):
    """Cannot be sent."""

    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


def main() -> None:
    rank, file = int(sys.argv[1]), sys.argv[2]
    processes.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    heard = {"made": distributed.from_first(lambda: [rank, f"rank {rank}'s"]), "errors": []}
    for error in (DataError("no mask"), Stubborn("holds a socket"), NotFiniteError("nan", {"step": 1})):

        def fail(error=error):
            raise error

        try:
            distributed.from_first(fail)
        except Exception as met:
            heard["errors"].append(f"{type(met).__name__}: {met}")
            heard["silent"] = distributed.is_reported_by_first(met)
    heard["gathered"] = distributed.gather([rank])
    heard["total"] = float(distributed.total(torch.tensor(1.0 + rank)))
    weights = torch.tensor([7.0 - rank])
    distributed.share([weights])
    heard["shared"] = weights.tolist()
    print(json.dumps(heard), flush=True)
    distributed.dissolve()  # its threads must not outlive the process's own end


main()
