"""A neighbour's queries: half of the machine while one is there, all of it otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.server.workers.tenant import Tenant, TenantQueries

MS = 1_000_000


def ends_ns(tenant: Tenant, began_ns: int, *works_ns: int) -> int:
    """When a worker is through that runs these one after the other."""
    queries, now_ns = TenantQueries(tenant), began_ns
    for work_ns in works_ns:
        now_ns += work_ns + queries.delay_ns(now_ns, work_ns)
    return now_ns


def test_without_a_query_nothing_is_delayed():
    assert TenantQueries(Tenant(1e-9, 50.0)).delay_ns(0, 50 * MS) == 0


def test_beside_a_query_that_does_not_end_everything_takes_twice_as_long():
    queries = TenantQueries(Tenant(1e6, 1e9))
    assert queries.delay_ns(1 * MS, 50 * MS) == 50 * MS


def test_a_batch_that_outlasts_a_query_loses_half_of_the_querys_length():
    queries = TenantQueries(Tenant(0.1, 20.0))
    began_ns = round(queries._begins_ns)
    assert queries.delay_ns(began_ns, 50 * MS) == pytest.approx(10 * MS, abs=2)


@given(
    seed=st.integers(0, 2**32),
    works_ms=st.lists(st.integers(1, 200), min_size=1, max_size=30),
    rate=st.floats(0.5, 30.0),
)
def test_a_batch_in_parts_takes_as_long_as_the_whole(seed, works_ms, rate):
    tenant = Tenant(rate, 30.0, seed)
    parts = ends_ns(tenant, 0, *(MS * work for work in works_ms))
    assert parts == pytest.approx(ends_ns(tenant, 0, MS * sum(works_ms)), abs=len(works_ms))


def test_a_tenant_takes_half_of_the_share_of_time_in_which_it_has_queries():
    """Fig. 13's tenants: 8.4 queries/s of 50 ms keep a machine busy for 42 % of the time."""
    work_ns = 50 * MS
    whole_ns = ends_ns(Tenant(8.4, 50.0, seed=1), 0, *[work_ns] * 40_000)
    assert 40_000 * work_ns / whole_ns == pytest.approx(1 - 0.42 / 2, rel=0.01)


def test_another_seed_makes_other_queries():
    works_ns = [50 * MS] * 20
    assert ends_ns(Tenant(8.4, 50.0, 1), 0, *works_ns) != ends_ns(Tenant(8.4, 50.0, 2), 0, *works_ns)
