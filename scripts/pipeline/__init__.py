"""A pipeline of three functions in processes of their own, with the model store and without (TrIMS, 3)."""
