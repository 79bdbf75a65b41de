"""Requests while a test looks on."""

import contextlib
import threading


@contextlib.contextmanager
def steadily(call):
    """Calls it again and again, one after the other, in a thread of its own."""
    stop = threading.Event()

    def go_on():
        while not stop.wait(0.01):
            call()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
