"""The gRPC header that carries the key to control a server: ours, or one of Triton's restricted protocols."""

CONTROL_KEY_HEADER = "triton-grpc-protocol-control-key"
