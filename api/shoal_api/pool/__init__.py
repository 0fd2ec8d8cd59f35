"""The state of the pool: of its workers and indexes, or of all that `GET /v1/pool` and `/metrics` show."""
