"""The graph of a fabric, the presets, and the YAML format of custom ones."""
