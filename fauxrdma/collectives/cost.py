"""What a plan should cost on equal, uncontended links: the alpha-beta model, by playing the plan on ideal clocks."""

from __future__ import annotations

from fauxrdma.collectives.plan import Plan, Put, Signal, Wait

__all__ = ["predict_ns"]


def predict_ns(plan: Plan, alpha_ns: float, bytes_per_ns: float, itemsize: int = 1) -> float:
    """Nanoseconds until the last rank is done, when all start together.

    A message of b bytes occupies its sender's link for b / `bytes_per_ns` and arrives `alpha_ns` later; computing is
    free and staging slots are unlimited. Every pair of ranks has a link of its own. Raises ValueError for a rate of
    zero or less.
    """
    if bytes_per_ns <= 0:
        raise ValueError(f"bytes_per_ns must be more than zero, got {bytes_per_ns}")
    n = plan.world_size
    programs = [plan.program(rank) for rank in range(n)]
    position = [0] * n
    now = [0.0] * n
    link_free: dict[tuple[int, int], float] = {}
    arrivals: dict[tuple[int, int], list[float]] = {}
    pending = list(range(n))
    while pending:
        blocked: list[int] = []
        moved = False
        for rank in pending:
            steps = programs[rank].steps
            while position[rank] < len(steps):
                step = steps[position[rank]]
                if isinstance(step, Wait):
                    queue = arrivals.get((step.peer, rank), [])
                    if len(queue) <= step.index:
                        break
                    now[rank] = max(now[rank], queue[step.index])
                elif isinstance(step, Put | Signal):
                    nbytes = step.src.count * itemsize if isinstance(step, Put) else 0
                    edge = (rank, step.peer)
                    departed = max(now[rank], link_free.get(edge, 0.0)) + nbytes / bytes_per_ns
                    link_free[edge] = departed
                    arrivals.setdefault(edge, []).append(departed + alpha_ns)
                position[rank] += 1
                moved = True
            if position[rank] < len(steps):
                blocked.append(rank)
        if blocked and not moved:
            raise ValueError(f"this {plan.name} plan never ends: ranks {blocked} wait for each other")
        pending = blocked
    return max(now)
