"""`rrl-tap`: stands between clients and a server, and counts what the clients see.

| module | tells or does |
|---|---|
| `frames` | the frames of HTTP/2 in a stream of bytes |
| `calls` | the calls of one connection, from the frames of both directions |
| `tally` | latencies and failures by model |
| `proxy` | hands the bytes on, untouched |
| `page` | the metrics page: the server's own, and what was counted |
| `client` | the same counts within a Python client, where no tap can be put |

A stock Triton tells no percentiles of latency. With the page of a tap, objectives on the p95 work there.
"""
