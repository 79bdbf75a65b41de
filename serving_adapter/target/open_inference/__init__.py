"""A model of a server that speaks the Open Inference Protocol, such as ours or a Triton, as a target."""
