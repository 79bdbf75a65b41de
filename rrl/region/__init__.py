"""RRL as in the paper: region-based Q-learning with an FTRL-trained latency estimator."""
