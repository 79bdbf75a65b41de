"""The fuzz: calls and files from grammars, most of them broken."""
