"""The subnet manager's tables, the model that grants rates, and the scheduler that paces frames. All of it pure."""
