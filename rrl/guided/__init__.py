"""The default agent: a queueing model as prior, and what is learned of its errors."""
