"""Workers: take jobs off the queue in micro-batches, embed, search, reply."""
