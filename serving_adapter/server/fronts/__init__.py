"""Several fronts that serve with one configuration: the first one starts the others, and agrees with them."""
