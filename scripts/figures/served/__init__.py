"""What the figures of the real server share: its models and loads, measurements that go on, landscapes."""
