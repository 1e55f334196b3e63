"""Resume states: what of an epoch the training loop has had, in a form that any number of ranks and workers can go on from.

A state names the dataset, the order and what was consumed. States of workers also say which share they belong to;
the state of all is made of those with :func:`global_state`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .order import Order
from .shares import Progress, Share, progress_of

FORMAT = "stoker.data/1"
State = dict[str, Any]

_SHARE = ("rank", "world", "worker", "workers", "piece", "even")


def state_of(identity: str, order: Order, progress: Progress) -> State:
    """The state of all ranks."""
    return {
        "format": FORMAT,
        "dataset": identity,
        "samples": order.count,
        "seed": order.seed,
        "epoch": order.epoch,
        "shuffle": order.shuffle,
        "block": order.block,
        "consumed": progress.prefix,
        "ahead": [list(one) for one in progress.ahead],
    }


def with_share(state: State, share: Share, given: int) -> State:
    """The state of one worker, which has given so many samples since that state."""
    return {**state, **{name: getattr(share, name) for name in _SHARE}, "given": given}


def is_of_worker(state: State) -> bool:
    """Whether this is the state of one worker."""
    return "given" in state


def check(state: Any, identity: str, order: Order) -> tuple[int, Progress]:
    """Epoch and progress of a state, if it is one of this dataset and order."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"this is no state of a dataset of Stoker ({FORMAT}); see stoker.data.global_state")
    if state.get("dataset") != identity or state.get("samples") != order.count:
        raise ValueError(
            f"this state is of another dataset: {state.get('dataset')} with {state.get('samples')} samples, and this one is "
            f"{identity} with {order.count}. Open the dataset that the run began with, or start an epoch without a state"
        )
    for name in ("seed", "shuffle", "block"):
        if state.get(name) != getattr(order, name):
            raise ValueError(
                f"this state is of another order: {name}={state.get(name)!r}, and this dataset has {getattr(order, name)!r}; "
                "make the dataset with the same arguments"
            )
    progress, epoch = progress_of(state), state.get("epoch")
    end = progress.ahead[-1][1] if progress.ahead else progress.prefix
    if not isinstance(epoch, int) or end > order.count:
        raise ValueError("this state is damaged: its epoch or its counts cannot be")
    return epoch, progress


def share_of(state: State) -> Share:
    """The share of a worker's state."""
    try:
        return Share(**{name: state[name] for name in _SHARE})
    except (KeyError, TypeError) as fault:
        raise ValueError(f"this is no state of a worker: {fault}") from None


def given_of(state: State) -> int:
    """How many samples a worker gave."""
    given = state.get("given")
    if not isinstance(given, int) or given < 0:
        raise ValueError("this state is damaged: it does not say how many samples were given")
    return given


def global_state(states: Any) -> State:
    """The state of all ranks, made of what a ``StatefulDataLoader`` saved in one of them, or of the states of all its workers.

    Ranks go in step, so rank 0 stands for all. Use it when the number of ranks or of workers changes:

    >>> saved = loader.state_dict()                                  # before, in rank 0  
    >>> dataset.load_state_dict(stoker.data.global_state(saved))     # after, in every rank, before the loader is iterated
    """
    found = _workers_in(states)
    if len(found) == 1 and not is_of_worker(found[0]):
        return dict(found[0])
    if not found or any(not is_of_worker(one) for one in found):
        raise ValueError("there is no state of a dataset of Stoker in this; give what StatefulDataLoader.state_dict() returned")
    found.sort(key=lambda one: share_of(one).worker)
    first = share_of(found[0])
    workers = [share_of(one).worker for one in found]
    if workers != list(range(first.workers)):
        raise ValueError(f"states of workers {workers}, and there are {first.workers}: give those of all workers of one rank")
    base = {name: value for name, value in found[0].items() if name not in (*_SHARE, "given")}
    for one in found[1:]:
        if any(one.get(name) != value for name, value in base.items()) or share_of(one).rank != first.rank:
            raise ValueError("these states are not of one rank at one time")
    count = base["samples"]
    if not isinstance(count, int):
        raise ValueError("this state is damaged: it does not say how many samples there are")
    done = first.done(progress_of(base), count, [given_of(one) for one in found])
    return {**base, "consumed": done.prefix, "ahead": [list(one) for one in done.ahead]}


def _workers_in(states: Any) -> list[State]:
    """All our states in something nested: loaders wrap them in ways of their own."""
    found: list[State] = []
    pending: list[Any] = [states]
    for _ in range(100_000):
        if not pending:
            return found
        one = pending.pop()
        if isinstance(one, dict):
            if one.get("format") == FORMAT:
                found.append(one)
            else:
                pending.extend(one.values())
        elif isinstance(one, Sequence) and not isinstance(one, (str, bytes)):
            pending.extend(one)
    raise ValueError("this is too large for a state of a loader")
