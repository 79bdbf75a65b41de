"""What a client refers to is counted once a model, whatever is opened and closed in whichever order."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.model_store.errors import NoRoom
from serving_adapter.model_store.opening.account import Account
from tests.support.stores.store_in_process import address

QUOTA_BYTES = 100


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60), st.booleans())))
def test_a_client_is_charged_for_each_model_that_it_has_open(operations):
    """A model's size may differ from one opening to the next, as between a GPU and host memory."""
    account, references, sizes = Account(QUOTA_BYTES), dict.fromkeys("abcd", 0), {}
    for name, size_bytes, opens in operations:
        if opens:
            with contextlib.suppress(NoRoom):
                account.charge("host", address(name), size_bytes)
                references[name] += 1
                sizes[name] = size_bytes
        elif references[name]:
            account.release("host", address(name))
            references[name] -= 1
        assert account.held_bytes == sum(sizes[name] for name, count in references.items() if count)
        assert account.leases == sum(references.values())
