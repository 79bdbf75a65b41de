"""Models that make trouble, for servers under test."""
