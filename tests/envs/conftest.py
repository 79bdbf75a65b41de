"""A fake target and its clock, for the tests of the live environment."""

import pytest

from tests.support.runs.fake_target import FakeClock, FakeTarget


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def target(clock):
    return FakeTarget(clock)
