"""The flags of a program: what reads them, what fits them, what is wrong with them, the page that helps."""
