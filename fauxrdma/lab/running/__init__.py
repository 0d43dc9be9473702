"""Labs that run in the background, each with a folder by which other commands find it (docs/labs.md)."""
