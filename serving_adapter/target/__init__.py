"""Any server that is tuned: read, changed and checked over the Open Inference Protocol."""
