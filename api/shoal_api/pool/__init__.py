"""The state of the pool: its workers and indexes, and everything else that `GET /v1/pool` and `/metrics` show."""
