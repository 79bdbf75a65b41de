"""The Open Inference Protocol over gRPC: what is taken in, obeyed or refused, and sent."""
