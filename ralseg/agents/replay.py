"""Experience replay: decomposed transitions that share the tensors of their step, and minibatches of them."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepMemory:
    """One step of a game: K decomposed transitions that share everything but their sub-action.

    ``value`` is the known part of the return; what follows it is ``discount`` times the value of the
    ``next_*`` tensors, or nothing where those are None (end of an episode, or no bootstrapping).

    Examples:
        >>> seen, after = torch.zeros(5, 9), torch.zeros(2, 3, 7)
        >>> len(StepMemory(seen, after[:, 0], value=1.0, discount=0.9, next_state=seen, next_actions=after))
        2
    """

    state: Tensor  # [R_S, F]
    chosen: Tensor  # [K, A + 1] features of the K sub-actions taken
    value: float | Tensor  # of all of them; or [K], of each
    discount: float
    next_state: Tensor | None = None  # [R_S, F]
    next_actions: Tensor | None = None  # [K', N', A + 1] the pools of the next step
    steps_left: float = math.inf  # steps of the episode from the next state on; inf: not known
    pools: Tensor | None = None  # [K, N, A + 1] what could have been chosen; None: not kept
    picked: Tensor | None = None  # [K] position of each sub-action in its pool

    def value_of(self, k: int) -> float:
        """The known part of the return of one of them."""
        return float(self.value[k]) if isinstance(self.value, Tensor) else self.value

    def __len__(self) -> int:
        """K, the number of decomposed transitions."""
        return len(self.chosen)


class ReplayBuffer:
    """A ring of transitions, oldest out first; whole steps enter and leave.

    A step's state and pools are stored once, also where they are the "next" of the step before: 1/K of
    the memory that storing them with each transition would take.

    Args:
        capacity: Number of transitions kept (paper: 600 on CamVid, 3200 on Cityscapes).
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._steps: deque[StepMemory] = deque()
        self._size = 0

    def __len__(self) -> int:
        """Number of transitions."""
        return self._size

    @property
    def steps(self) -> list[StepMemory]:
        """The steps, oldest first."""
        return list(self._steps)

    def add(self, step: StepMemory) -> None:
        """Enter a step; the oldest leave until all fits."""
        self._steps.append(step)
        self._size += len(step)
        while self._size > self.capacity and len(self._steps) > 1:
            self._size -= len(self._steps.popleft())

    def sample(self, number: int, generator: torch.Generator) -> list[tuple[StepMemory, int]]:
        """Draw transitions uniformly with replacement, as (step, which of its K sub-actions)."""
        draws = torch.randint(self._size, (number,), generator=generator)
        ends = torch.tensor([len(step) for step in self._steps]).cumsum(0)
        owners = torch.searchsorted(ends, draws, right=True)
        within = draws - (ends[owners] - torch.tensor([len(self._steps[i]) for i in owners.tolist()]))
        return [(self._steps[i], k) for i, k in zip(owners.tolist(), within.tolist(), strict=True)]

    def sample_steps(self, number: int, generator: torch.Generator) -> list[StepMemory]:
        """Draw whole steps uniformly with replacement."""
        return [self._steps[i] for i in torch.randint(len(self._steps), (number,), generator=generator).tolist()]

    def num_bytes(self) -> int:
        """Memory of all tensors, each counted once."""
        storages = {}
        for step in self._steps:
            for field in fields(step):
                tensor = getattr(step, field.name)
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors; ``torch.save`` writes shared tensors once."""
        return {"steps": [memory_state(step) for step in self._steps]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to a saved state."""
        self._steps.clear()
        self._size = 0
        for step in state["steps"]:
            self.add(StepMemory(**step))


def memory_state(step: StepMemory) -> dict[str, Any]:
    """A step as a dictionary of plain values and tensors."""
    return {field.name: getattr(step, field.name) for field in fields(step)}


class Minibatch(NamedTuple):
    """Transitions ready for the network; B rows of M sub-actions that share a target."""

    states: Tensor  # [U, R_S, F]
    which: Tensor  # [B]
    actions: Tensor  # [B, M, A + 1]
    real: Tensor  # [B, M] 1, or 0 for what only fills up a row
    counts: Tensor  # [B, M] 1 for the sub-actions whose mean has the target
    value: Tensor  # [B]
    discount: Tensor  # [B]
    goes_on: Tensor  # [B] bool: whether anything follows
    next_states: Tensor  # [V, R_S, F]
    next_which: Tensor  # [b] the rows that go on
    next_actions: Tensor  # [b, N, A + 1]
    next_real: Tensor  # [b, N] 1, or 0 for what only fills up a pool
    steps_left: Tensor  # [b] steps of the episode from the next state on
    experience: Tensor  # [] number of steps in the replay


def collate(
    rows: list[tuple[StepMemory, Tensor, int]],
    experience: int,
    device: torch.device,
    counted: Sequence[int] | None = None,
) -> Minibatch:
    """Put transitions together.

    Args:
        rows: For each row its step, the features [M, A + 1] of its sub-actions, and the number of its pool.
        experience: Number of steps in the replay.
        device: Where the network is.
        counted: For each row, the one sub-action that has the target; None: all have it in common.

    Examples:
        >>> step = StepMemory(torch.zeros(5, 9), torch.zeros(2, 7), value=1.0, discount=0.9)
        >>> collate([(step, step.chosen, 0)], 1, torch.device("cpu")).actions.shape
        torch.Size([1, 2, 7])
    """
    states, which = _each_once([step.state for step, *_ in rows])
    going_on = [(step, k) for step, _, k in rows if step.next_actions is not None]
    next_states, next_which = _each_once([s.next_state for s, _ in going_on if s.next_state is not None])
    pools = [s.next_actions[k % len(s.next_actions)] for s, k in going_on if s.next_actions is not None]
    goes_on = torch.tensor([step.next_actions is not None for step, *_ in rows])
    actions = [actions for _, actions, _ in rows]
    real = _real(actions)
    if counted is None:
        counts = real
    else:
        counts = torch.zeros_like(real)
        counts[torch.arange(len(rows)), torch.tensor(counted)] = 1.0
    batch = Minibatch(
        states,
        which,
        _stack_pools(actions),
        real,
        counts,
        torch.tensor([step.value_of(k) for step, _, k in rows]),
        torch.tensor([step.discount for step, *_ in rows]),
        goes_on,
        next_states,
        next_which,
        _stack_pools(pools),
        _real(pools),
        torch.tensor([float(step.steps_left) for step, _ in going_on]),
        torch.tensor(float(experience)),
    )
    return Minibatch(*(tensor.to(device) for tensor in batch))


def _each_once(tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack the different ones among ``tensors`` and say which is whose: [U, ...], [len(tensors)]."""
    position: dict[int, int] = {}
    unique: list[Tensor] = []
    which = []
    for tensor in tensors:
        if id(tensor) not in position:
            position[id(tensor)] = len(unique)
            unique.append(tensor)
        which.append(position[id(tensor)])
    return (torch.stack(unique) if unique else torch.empty(0)), torch.tensor(which, dtype=torch.int64)


def _stack_pools(pools: list[Tensor]) -> Tensor:
    """Stack pools of different size; a small one repeats its first region, which changes no maximum."""
    if not pools:
        return torch.empty(0)
    size = max(map(len, pools))
    return torch.stack([torch.cat([pool, pool[:1].expand(size - len(pool), -1)]) for pool in pools])


def _real(pools: list[Tensor]) -> Tensor:
    """1 for the regions of each pool, 0 for what `_stack_pools` fills it up with: [len(pools), N]."""
    sizes = torch.tensor([len(pool) for pool in pools], dtype=torch.int64)
    return (torch.arange(int(sizes.max()) if len(pools) else 0) < sizes[:, None]).float()
