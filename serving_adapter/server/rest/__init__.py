"""The protocol over HTTP/REST: the same service as over gRPC, through another door.

A call is translated into the message that gRPC would have brought, handed to the service, and its answer
written as JSON. So what a server takes, refuses and bounds is the same at both doors.
"""
