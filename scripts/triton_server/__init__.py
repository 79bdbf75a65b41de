"""A stock Triton Inference Server from pip alone, with our models in its Python backend."""
