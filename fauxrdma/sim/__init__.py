"""The same engines in one process under a virtual clock."""
