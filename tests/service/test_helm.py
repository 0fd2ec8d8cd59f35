"""The chart in `deploy/helm`, rendered by Go's own templates: Kubernetes accepts it, and its settings are right."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from page import ROOT

from shoal.settings import DEFAULTS, variable
from shoal.supervisor.process import STOP_WITHIN_S
from shoal.supervisor.supervisor import API_STOP_WITHIN_S

CHART = ROOT / "deploy" / "helm" / "shoal"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())

#: The oldest version of Kubernetes that the chart supports, and the newest version with schemas.
VERSIONS = ("1.27", "1.37")

jsonschema = pytest.importorskip("jsonschema")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
if find_spec("go_template") is None:
    pytest.skip("go_template has builds for Linux on x86-64 alone", allow_module_level=True)

#: The program of a separate process, because Go's runtime would keep threads and signal handlers in the tests' process.
RENDER = "import sys, go_template; go_template.render_template(*sys.argv[1:])"

Objects = dict[str, dict[str, Any]]
Render = Callable[[dict[str, Any]], Objects]


@pytest.fixture
def render(tmp_path: Path) -> Render:
    """Return a function that renders the chart for an installation `x`, and returns its objects by kind and name."""

    def render(values: dict[str, Any]) -> Objects:
        values = merged(VALUES, values)
        jsonschema.validate(values, SCHEMA)
        about = {"Values": values, "Release": {"Name": "x", "Namespace": "space"}}
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(about))
        found: Objects = {}
        for template in sorted((CHART / "templates").glob("*.yaml")):
            names = (CHART / "templates" / "_names.tpl").read_text()
            (tmp_path / "template").write_text(names + template.read_text())
            paths = [str(tmp_path / name) for name in ("template", "values.yaml", "rendered")]
            subprocess.run([sys.executable, "-c", RENDER, *paths], check=True)
            for item in yaml.safe_load_all(Path(paths[2]).read_text()):
                if item:
                    found[f"{item['kind']} {item['metadata']['name']}"] = item
        return found

    return render


def merged(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Return the values overridden by `others`, merged as Helm does."""
    both = {name: merged(values[name], other) for name, other in others.items() if isinstance(values.get(name), dict)}
    return values | others | both


ALL = {
    "images": {"pullSecret": "registry"},
    "settings": {"SHOAL_POOL": "a", "SHOAL_CACHE_MB": 64},
    "api": {"keysSecret": "keys"},
    "keda": {"enabled": True, "apiKeySecret": "key"},
    "jobs": {"enabled": True},
    "workers": {"gpus": 1, "nodeSelector": {"a.b/kind": "gpu"}, "tolerations": [{"key": "gpu", "value": "yes"}]},
}
LITTLE = {"redis": {"urlSecret": "redis"}, "api": {"maxReplicas": 0}, "networkPolicy": False}


@pytest.mark.parametrize("values", [{}, ALL, LITTLE], ids=["as it comes", "all", "little"])
def test_kubernetes_accepts_all_objects(render: Render, values: dict[str, Any]) -> None:
    objects = render(values)
    assert {"Deployment x-api", "Deployment x-workers", "Service x"} <= objects.keys()
    for item in objects.values():
        if not item["apiVersion"].startswith("keda"):
            for version in VERSIONS:
                kubernetes_validate.validate(item, version, strict=True)
    pods = [item["spec"]["template"]["spec"] for item in objects.values() if "template" in item["spec"]]
    for container in [container for pod in pods for container in pod["containers"]]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(pod["securityContext"]["runAsNonRoot"] for pod in pods)


def test_settings_reach_the_processes(render: Render) -> None:
    known = {variable(name) for name in DEFAULTS.to_environment()} | set(DEFAULTS.to_environment())
    for name in ("Deployment x-api", "Deployment x-workers", "Deployment x-jobs"):
        (container,) = render(ALL)[name]["spec"]["template"]["spec"]["containers"]
        environment = {item["name"]: item.get("value") for item in container["env"]}
        assert (environment["SHOAL_POOL"], environment["SHOAL_CACHE_MB"]) == ("a", "64")
        assert environment["SHOAL_REDIS_URL"] == "redis://x-redis:6379/0"
        assert environment.keys() <= known


def test_a_stopped_pod_has_time_to_finish(render: Render) -> None:
    objects = render({})
    seconds = {
        name: objects[f"Deployment x-{name}"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for name in ("api", "workers")
    }
    assert seconds["api"] >= API_STOP_WITHIN_S + 5
    assert seconds["workers"] >= STOP_WITHIN_S


def test_keda_scales_by_the_number_of_waiting_texts(render: Render) -> None:
    objects = render(ALL)
    scaled = objects["ScaledObject x-workers"]["spec"]
    assert "replicas" not in objects["Deployment x-workers"]["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (0, 20)
    assert [trigger["metadata"]["valueLocation"] for trigger in scaled["triggers"]] == [
        'lanes.#(lane=="interactive").num_texts',
        'lanes.#(lane=="bulk").num_texts',
    ]
    assert {trigger["metadata"]["url"] for trigger in scaled["triggers"]} == {"http://x.space:80/v1/pool"}
    assert {trigger["authenticationRef"]["name"] for trigger in scaled["triggers"]} == {"x-pool"}


@pytest.mark.parametrize(
    "values",
    [{"worker": {}}, {"workers": {"replicas": -1}}, {"api": {"memory": "much"}}, {"settings": {"POOL": "a"}}],
)
def test_unknown_and_wrong_values_are_refused(render: Render, values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        render(values)


def test_every_value_has_a_description_in_the_schema() -> None:
    def check(values: dict[str, Any], schema: dict[str, Any]) -> None:
        assert values.keys() == schema["properties"].keys()
        for name, about in schema["properties"].items():
            if "properties" in about:
                check(values[name], about)
            else:
                assert about["description"]

    check(VALUES, SCHEMA)
