-- Have others listen after a worker did.
-- KEYS: the workers that listen, those that sleep and those that are alive. args: those of idle workers
hand_on(idle_at(1), args.consumer)
