"""Putting a configuration in force on a target, and refusing one under which requests would be refused."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from types import MappingProxyType

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving_adapter.knob_limits import Configuration
from serving_adapter.model_configuration import all_instances
from serving_adapter.target.error import NoSuchKnob, RequestsRefused, TargetError
from serving_adapter.target.open_inference import change
from serving_adapter.target.open_inference.checks import tunable
from serving_adapter.target.open_inference.composition import check_fits
from serving_adapter.target.open_inference.counters import TargetCounters
from serving_adapter.target.open_inference.found_configuration import FoundConfiguration
from serving_adapter.target.open_inference.inference_server import InferenceServer
from serving_adapter.target.target import Applied, BeforeChange

LOOKS_FOR_ITEMS = 5
LONG_QUEUE = 100  # requests: seconds of waiting, beside which those of a reload are few


class Reconfiguration:
    """Changes one model's configuration. It remembers a change that was broken off, over reconnects too."""

    def __init__(self, server: InferenceServer, found: FoundConfiguration) -> None:
        self._server, self._found = server, found
        self._broken_off = False  # a change was, which the server may go on with

    def may_be_changing(self) -> None:
        """An earlier run may have been killed in a change: what seems in force already is sent once more."""
        self._broken_off = True

    def apply(
        self,
        model: str,
        configuration: Configuration,
        counters: TargetCounters | None,
        starts_at_once: int | None,
        before_change: BeforeChange,
        ensembles: Mapping[str, int] = MappingProxyType({}),
    ) -> Applied:
        """Does what `Target.apply` promises, and tells the counters of a load.

        `ensembles` have the model as a step, and stay ready: each with its max_batch_size.
        """
        before = self._server.config_of(model)
        present = tunable(before)
        unknown = set(configuration) - set(present)
        if unknown:
            raise NoSuchKnob(
                f"model {model!r} at {self._server.address} has no knob {', '.join(sorted(unknown))}; "
                f"it has {', '.join(present) or 'none'}"
            )
        wanted = self._found.edited(before, configuration)
        changes = {name: value for name, value in configuration.items() if present[name] != value}
        if not changes and not self._broken_off:
            return Applied(in_place=True, cold_instances=0, changed=False)
        self._check_answers_items(model, changes)
        if why_not := check_fits(changes.get("max_batch_size", math.inf), ensembles):
            raise RequestsRefused(why_not)
        in_place = set(changes) <= self._server.in_place_knobs
        at_once = None if self._server.is_rrl_serve else starts_at_once
        grows = changes.get("instances", 0) > present.get("instances", 0) and not self._server.is_rrl_serve
        queue_is_long = grows and _queue_is_long(counters)
        to_load = change.stages(before, wanted, in_place, at_once, queue_is_long)
        before_change(present, present | changes)
        try:
            change.put_in_force(self._server.connection, before, to_load, changes, list(ensembles))
        except KeyboardInterrupt:
            self._broken_off = True
            raise
        finally:  # a change that failed has loaded what was before
            if counters is not None:
                counters.loaded()
        self._broken_off = False
        replaced = {name: present[name] for name in configuration}
        in_place = in_place and to_load[0].dynamic_batching == wanted.dynamic_batching
        return self._applied(in_place, before, wanted, counters)._replace(replaced=replaced)

    def requests_hold_several_items(self, model: str) -> bool:
        """True if requests were seen that a smaller max_batch_size may refuse.

        Triton answers no request of more items than that, and counts none of them either. Our own server
        runs such a request alone. Triton seems to count items and requests at once, but does not say that it
        must: one look that sees as many of both is enough.
        """
        if self._server.is_rrl_serve:
            return False
        return all(self._server.items_beyond_requests(model) > 0 for _ in range(LOOKS_FOR_ITEMS))

    def refuses_more_than_found(self, configuration: Configuration) -> str:
        """Answers for `Target.refuses_more_than_found`."""
        found = self._found.max_batch_size
        size = configuration.get("max_batch_size", found)
        if self._server.is_rrl_serve or size >= found:
            return ""
        return (
            f"max_batch_size was {found} and is {size}: no request seen held several items, but one of more "
            f"than {size} is refused from now on, and Triton counts none of them"
        )

    def _check_answers_items(self, model: str, changes: Configuration) -> None:
        size, found = changes.get("max_batch_size", math.inf), self._found.max_batch_size
        if size < found and self.requests_hold_several_items(model):
            raise RequestsRefused(
                f"max_batch_size {size} is below the {found} it was found with, and some requests held "
                "several items, of which Triton answers none that holds more than that"
            )

    def _applied(
        self,
        in_place: bool,
        before: ModelConfig,
        after: ModelConfig,
        counters: TargetCounters | None,
    ) -> Applied:
        if self._server.is_rrl_serve:
            return Applied(in_place=True, cold_instances=0)
        instances = all_instances(after)
        began_again = counters is not None and counters.began_again()
        if not in_place or began_again:
            return Applied(in_place=False, cold_instances=instances)
        return Applied(in_place=True, cold_instances=max(0, instances - all_instances(before)))


def _queue_is_long(counters: TargetCounters | None) -> bool:
    """False where nothing tells how many requests wait."""
    with contextlib.suppress(TargetError):  # the change itself will tell
        if counters is not None:
            return (counters.glance().pending or 0) >= LONG_QUEUE
    return False
