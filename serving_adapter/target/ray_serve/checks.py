"""What of a deployment may be tuned, and what a person should know of how it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from serving_adapter.target.ray_serve.deployed import (
    DECLARATIVE,
    MAX_ONGOING,
    Deployed,
)

_LAG = (
    "Ray's processes tell their counters every 10 s unless RAY_metrics_report_interval_ms says otherwise, "
    "and every reading waits for that: give --interval-s 60 or more, or start Ray with 1000 there"
)
_COARSE = (
    "Ray tells latencies in a few wide steps (20, 50, 100 ms, ...), so that smaller gains are not seen: "
    "start Ray with more of them in RAY_SERVE_REQUEST_LATENCY_BUCKETS_MS"
)
_WIDEST_STEP = 1.5  # from a bound of the histogram to the next, for which nothing is said


def why_not_tunable(deployed: Deployed, address: str) -> str:
    """In one sentence, with what to do; empty if its configuration may be changed."""
    of = f"the deployment {deployed.deployment!r} of the application {deployed.application!r} at {address}"
    app, effective = deployed.app, deployed.effective
    if app.get("source") != DECLARATIVE or not app.get("deployed_app_config"):
        return (
            f"{of} was deployed by serve.run, whose replicas every change would replace: write its "
            "configuration with serve build, and deploy that with serve deploy"
        )
    if not effective:
        return f"{of} is not running: its application is {app.get('status')}; see serve status"
    if effective.get("autoscaling_config") or "instances" not in deployed.homes:
        return (
            f"{of} has autoscaling on, which would undo every change: take its autoscaling_config away "
            "and give it a num_replicas, or only observe it with --advise"
        )
    if (capacity := deployed.told.get("target_capacity")) not in (None, 100):
        return (
            f"{of} runs at a target_capacity of {capacity:g} %, which scales every num_replicas: deploy it "
            "without one, or with 100"
        )
    return ""


def notes(deployed: Deployed) -> list[str]:
    """One sentence each."""
    told, values, label = [], deployed.values(), deployed.label
    if "max_batch_size" not in values:
        told.append(
            f"{label} has no max_batch_size and batch_wait_timeout_s in its user_config, so its batches are "
            "not tuned: expose them there, and have reconfigure() hand them to @serve.batch"
        )
    elif values.get(MAX_ONGOING, 0) < values["max_batch_size"]:
        told.append(
            f"{label} has a max_ongoing_requests of {values.get(MAX_ONGOING)}, so no batch of its holds more "
            f"requests, whatever the max_batch_size ({values['max_batch_size']})"
        )
    if deployed.threads_are_cpus():
        told.append(
            f"intra_op_threads of {label} is the num_cpus of its ray_actor_options, and a change of it "
            "starts new replicas, some at a time; expose intra_op_threads in user_config to have it change "
            "in place, or leave it out with --forbid"
        )
    return told


def notes_on_counters(
    deployed: Deployed, by_proxies: bool, bounds_s: Sequence[float], out_of_reach: Collection[str]
) -> list[str]:
    """What the counters leave out, one sentence each. `bounds_s` are those of the latencies."""
    told = [_LAG]
    if not by_proxies:
        told.append(
            f"{deployed.label} is called by other deployments, so its latency is what its replicas tell: the "
            "percentiles are without the wait for a replica, and max_ongoing_requests is not tuned"
        )
    inside = [bound_s for bound_s in bounds_s if 0.01 <= bound_s <= 1.0]
    if any(high > _WIDEST_STEP * low for low, high in pairwise(inside)):
        told.append(_COARSE)
    if out_of_reach:
        told.append(f"what is counted at {', '.join(sorted(out_of_reach))} is missing: no answer from there")
    return told


def why_no_room(instances: int, cpus: float, cpus_by_node: Sequence[float], of_others: float) -> str:
    """Says in one sentence that so many replicas find no place on the nodes; empty if they do.

    `of_others`: the processors that other deployments hold. What else runs on the nodes is not counted.
    """
    most = room_for(cpus, cpus_by_node, of_others)
    if instances <= most:
        return ""
    each = ", ".join(f"{node:g}" for node in cpus_by_node)
    return (
        f"{instances} replicas of {cpus:g} CPUs find no place on the cluster, whose nodes have {each} CPUs, "
        f"of which other deployments hold {of_others:g}: at most {most} do"
    )


def room_for(cpus: float, cpus_by_node: Sequence[float], of_others: float) -> int:
    """How many replicas of so many processors the nodes hold; any number where nobody tells of nodes."""
    if cpus <= 0 or not cpus_by_node:
        return 1 << 30
    left = int(max(0.0, sum(cpus_by_node) - of_others) // cpus)
    return min(left, sum(int(node // cpus) for node in cpus_by_node))
