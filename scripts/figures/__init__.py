"""The papers' figures and tables, one module each: `scripts/reproduce FIGURE` (see `__main__`)."""
