"""A folder for PYTHONPATH: a Python that starts with it reads weight files through the model store."""
