"""nccl-tests for this fabric: sizes and buffers by its rules, its table, results checked element by element."""
