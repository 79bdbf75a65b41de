"""The server, its models and its load, and the adapter to any server that is tuned. Nothing here tunes.

| package | what is in it |
|---|---|
| `target` | any inference server that is tuned: read, changed and checked |
| `server` | this project's own server (`rrl-serve`) |
| `load` | arrivals, traces, request sizes and the load generator (`rrl-load`) |
| `models` | the models that the server runs |
| `model_store` | weights that the processes of a machine share (`rrl-store`) |
| `parity` | parity models: coding, training, evaluation (`rrl-parity`) |
| `flags` | command lines made from dataclasses |

| module | what is in it |
|---|---|
| `address` | where a server is: HOST:PORT in all its forms |
| `http_exchange` | one request over HTTP and its whole answer |
| `model_configuration` | the knobs as fields of a Triton ModelConfig |
| `tensors` | data types and specifications of tensors |
| `messages` | messages between processes of one machine |
| `resources` | how busy this machine's processors are |
| `stop_signal` | SIGTERM and SIGINT as an event |
| `whole_files` | files that appear whole or not at all |
| `control_key` | the header that carries the key to change a server |
"""
