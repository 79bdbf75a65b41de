"""SERF's figures and tables (Yan et al., SC'16), one module each, and what several of them share."""
