"""Kubeconfigs: the user's own may name files and programs, one from a Secret must not."""

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.errors import GovernorError, Kind
from governor.kube.config import kubeconfig
from governor.kube.config.access import Access, ClientCertificate, ExecPlugin, Impersonation
from governor.process.proxy import Proxy
from governor.values.secret import Secret

TOKEN = "very-secret-token"
Change = Callable[[dict[str, Any], dict[str, Any]], object]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def config(change: Change = lambda cluster, user: None, **more: Any) -> bytes:
    """Return a kubeconfig with a changed cluster and user; JSON is YAML."""
    cluster: dict[str, Any] = {"server": "https://api.example:6443", "certificate-authority-data": encoded("CA")}
    user: dict[str, Any] = {"token": TOKEN}
    change(cluster, user)
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    return json.dumps(whole | more).encode()


def load(tmp_path: Path, data: bytes, context: str = "") -> Access:
    file = tmp_path / "config"
    file.write_bytes(data)
    return kubeconfig.load(file, context)


def rejection(data: bytes) -> GovernorError:
    with pytest.raises(GovernorError) as caught:
        kubeconfig.from_secret(data)
    return caught.value


def test_a_token_and_an_authority_are_enough() -> None:
    assert kubeconfig.from_secret(config()) == Access("https://api.example:6443", b"CA", token=Secret(TOKEN))


def test_an_inline_client_certificate_is_read() -> None:
    def certificate(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        user.clear()
        user.update({"client-certificate-data": encoded("CERT"), "client-key-data": encoded("KEY")})

    access = kubeconfig.from_secret(config(certificate))
    assert access.client_certificate == ClientCertificate(b"CERT", Secret("KEY"))
    assert access.token is None


def test_path_prefix_server_name_and_namespace_are_read() -> None:
    def change(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        cluster.update({"server": "https://rancher.example/k8s/clusters/c-1/", "tls-server-name": "inner"})

    context = {"cluster": "c", "user": "u", "namespace": "team"}
    access = kubeconfig.from_secret(config(change, contexts=[{"name": "main", "context": context}]))
    assert (access.server, access.tls_server_name) == ("https://rancher.example/k8s/clusters/c-1", "inner")
    assert access.namespace == "team"


def test_a_proxy_is_read_and_its_password_is_a_secret() -> None:
    data = config(lambda cluster, user: cluster.update({"proxy-url": "http://me:pass%40word@proxy.example:3128"}))
    access = kubeconfig.from_secret(data)
    assert access.proxy == Proxy("http://proxy.example:3128", Secret(f"Basic {encoded('me:pass@word')}"))
    assert "pass" not in repr(access)


@pytest.mark.parametrize(
    ("url", "kind"),
    [("socks5://proxy:1080", Kind.UNIMPLEMENTED), ("ftp://proxy", Kind.INVALID), ("http://", Kind.INVALID)],
)
def test_an_unsupported_proxy_is_an_error(url: str, kind: Kind) -> None:
    error = rejection(config(lambda cluster, user: cluster.update({"proxy-url": url})))
    assert error.kind is kind
    assert error.details[0].path == "clusters[c].cluster.proxy-url"


def test_impersonation_is_read() -> None:
    change = {"as": "ann", "as-uid": "7", "as-groups": ["dev"], "as-user-extra": {"scopes": ["a", "b"]}}
    access = kubeconfig.from_secret(config(lambda cluster, user: user.update(change)))
    assert access.impersonation == Impersonation("ann", "7", ("dev",), (("scopes", "a"), ("scopes", "b")))


@pytest.mark.parametrize("change", [{"as-groups": ["dev"]}, {"as-uid": "1"}, {"as-user-extra": {"a": ["b"]}}])
def test_impersonation_without_a_user_is_an_error(change: dict[str, Any]) -> None:
    error = rejection(config(lambda cluster, user: user.update(change)))
    assert error.details[0].path == "users[u].user.as"


def test_impersonation_cannot_inject_a_header() -> None:
    error = rejection(config(lambda cluster, user: user.update({"as": "ann\r\nImpersonate-Group: system:masters"})))
    assert error.code == "kube-impersonation"


def test_unknown_fields_and_nulls_are_ignored() -> None:
    def change(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        cluster.update({"disable-compression": True, "extensions": None, "proxy-url": None})
        user.update({"colour": "green", "exec": None, "tokenFile": ""})

    assert kubeconfig.from_secret(config(change, preferences={})) == kubeconfig.from_secret(config())


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("cluster", "certificate-authority", "/etc/ca.crt"),
        ("cluster", "insecure-skip-tls-verify", True),
        ("user", "client-certificate", "/etc/client.crt"),
        ("user", "client-key", "/etc/client.key"),
        ("user", "tokenFile", "/var/run/secrets/token"),
        ("user", "exec", {"command": "aws", "apiVersion": "client.authentication.k8s.io/v1"}),
        ("user", "auth-provider", {"name": "gcp"}),
    ],
)
def test_a_kubeconfig_from_a_secret_may_not_name_files_or_programs(section: str, field: str, value: Any) -> None:
    def change(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        (cluster if section == "cluster" else user)[field] = value

    error = rejection(config(change))
    assert error.kind is Kind.DENIED
    assert error.details[0].path == f"{section}s[{section[0]}].{section}.{field}"
    assert TOKEN not in str(error)


def test_a_kubeconfig_from_a_secret_may_disable_skipping_verification() -> None:
    data = config(lambda cluster, user: cluster.update({"insecure-skip-tls-verify": False}))
    assert not kubeconfig.from_secret(data).insecure


@pytest.mark.parametrize("name", ["username", "password"])
def test_basic_authentication_is_rejected(name: str) -> None:
    error = rejection(config(lambda cluster, user: user.update({name: "hunter2"})))
    assert "no longer supports basic authentication" in str(error)
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    "server",
    [
        "",
        "api.example",
        "ftp://api.example",
        "https://me:hunter2@api.example",
        "https://api.example?x=1",
        "https://api.example:99999",
        "http://api.example",
    ],
)
def test_an_invalid_or_plain_text_address_is_an_error(server: str) -> None:
    error = rejection(config(lambda cluster, user: cluster.update({"server": server})))
    assert error.details[0].path == "clusters[c].cluster.server"
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"current-context": ""}, "current-context"),
        ({"current-context": "other"}, "contexts"),
        ({"contexts": [{"name": "main", "context": {"cluster": "x", "user": "u"}}]}, "contexts[main].context.cluster"),
        ({"contexts": [{"name": "main", "context": {"cluster": "c", "user": "x"}}]}, "contexts[main].context.user"),
        ({"contexts": [{"name": "main"}]}, "contexts[main].context.cluster"),
        ({"contexts": None}, "contexts"),
    ],
)
def test_dangling_references_are_errors_at_their_path(more: dict[str, Any], path: str) -> None:
    assert rejection(config(**more)).details[0].path == path


@pytest.mark.parametrize("field", ["client-certificate-data", "client-key-data"])
def test_a_certificate_without_key_or_a_key_without_certificate_is_an_error(field: str) -> None:
    error = rejection(config(lambda cluster, user: user.update({field: encoded("X")})))
    assert "needs its key" in str(error)


def test_data_that_is_not_base64_is_an_error_that_does_not_quote_it() -> None:
    error = rejection(config(lambda cluster, user: cluster.update({"certificate-authority-data": "hunter2!"})))
    assert error.details[0].path == "clusters[c].cluster.certificate-authority-data"
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("data", [b"", b"[]", b"a: b: c", b"\xff", b"users: 7", b"---\na: 1\n---\nb: 2\n"])
def test_any_other_document_is_a_clear_error(data: bytes) -> None:
    assert rejection(data).kind is Kind.INVALID


def test_a_token_that_yaml_reads_as_a_number_is_an_error_that_does_not_quote_it() -> None:
    error = rejection(config(lambda cluster, user: user.update({"token": 4711_0815})))
    assert "users[0].user.token" in str(error)
    assert "47110815" not in str(error)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=4))
def test_any_value_anywhere_is_accepted_or_a_clear_error(value: Any) -> None:
    whole = json.loads(config())
    for path in (("clusters",), ("users", 0, "user"), ("users", 0, "user", "token"), ("clusters", 0, "cluster")):
        broken = copy.deepcopy(whole)
        place = broken
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        try:
            kubeconfig.from_secret(json.dumps(broken).encode())
        except GovernorError as error:
            assert error.kind in (Kind.INVALID, Kind.DENIED)  # noqa: PT017 - raising is optional


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    def change(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        cluster.clear()
        cluster.update({"server": "https://api.example", "certificate-authority": "pki/ca.crt"})
        user.clear()
        user.update({"client-certificate": "a.crt", "client-key": "/keys/a.key", "tokenFile": "token"})

    access = load(tmp_path, config(change))
    assert access.ca == tmp_path / "pki/ca.crt"
    assert access.client_certificate == ClientCertificate(tmp_path / "a.crt", Path("/keys/a.key"))
    assert access.token == tmp_path / "token"


def test_data_precedes_files_and_a_token_file_precedes_a_token(tmp_path: Path) -> None:
    def change(cluster: dict[str, Any], user: dict[str, Any]) -> None:
        cluster["certificate-authority"] = "ca.crt"
        user["tokenFile"] = "token"

    access = load(tmp_path, config(change))
    assert (access.ca, access.token) == (b"CA", tmp_path / "token")


def test_the_users_own_may_skip_verification_but_not_with_an_authority(tmp_path: Path) -> None:
    insecure = {"server": "https://api.example", "insecure-skip-tls-verify": True}
    assert load(tmp_path, config(clusters=[{"name": "c", "cluster": insecure}])).insecure
    with pytest.raises(GovernorError, match="remove one"):
        load(tmp_path, config(lambda cluster, user: cluster.update({"insecure-skip-tls-verify": True})))


def with_plugin(**changed: Any) -> bytes:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "login", "interactiveMode": "Never"} | changed
    return config(users=[{"name": "u", "user": {"exec": plugin}}])


def test_an_exec_plugin_is_read(tmp_path: Path) -> None:
    data = with_plugin(
        args=["--fast"], env=[{"name": "A", "value": "b"}], installHint="get it", provideClusterInfo=True
    )
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    whole = json.loads(data)
    whole["clusters"][0]["cluster"]["extensions"] = [extension]
    access = load(tmp_path, json.dumps(whole).encode())
    version = "client.authentication.k8s.io/v1"
    expected = ExecPlugin(
        "login", version, ("--fast",), (("A", "b"),), "get it", cluster_info=True, cluster_config={"audience": "x"}
    )
    assert access.plugin == expected


def test_a_plugin_path_is_relative_to_the_file(tmp_path: Path) -> None:
    plugin = load(tmp_path, with_plugin(command="./bin/login")).plugin
    assert plugin is not None
    assert plugin.command == str(tmp_path / "bin/login")


def test_the_repr_of_a_plugin_omits_arguments_and_environment(tmp_path: Path) -> None:
    access = load(tmp_path, with_plugin(args=["--password=hunter2"], env=[{"name": "P", "value": "hunter2"}]))
    assert "hunter2" not in repr(access)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "exec.apiVersion"),
        ({"command": ""}, "exec.command"),
        ({"interactiveMode": "Always"}, "exec.interactiveMode"),
    ],
)
def test_an_unusable_plugin_is_an_error(tmp_path: Path, changed: dict[str, Any], field: str) -> None:
    with pytest.raises(GovernorError) as caught:
        load(tmp_path, with_plugin(**changed))
    assert caught.value.details[0].path == f"users[u].user.{field}"


def test_a_plugin_beside_another_credential_is_an_error(tmp_path: Path) -> None:
    whole = json.loads(with_plugin())
    whole["users"][0]["user"]["token"] = TOKEN
    with pytest.raises(GovernorError, match="another credential"):
        load(tmp_path, json.dumps(whole).encode())


def test_an_auth_provider_is_an_error_that_names_its_replacement(tmp_path: Path) -> None:
    with pytest.raises(GovernorError, match="exec plugin"):
        load(tmp_path, config(lambda cluster, user: user.update({"auth-provider": {"name": "gcp"}})))


def test_another_context_can_be_selected(tmp_path: Path) -> None:
    contexts = [
        {"name": "main", "context": {"cluster": "gone", "user": "gone"}},
        {"name": "other", "context": {"cluster": "c", "user": "u"}},
    ]
    assert load(tmp_path, config(contexts=contexts), "other").server == "https://api.example:6443"


def test_an_unknown_context_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(GovernorError, match="known contexts: main"):
        load(tmp_path, config(), "other")


class TestFileLookup:
    def test_earlier_files_take_precedence(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "elsewhere/second"
        second.parent.mkdir()
        partial = {"clusters": [{"name": "c", "cluster": {"server": "https://first"}}], "current-context": ""}
        first.write_text(json.dumps(partial))
        second.write_bytes(
            config(clusters=[{"name": "c", "cluster": {"server": "https://second"}}]).replace(
                b'"token": "very-secret-token"', b'"tokenFile": "token"'
            )
        )
        listed = f"{first}:{tmp_path / 'missing'}::{second}"
        access = kubeconfig.load(environ={"KUBECONFIG": listed})
        assert (access.server, access.token) == ("https://first", tmp_path / "elsewhere/token")

    def test_the_default_is_the_file_in_the_home_directory(self, tmp_path: Path) -> None:
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube/config").write_bytes(config())
        assert kubeconfig.load(environ={"HOME": str(tmp_path)}).server == "https://api.example:6443"

    def test_no_file_is_an_error_that_names_the_paths(self, tmp_path: Path) -> None:
        with pytest.raises(GovernorError, match=str(tmp_path / ".kube/config")) as caught:
            kubeconfig.load(environ={"HOME": str(tmp_path)})
        assert caught.value.kind is Kind.PRECONDITION

    def test_a_given_file_must_exist(self, tmp_path: Path) -> None:
        with pytest.raises(GovernorError, match="cannot read the kubeconfig"):
            kubeconfig.load(tmp_path / "missing")

    def test_in_a_pod_the_service_account_is_used_unless_a_file_or_context_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "config"
        file.write_bytes(config())
        pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBECONFIG": str(file)}
        for named in ({"file": file}, {"context": "main"}):
            assert kubeconfig.load_or_in_cluster(**named, environ=pod).server == "https://api.example:6443"
        outside = kubeconfig.load_or_in_cluster(environ={"KUBECONFIG": str(file)})
        assert outside.server == "https://api.example:6443"
        with pytest.raises(GovernorError, match="not running in a pod with a service account"):
            kubeconfig.load_or_in_cluster(environ=pod)
