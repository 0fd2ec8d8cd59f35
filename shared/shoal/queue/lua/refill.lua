-- Move the next waiting job of an overflow to its stream, after a worker has read the last one by a blocking command.
-- KEYS: those of the lane.
refill(lane_at(1))
