"""The default agent: a rule by which it changes the server, over what is believed of it."""
