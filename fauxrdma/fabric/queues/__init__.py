"""Tier 1 of the fabric model: bytes in queues, per flow and hop, and what moves them from step to step."""
