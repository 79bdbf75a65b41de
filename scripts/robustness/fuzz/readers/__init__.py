"""The readers of files and pages, and what damages them."""
