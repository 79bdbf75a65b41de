"""Several models that share one machine: a belief of each, and what they slow each other by."""
