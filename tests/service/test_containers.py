"""The containers: unprivileged, on a read-only file system, without secrets, and with health checks."""

import re
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from conftest import TESTS

ROOT = TESTS.parent
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = {name: ROOT / name / "Dockerfile" for name in ("api", "workers")}

#: Keys of a compose service that would give the container more privileges.
PRIVILEGES = {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode", "userns_mode"}
PRIVILEGES |= {"group_add", "volumes_from"}


def instructions(name: str, target: str = "") -> list[str]:
    """Return the instructions of an image, each on one line: of its stage and of the stages that it extends."""
    lines = re.sub(r"\\\n", "", DOCKERFILES[name].read_text()).splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    stages: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("FROM "):
            _, base, *alias = line.split()
            stages[last := alias[-1] if alias else ""] = list(stages.get(base, []))
        if stages:
            stages[last].append(line)
    return stages[target or last]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_privileges_and_no_secrets_is_not_root_and_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not PRIVILEGES & set(service)
    assert not [volume for volume in service.get("volumes", []) if "docker.sock" in str(volume)]
    for variable, value in (service.get("environment") or {}).items():
        assert not re.search(r"PASSWORD|TOKEN|SECRET", variable)
        assert not re.search(r"://[^/]*:[^/]*@", str(value))
    if "build" in service:
        build = service["build"]
        stage = instructions(build["dockerfile"].partition("/")[0], build.get("target", ""))
        users = [line.split()[1] for line in stage if line.startswith("USER ")]
        assert users
        assert users[-1].isdigit()
        assert int(users[-1]) >= 1_000
        assert any(line.startswith("HEALTHCHECK ") for line in stage)
        assert "user" not in service
    else:
        assert service["user"] not in ("root", "0")
        assert service["healthcheck"]["test"]


def test_profiles_only_add_services_and_only_this_machine_reaches_the_ports() -> None:
    assert [name for name, service in SERVICES.items() if "profiles" not in service] == [
        "redis",
        "api",
        "workers",
        "jobs",
    ]
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert "ports" not in SERVICES["redis"]


@pytest.mark.parametrize(("name", "target"), [("api", ""), ("workers", ""), ("workers", "runner"), ("workers", "gpu")])
def test_an_image_contains_only_files_that_its_build_made(name: str, target: str) -> None:
    stage = instructions(name, target)
    copies = [line for line in stage if line.startswith(("COPY", "ADD"))]
    assert copies
    assert all(line.startswith("COPY --from=") for line in copies)
    arguments = [line for line in stage if line.startswith(("ARG", "ENV"))]
    assert not re.search(r"PIP_|TOKEN|PASSWORD|SECRET|API_KEY", " ".join(arguments))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_modules_that_an_image_names_exist(name: str) -> None:
    named = re.findall(r"\bshoal(?:_api|_workers)?(?:\.\w+)+", DOCKERFILES[name].read_text())
    assert named
    assert all(map(find_spec, named))


def test_a_build_sees_only_the_files_that_it_needs() -> None:
    first, *others = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("#", "")]
    assert first == "*"
    wanted = [line[1:] for line in others if line.startswith("!")]
    assert all((ROOT / path).exists() for path in wanted)
    assert not [path for path in wanted if path.startswith(".")]
