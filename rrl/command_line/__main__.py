"""`python -m rrl.command_line` is `rrl-tune`."""

from rrl.command_line import main

main()
