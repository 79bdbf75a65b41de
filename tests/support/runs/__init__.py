"""Runs of the tuner, and the targets, guards and expectations that are made for one."""
