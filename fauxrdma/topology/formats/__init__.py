"""Fabrics in the formats of others, and back: ibnetdiscover, NCCL topology XML, containerlab, GraphML, fabric YAML.

`registry` names the formats; every module beside it is one of them or a part that several share:

- `records`: a topology taken apart into what formats list (switches, one inside per host, cables), and put together
  again; exact for every topology, since it works on `Topology.to_dict` and not on the fields it knows.
- `notes`: what a format has no words for, carried in its comments or labels, beside what it belongs to.
- `foreign`: a fabric told by a file of others, completed with documented defaults.
"""
