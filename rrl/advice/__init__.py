"""`rrl-tune --advise`: what a target had better do, by what was observed of it."""
