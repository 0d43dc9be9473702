"""The lab file: one YAML file that says which fabric, which nodes, which job (docs/labs.md)."""

from fauxrdma.lab.file.form import JobForm, LabForm, ResourcesForm, json_schema, keys
from fauxrdma.lab.file.loading import LabFile, load_lab, load_lab_text

__all__ = ["JobForm", "LabFile", "LabForm", "ResourcesForm", "json_schema", "keys", "load_lab", "load_lab_text"]
