"""The model store (TrIMS): opening, memory, cold starts, churn."""
