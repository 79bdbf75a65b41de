"""What lets a run go on for months with nobody beside it: silence, changes by hand, a bounded journal."""
