"""What clients and operators may ask of a store, and the sessions that tell it who is still there."""
