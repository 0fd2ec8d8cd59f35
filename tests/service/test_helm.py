"""The chart in `deploy/helm`, rendered by Helm itself: Kubernetes accepts it, and its settings are right."""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from page import ROOT

from shoal.settings import DEFAULTS, Settings, variable
from shoal.supervisor.process import STOP_WITHIN_S
from shoal.supervisor.supervisor import API_STOP_WITHIN_S

CHART = ROOT / "deploy" / "helm" / "shoal"

#: The oldest version of Kubernetes that the chart supports, and the newest version with schemas.
VERSIONS = ("1.27", "1.37")

kubernetes_validate = pytest.importorskip("kubernetes_validate")
if find_spec("helm_python") is None:
    pytest.skip("helm-python-sdk is installed on Linux on x86-64 alone", allow_module_level=True)

#: The program of a separate process, because Go's runtime would keep threads and signal handlers in the tests' process.
RENDER = """
import json, sys
from helm_python import HelmError
from helm_python.chart import Chart
try:
    print(json.dumps(Chart.load(sys.argv[1]).render(json.loads(sys.argv[2]), name="x", namespace="space")))
except HelmError as error:
    sys.exit(str(error))
"""

Objects = dict[str, dict[str, Any]]


def run(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Render the chart with the values for an installation `x`."""
    return subprocess.run([sys.executable, "-c", RENDER, CHART, json.dumps(values)], capture_output=True, text=True)


def render(values: dict[str, Any]) -> Objects:
    """Return the objects of the chart by kind and name."""
    done = run(values)
    assert done.returncode == 0, done.stderr
    items = [item for text in json.loads(done.stdout).values() for item in yaml.safe_load_all(text) if item]
    return {f"{item['kind']} {item['metadata']['name']}": item for item in items}


def container_of(objects: Objects, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the only container of a deployment, and its environment."""
    (container,) = objects[f"Deployment x-{name}"]["spec"]["template"]["spec"]["containers"]
    environment = {item["name"]: item.get("value") for item in container["env"]}
    assert len(environment) == len(container["env"])
    return container, environment


ALL: dict[str, Any] = {
    "images": {"pullSecret": "registry"},
    "settings": {"SHOAL_STALL_TIMEOUT_S": 90, "SHOAL_CACHE_MB": 64},
    "api": {"keysSecret": "keys", "pool": "a"},
    "pools": {"a": {}, "on": {"model": "org/large", "reranker": "judge", "image": "large:1", "replicas": 1}},
    "keda": {"enabled": True, "apiKeySecret": "key"},
    "jobs": {"enabled": True},
    "workers": {"gpus": 1, "nodeSelector": {"a.b/kind": "gpu"}, "tolerations": [{"key": "gpu", "value": "yes"}]},
}
#: What a pool may have in place of the values of all pools.
OWN: dict[str, Any] = {"cpu": "500m", "memory": "4Gi", "gpus": 2, "maxReplicas": 3, "textsPerWorker": 50}
OWN |= {"nodeSelector": {"a.b/kind": "cpu"}, "tolerations": [{"key": "cpu", "value": "no"}]}
LITTLE = {"redis": {"urlSecret": "redis"}, "api": {"maxReplicas": 0}, "networkPolicy": False}


@pytest.mark.parametrize("values", [{}, ALL, LITTLE], ids=["as it comes", "all", "little"])
def test_kubernetes_accepts_all_objects(values: dict[str, Any]) -> None:
    objects = render(values)
    assert {"Deployment x-api", "Deployment x-workers-default", "Service x"} <= objects.keys()
    for item in objects.values():
        if not item["apiVersion"].startswith("keda"):
            for version in VERSIONS:
                kubernetes_validate.validate(item, version, strict=True)
    pods = [item["spec"]["template"]["spec"] for item in objects.values() if "template" in item["spec"]]
    for container in [container for pod in pods for container in pod["containers"]]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert all(pod["securityContext"]["runAsNonRoot"] for pod in pods)


def test_settings_reach_the_processes() -> None:
    known = {variable(name) for name in DEFAULTS.to_environment()} | set(DEFAULTS.to_environment())
    objects = render(ALL)
    for name, pool in (("api", "a"), ("jobs", "a"), ("workers-a", "a"), ("workers-on", "on")):
        _, environment = container_of(objects, name)
        assert (environment["SHOAL_POOL"], environment["SHOAL_CACHE_MB"]) == (pool, "64")
        assert environment["SHOAL_REDIS_URL"] == "redis://x-redis:6379/0"
        assert environment.keys() <= known


def test_a_stopped_pod_has_time_to_finish_and_pools_have_as_many_workers_as_they_ask_for() -> None:
    objects = render({"pools": {"b": {"replicas": 5}}})
    specs = [objects[f"Deployment x-{name}"]["spec"] for name in ("api", "workers-default", "workers-b")]
    api_s, worker_s, _ = (spec["template"]["spec"]["terminationGracePeriodSeconds"] for spec in specs)
    assert api_s >= API_STOP_WITHIN_S + 5
    assert worker_s >= STOP_WITHIN_S
    assert [spec["replicas"] for spec in specs[1:]] == [2, 5]
    without = render({"pools": {"a": {}, "default": None}, "api": {"pool": "a"}}).keys()
    assert {name for name in without if "Deployment x-workers" in name} == {"Deployment x-workers-a"}


def test_each_pool_has_its_own_workers_and_the_api_serves_all_pools() -> None:
    objects = render(ALL | {"pools": {"a": {}, "on": ALL["pools"]["on"] | OWN}, "api": {"pool": "default"}})
    pods = {name: objects[f"Deployment x-workers-{name}"]["spec"]["template"] for name in ("default", "a", "on")}
    opened = {name: container_of(objects, f"workers-{name}") for name in pods}
    containers = {name: container for name, (container, _) in opened.items()}
    environments = {name: environment for name, (_, environment) in opened.items()}
    assert [environments[name].get("SHOAL_MODEL") for name in pods] == [None, None, "org/large"]
    assert [environments[name].get("SHOAL_RERANKER") for name in pods] == [None, None, "judge"]
    assert [environments[name].get("SHOAL_INDEX_HOME") for name in pods] == ["/indexes", None, None]
    assert [container["image"] for container in containers.values()] == ["shoal-workers:latest"] * 2 + ["large:1"]
    assert containers["a"]["resources"]["limits"] == {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}
    assert containers["on"]["resources"]["limits"] == {"cpu": "500m", "memory": "4Gi", "nvidia.com/gpu": 2}
    assert pods["a"]["spec"]["nodeSelector"] == {"a.b/kind": "gpu"}
    assert pods["on"]["spec"]["nodeSelector"] == {"a.b/kind": "cpu"}
    assert pods["on"]["spec"]["tolerations"] == [{"key": "cpu", "value": "no", "operator": "Equal"}]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors = [objects[f"{kind} x-workers-{name}"]["spec"]["selector"]["matchLabels"] for name in pods]
        assert [selector["shoal-pool"] for selector in selectors] == list(pods)
        assert all(
            selector.items() <= pods[selector["shoal-pool"]]["metadata"]["labels"].items() for selector in selectors
        )
    _, environment = container_of(objects, "api")
    settings = Settings(pool=environment["SHOAL_POOL"], pools=environment["SHOAL_POOLS"])
    assert (settings.pool, sorted(settings.pool_names())) == ("default", ["a", "on"])


def test_keda_scales_by_the_number_of_waiting_texts() -> None:
    objects = render(ALL | {"pools": {"a": {}, "on": ALL["pools"]["on"] | OWN}})
    scaled, other = (objects[f"ScaledObject x-workers-{pool}"]["spec"] for pool in ("a", "on"))
    assert "replicas" not in objects["Deployment x-workers-a"]["spec"]
    assert scaled["scaleTargetRef"] == {"name": "x-workers-a"}
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"], other["maxReplicaCount"]) == (0, 20, 3)
    of_other = [trigger["metadata"] for trigger in other["triggers"]]
    assert {about["url"] for about in of_other} == {"http://x.space:80/pools/on/v1/pool"}
    assert {about["targetValue"] for about in of_other} == {"50"}
    assert [trigger["metadata"]["valueLocation"] for trigger in scaled["triggers"]] == [
        'lanes.#(lane=="interactive").num_texts',
        'lanes.#(lane=="bulk").num_texts',
    ]
    assert {trigger["metadata"]["url"] for trigger in scaled["triggers"]} == {"http://x.space:80/v1/pool"}
    assert {trigger["authenticationRef"]["name"] for trigger in scaled["triggers"]} == {"x-pool"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"worker": {}}, "'worker' not allowed"),
        ({"workers": {"replicas": -1}}, "/workers/replicas"),
        ({"api": {"memory": "much"}}, "/api/memory"),
        ({"settings": {"POOL": "a"}}, "propertyName 'POOL'"),
        ({"settings": {"SHOAL_MODEL": "a"}}, "propertyName 'SHOAL_MODEL'"),
        ({"pools": {"A": {}}}, "'A' does not match"),
        ({"pools": {"a": {"replicas": 0}}}, "/pools/a/replicas"),
        ({"pools": {"a": {"stopS": 9}}}, "'stopS' not allowed"),
        ({"api": {"pool": "a"}}, 'api.pool is "a", which pools does not name (it has: default)'),
        ({"pools": {"default": None, "a": {}, "b": {}}}, "which pools does not name (it has: a, b)"),
    ],
)
def test_unknown_and_wrong_values_are_refused(values: dict[str, Any], told: str) -> None:
    done = run(values)
    assert done.returncode
    assert told in done.stderr


def test_every_value_has_a_description_in_the_schema() -> None:
    def check(values: dict[str, Any], schema: dict[str, Any]) -> None:
        assert values.keys() == schema["properties"].keys()
        for name, about in schema["properties"].items():
            for own in about.get("additionalProperties", {}).get("properties", {}).values() if name == "pools" else ():
                assert own["description"]
            if "properties" in about:
                check(values[name], about)
            else:
                assert about["description"]

    check(yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text()))
