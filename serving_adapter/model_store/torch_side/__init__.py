"""The store's memory as tensors of torch, which nothing else of the store imports."""
