"""The calls to a server, over gRPC and HTTP."""
