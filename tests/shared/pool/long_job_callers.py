"""Callers of long jobs over HTTP, and RQ's keys for them."""

from pathlib import Path
from typing import Any

import redis
from api_stub import MakeApp
from flask import Flask
from flask.testing import FlaskClient
from long_job_tasks import queue_names
from werkzeug.test import TestResponse

from shoal.contract.keys import Keys
from shoal_api.access import api_keys


class Rq:
    """RQ's keys for the jobs of a pool. Tests change them as a runner would."""

    def __init__(self, connection: "redis.Redis", keys: Keys):
        self.connection = connection
        self._keys = keys

    def set(self, job_id: str, **fields: bytes | str) -> None:
        """Overwrite fields of a job."""
        self.connection.hset(f"rq:job:{job_id}", mapping=fields)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Delete all keys."""
        for name in queue_names(self._keys):
            for key in self.connection.scan_iter(f"rq:*{name.replace('{', '?').replace('}', '?')}*"):
                self.connection.delete(key)
        for key in self.connection.scan_iter("rq:job:*"):
            if self.connection.hget(key, "origin") in [name.encode() for name in queue_names(self._keys)]:
                self.connection.delete(key)


class Guarded:
    """An application that needs API keys."""

    def __init__(self, make_app: MakeApp, path: Path):
        roles = {"ann": "user", "bob": "user", "ops": "admin"}
        self._secrets = {name: api_keys.add(path, name, role, "") for name, role in roles.items()}
        self._app: Flask = make_app(api_keys_file=str(path))

    def ask(self, name: str, method: str, path: str, **options: Any) -> TestResponse:
        """Send a request with the key of this name."""
        headers = {"Authorization": f"Bearer {self._secrets[name]}"}
        return self._app.test_client().open(path, method=method, headers=headers, **options)


def submitted(response: TestResponse) -> str:
    """Check the answer to a submit without a runner; return the job's location."""
    job = response.get_json()
    assert response.status_code == 202, job
    assert job == {"id": job["id"], "status": "queued", "note": "no runner is alive: start one with `shoal jobs`"}
    assert response.headers["Location"] == f"/v1/jobs/{job['id']}"
    return response.headers["Location"]


def submit(api: FlaskClient, **fields: Any) -> str:
    """Submit a bulk embedding; return its location."""
    return submitted(api.post("/v1/bulk", json={"source": "news.csv"} | fields))
