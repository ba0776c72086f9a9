"""The process of the batch script: a state machine from the allocation to the last removed file."""
