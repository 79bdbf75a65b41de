"""Why a target fails, each in one sentence that says what to do."""

from __future__ import annotations


class TargetError(Exception):
    """The target cannot be tuned, or refused something; the text is one sentence for the user."""


class NotYetThere(TargetError):
    """Nothing has answered at the target's address so far, or its model is not ready: it may come."""


class TargetLost(TargetError):
    """A target that answered before does not answer now; it may come back."""


class LeaseTaken(TargetError):
    """Another tuner has the lease on the model; nothing was changed."""


class LeaseLost(LeaseTaken):
    """Another tuner has had the lease since this one had it; nothing was changed."""


class ModelAbsent(TargetLost):
    """The server is there and the model is not: somebody unloaded it, and may load it again."""


class LostInChange(TargetLost):
    """It was lost in the middle of a change of its configuration, which may be what brought it down."""


class LoadUnanswered(TargetError):
    """A configuration was not loaded in time; the server may still put it in force."""


class Overtaken(TargetError):
    """Another client set another configuration while one was put in force; that of the other one stays."""


class NotPutBack(TargetError):
    """A change failed, and so did putting back the configuration from before: the model may not be served."""


class NoSuchKnob(TargetError):
    """The model lacks a knob that is to be set; nothing was changed."""


class IsEnsemble(TargetError):
    """The model has no knobs of its own, but its steps may have."""


class RequestsRefused(TargetError):
    """With that configuration the server would refuse requests that it answers now; nothing was changed."""
