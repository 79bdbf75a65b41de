"""Opening a model (TrIMS, section 4.1): through the tiers, with references and the accounts of clients."""
