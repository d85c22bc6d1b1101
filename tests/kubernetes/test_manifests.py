"""The manifests in ops/kubernetes are valid for the API, and agree with each other and with `dlog`."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from distributedlog.cli.main import command
from distributedlog.cli.server.node_settings import read_file
from distributedlog.cluster.declarations.config import parse_quorum
from distributedlog.uri import parse_uri
from tests.docker.compose_file import read_compose
from tests.test_documented_commands import calls, why_not

pytestmark = pytest.mark.extra
yaml: Any = pytest.importorskip("yaml", reason="pip install '.[release]'")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "ops" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
API_VERSIONS = ("1.29", "1.31")
"""Of Kubernetes, in addition to the newest one. Sidecars (`restartPolicy` of an init container) need 1.29."""
PORTS = {"metadata": 4181, "bookie": 4182, "write-proxy": 4183, "read-proxy": 4184, "gateway": 8491}
PAGES_PORT = 8480
PAGE_PATHS = set(
    re.findall(
        r'"(/[a-z]+)": [a-z]+\b',
        (ROOT / "cluster/node/node_pages.py").read_text().split("page_functions = ")[1],
    )
)
"""Paths that a node answers on the port of `--http`."""
UID = 10001
Manifest = dict[str, Any]


def documents() -> list[Manifest]:
    return [document for file in FILES for document in yaml.safe_load_all(file.read_text())]


def of_kind(*kinds: str) -> list[Manifest]:
    return [document for document in DOCUMENTS if document["kind"] in kinds]


def named(document: Manifest) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


DOCUMENTS = documents()
WORKLOADS = of_kind("StatefulSet", "Deployment")
NODES = [one for one in WORKLOADS if one["metadata"]["name"] != "admin"]
SCRIPTS: dict[str, str] = next(
    one["data"] for one in of_kind("ConfigMap") if one["metadata"]["name"] == "dlog-scripts"
)


def pod(workload: Manifest) -> Manifest:
    found: Manifest = workload["spec"]["template"]["spec"]
    return found


def node(workload: Manifest) -> Manifest:
    """Return the container that runs `dlog`."""
    [found] = pod(workload)["containers"]
    return dict(found)


def component(workload: Manifest) -> str:
    return str(workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"])


def pod_names(workload: Manifest) -> list[str]:
    """Return the names under which the nodes of a workload appear in the cluster."""
    name, replicas = workload["metadata"]["name"], workload["spec"]["replicas"]
    if workload["kind"] == "StatefulSet":
        return [f"{name}-{number}" for number in range(replicas)]
    return [name]


def arguments(workload: Manifest, name: str) -> list[str]:
    """Return the arguments of `dlog` as the kubelet passes them."""
    values = {"NAME": name, "HOST": "worker-1"}
    declared = {variable["name"] for variable in node(workload)["env"]}
    found = [
        re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word)
        for word in node(workload)["args"]
    ]
    used = {match for word in node(workload)["args"] for match in re.findall(r"\$\((\w+)\)", word)}
    assert used <= declared, f"{named(workload)}: not declared: {used - declared}"
    return found


def flag(words: list[str], name: str) -> list[str]:
    return [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]


def labels_match(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_manifest_is_valid_for_the_kubernetes_api(file: Path) -> None:
    """The schemas are strict: an unknown field is an error."""
    validate: Any = pytest.importorskip("kubernetes_validate", reason="pip install '.[release]'")

    for version in (*API_VERSIONS, validate.latest_version()):
        for document in yaml.safe_load_all(file.read_text()):
            validate.validate(document, version, strict=True)


def test_schemas_refuse_a_wrong_field() -> None:
    """Otherwise the test above could not fail."""
    validate: Any = pytest.importorskip("kubernetes_validate", reason="pip install '.[release]'")
    wrong = yaml.safe_load((FOLDER / "00-namespace.yaml").read_text()) | {"specs": {}}

    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, API_VERSIONS[0], strict=True)


def test_every_kind_of_node_has_its_kind_of_workload() -> None:
    kinds = {(component(one), one["kind"]) for one in NODES}

    assert kinds == {
        ("metadata", "StatefulSet"),
        ("bookie", "StatefulSet"),
        ("write-proxy", "Deployment"),
        ("read-proxy", "Deployment"),
        ("gateway", "Deployment"),
    }
    assert {one["metadata"].get("namespace") for one in DOCUMENTS[1:]} == {"dlog"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=named)
def test_selectors_match_the_labels_of_exactly_their_own_pods(workload: Manifest) -> None:
    labels = workload["spec"]["template"]["metadata"]["labels"]

    matching = [
        named(one)
        for one in WORKLOADS
        if labels_match(one["spec"]["selector"]["matchLabels"], labels)
    ]

    assert matching == [named(workload)]


def test_each_service_leads_to_a_port_of_the_nodes_that_it_selects() -> None:
    for service in of_kind("Service"):
        selected = [
            one
            for one in WORKLOADS
            if labels_match(
                service["spec"]["selector"], one["spec"]["template"]["metadata"]["labels"]
            )
        ]
        assert selected, named(service)
        for port in service["spec"]["ports"]:
            for workload in selected:
                ports = {one["name"]: one["containerPort"] for one in node(workload)["ports"]}
                assert ports[port["targetPort"]] == port["port"] == PORTS[component(workload)]


@pytest.mark.parametrize("workload", NODES, ids=named)
def test_disruption_budget_of_a_node_leaves_all_but_one(workload: Manifest) -> None:
    """One budget covers all pods of a kind, also those of several workloads."""
    labels = workload["spec"]["template"]["metadata"]["labels"]
    [budget] = [
        one
        for one in of_kind("PodDisruptionBudget")
        if labels_match(one["spec"]["selector"]["matchLabels"], labels)
    ]
    pods = sum(one["spec"]["replicas"] for one in NODES if component(one) == component(workload))

    allowed = budget["spec"].get("maxUnavailable", pods - budget["spec"].get("minAvailable", 0))

    assert allowed == 1


@pytest.mark.parametrize("workload", NODES, ids=named)
def test_node_command_is_one_that_dlog_accepts(workload: Manifest) -> None:
    for name in pod_names(workload):
        words = arguments(workload, name)
        assert words[:2] == ["serve", component(workload)]
        assert why_not(words) == ""


@pytest.mark.parametrize("workload", NODES, ids=named)
def test_node_listens_on_its_declared_port_and_advertises_a_name_of_a_service(
    workload: Manifest,
) -> None:
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind("Service")}
    port = PORTS[component(workload)]
    for name in pod_names(workload):
        words = arguments(workload, name)
        assert flag(words, "listen") == [f"0.0.0.0:{port}"]
        if component(workload) == "gateway":
            assert set(flag(words, "allow-host")) == {"gateway", "gateway.dlog.svc"}
            continue
        [address] = flag(words, "advertise")
        host, _, advertised = address.rpartition(":")
        assert int(advertised) == port
        service, namespace, domain = host.split(".")[-3:]
        assert (namespace, domain) == ("dlog", "svc")
        if workload["kind"] == "StatefulSet":
            assert host.split(".")[0] == name
            assert service == workload["spec"]["serviceName"]
            assert services[service]["clusterIP"] == "None"
            assert services[service]["publishNotReadyAddresses"] is True
        else:
            assert service == name
            assert "clusterIP" not in services[service]


@pytest.mark.parametrize("workload", NODES, ids=named)
def test_probes_ask_paths_and_ports_that_the_node_answers(workload: Manifest) -> None:
    container = node(workload)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    gateway = component(workload) == "gateway"
    for kind in ("livenessProbe", "readinessProbe"):
        request = container[kind]["httpGet"]
        if gateway:
            assert request["path"] == "/health"
            assert request["scheme"] == "HTTPS"
            assert ports[request["port"]] == PORTS["gateway"]
            hosts = [one["value"] for one in request["httpHeaders"] if one["name"] == "Host"]
            assert set(hosts) <= set(flag(arguments(workload, "gateway"), "allow-host"))
            assert hosts
        else:
            assert request["path"] == {"livenessProbe": "/health", "readinessProbe": "/ready"}[kind]
            assert request["path"] in PAGE_PATHS
            assert ports[request["port"]] == PAGES_PORT
            assert flag(arguments(workload, "n"), "http") == [f"0.0.0.0:{PAGES_PORT}"]
    if not gateway:
        start = container["startupProbe"]
        assert start["periodSeconds"] * start["failureThreshold"] >= 900, "a journal may be long"


def test_gateway_health_path_is_one_that_needs_no_token() -> None:
    assert '"/health"' in (ROOT / "distributedlog/gateway/request_guard.py").read_text()


@pytest.mark.parametrize("workload", WORKLOADS, ids=named)
def test_pod_has_no_privilege_and_writes_only_to_volumes(workload: Manifest) -> None:
    spec = pod(workload)
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == UID
    assert f"--uid {UID} " in (ROOT / "docker/Dockerfile").read_text()
    assert spec["enableServiceLinks"] is False, "DLOG_* variables would be read as flags"
    assert spec["automountServiceAccountToken"] is False
    for container in (*spec["initContainers"], *spec["containers"]):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert "limits" in container["resources"]


@pytest.mark.parametrize("workload", WORKLOADS, ids=named)
def test_every_mounted_volume_is_declared_and_every_declared_one_is_mounted(
    workload: Manifest,
) -> None:
    spec = pod(workload)
    declared = {one["name"] for one in spec["volumes"]}
    declared |= {
        one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())
    }
    mounted = {
        mount["name"]
        for container in (*spec["initContainers"], *spec["containers"])
        for mount in container["volumeMounts"]
    }
    assert declared == mounted
    configured = {one["metadata"]["name"] for one in of_kind("ConfigMap")}
    used = {one["configMap"]["name"] for one in spec["volumes"] if "configMap" in one}
    assert used <= configured


@pytest.mark.parametrize("workload", NODES, ids=named)
def test_only_the_container_that_copies_certificates_sees_the_secrets(workload: Manifest) -> None:
    """A node has its own key in memory. The Secret has the keys of all pods of its kind."""
    spec = pod(workload)
    secrets = {one["name"] for one in spec["volumes"] if "secret" in one}
    [copier] = spec["initContainers"]
    copier_mounts = {one["name"]: one["mountPath"] for one in copier["volumeMounts"]}

    assert copier["restartPolicy"] == "Always"
    assert copier["command"] == ["/bin/sh", "/scripts/copy-certificates.sh"]
    assert copier["startupProbe"]["exec"]["command"] == ["test", "-e", "/tls/node/key.pem"]
    assert secrets <= set(copier_mounts)
    assert not secrets & {one["name"] for one in node(workload)["volumeMounts"]}
    assert "/secret/node/$NAME" in SCRIPTS["copy-certificates.sh"]
    assert copier_mounts["secret"] == "/secret/node"
    assert flag(arguments(workload, "n"), "tls") == ["/tls/node"]
    assert node(workload)["env"][0] == copier["env"][0], "both name the same certificate"


def test_each_bookie_runs_in_the_zone_that_it_reports() -> None:
    """Anti-affinity by zone and host, and the same names as placement labels."""
    bookies = [one for one in NODES if component(one) == "bookie"]
    zones = set()
    for workload in bookies:
        affinity = pod(workload)["affinity"]
        [term] = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        [expression] = term["matchExpressions"]
        [apart] = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [zone] = expression["values"]
        words = arguments(workload, "n")
        assert expression["key"] == "topology.kubernetes.io/zone"
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        assert flag(words, "rack") == [zone]
        assert set(flag(words, "label")) == {f"zone={zone}", "host=worker-1"}
        for other in bookies:
            labels = other["spec"]["template"]["metadata"]["labels"]
            assert labels_match(apart["labelSelector"]["matchLabels"], labels)
        zones.add(zone)
    assert len(zones) == len(bookies) == 3, "the default quorums need three bookies"


@pytest.mark.parametrize("kind", [kind for kind in PORTS if kind != "gateway"])
def test_settings_of_all_nodes_name_the_same_quorum(kind: str, tmp_path: Path) -> None:
    [text] = [
        one["data"]["node.toml"] for one in of_kind("ConfigMap") if "node.toml" in one["data"]
    ]
    file = tmp_path / "node.toml"
    file.write_text(text)
    [metadata] = [one for one in NODES if component(one) == "metadata"]
    addresses = {flag(arguments(metadata, name), "advertise")[0] for name in pod_names(metadata)}

    read_file(file, kind)  # raises for an unknown key
    quorum = parse_quorum(tomllib.loads(text)[kind]["metadata"])

    assert {f"{host}:{port}" for host, port in quorum.values()} == addresses
    if kind == "metadata":
        assert list(quorum) == pod_names(metadata)


def uris() -> Iterator[tuple[str, str]]:
    for workload in WORKLOADS:
        for variable in node(workload)["env"]:
            if variable["name"] == "DLOG_URI":
                yield named(workload), variable["value"]
    [gateway] = [one for one in NODES if component(one) == "gateway"]
    yield named(gateway), flag(arguments(gateway, "gateway"), "uri")[0]


def test_uris_name_addresses_that_nodes_advertise() -> None:
    advertised = {
        flag(arguments(one, name), "advertise")[0]
        for one in NODES
        if component(one) != "gateway"
        for name in pod_names(one)
    }

    for owner, uri in uris():
        found = {f"{host}:{port}" for host, port in parse_uri(uri).addresses}
        assert found <= advertised, owner
        assert parse_uri(uri).is_proxied == ("proxy" in next(iter(found)))


@pytest.mark.parametrize("name", SCRIPTS)
def test_commands_of_the_scripts_are_ones_that_dlog_accepts(name: str) -> None:
    lines = SCRIPTS[name].replace(" >&2", "").replace("$NAME", "n").splitlines()
    found = [words for line in lines for words in calls(line.strip())]

    assert [text for words in found if (text := why_not(words))] == []
    assert bool(found) == ("certificates" not in name), "the scripts of preStop call dlog"


def test_nodes_wait_before_they_stop_and_have_the_time_to() -> None:
    """A bookie or metadata node asks whether it can stop; a write proxy gives its logs to another one."""
    hooks = {
        "metadata": "wait-can-stop.sh",
        "bookie": "wait-can-stop.sh",
        "write-proxy": "drain.sh",
    }
    for workload in NODES:
        hook = hooks.get(component(workload))
        found = (
            node(workload).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        )
        assert found == (["/bin/sh", f"/scripts/{hook}"] if hook else None), named(workload)
    [limit] = re.findall(r"date \+%s\) \+ (\d+)", SCRIPTS["wait-can-stop.sh"])
    [timeout] = re.findall(r"--timeout (\d+)", SCRIPTS["wait-can-stop.sh"])
    for workload in NODES:
        if hooks.get(component(workload)) == "wait-can-stop.sh":
            grace = pod(workload)["terminationGracePeriodSeconds"]
            assert int(limit) + int(timeout) + 5 < grace, "SIGTERM needs the rest"


def test_certificates_are_copied_with_a_mode_that_nodes_accept_and_again_after_a_change(
    tmp_path: Path,
) -> None:
    """A node refuses a key that its group can read, and a mounted Secret is readable by the group only."""
    secret, target = tmp_path / "secret", tmp_path / "tls"
    secret.mkdir()
    function = SCRIPTS["copy-certificates.sh"].partition("while :")[0]
    program = f'{function}\ncopy "{secret}/b1" "{target}"\n'
    states = []
    for text in ("first", "second"):
        for file in ("ca.pem", "cert.pem", "key.pem"):
            (secret / f"b1.{file}").write_text(text)
            (secret / f"b2.{file}").write_text("of another pod")
            (secret / f"b1.{file}").chmod(0o440)
        subprocess.run(["sh", "-c", program], check=True)
        states.append(
            {
                path.name: (path.read_text(), path.stat().st_mode & 0o777)
                for path in target.iterdir()
            }
        )
        for path in secret.iterdir():
            path.unlink()

    files = ("ca.pem", "cert.pem", "key.pem")
    assert states == [{file: (text, 0o600) for file in files} for text in ("first", "second")]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_accepted_by_a_posix_shell(script: str) -> None:
    done = subprocess.run(["sh", "-n"], input=SCRIPTS[script], text=True, capture_output=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_kubernetes_and_compose_give_nodes_the_same_settings() -> None:
    """Flags of compose are variables, those of the manifests are arguments. Addresses differ by design."""
    per_kind: dict[str, set[str]] = {}
    for service in read_compose()["services"].values():
        words = str(service.get("command", "")).split()
        if words[:1] == ["serve"]:
            prefix = f"DLOG_SERVE_{words[1].upper().replace('-', '_')}_"
            names = {
                key.removeprefix(prefix).lower().replace("_", "-")
                for key in service["environment"]
                if key.startswith(prefix)
            }
            per_kind.setdefault(words[1], set()).update(names)
    for workload in NODES:
        kind = component(workload)
        given = {word.partition("=")[0].lstrip("-") for word in arguments(workload, "n")[2:]}
        extra = {"label"} if kind == "bookie" else {"credentials"} if kind == "gateway" else set()
        assert given - extra == per_kind[kind], kind


def test_image_is_that_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {
        container["image"]
        for workload in WORKLOADS
        for container in (*pod(workload)["initContainers"], *pod(workload)["containers"])
    }

    assert images == {f"dlog:{version}"}


def test_serve_has_a_command_for_each_kind_of_node() -> None:
    serve = command.get_command(click.Context(command), "serve")
    assert isinstance(serve, click.Group)

    assert set(serve.list_commands(click.Context(serve))) == {component(one) for one in NODES}
