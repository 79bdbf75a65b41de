"""`rrl-tune --advise` recommends a configuration by what was observed of a target."""
