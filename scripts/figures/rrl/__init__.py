"""RRL's figures (Qin et al., SC'19), one module each, and what several of them share."""
