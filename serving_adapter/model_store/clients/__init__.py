"""A process that uses the store: its connection, its questions, and a store started where none runs."""
