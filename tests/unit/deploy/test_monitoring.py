"""The dashboard and the alerts of the reconciler: their queries are valid PromQL, about metrics that it has."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from governor.kube.client import Transport
from governor.kube.config.access import Access
from governor.process.clock import SystemClock
from governor.process.telemetry.instruments import Registry
from governor.process.telemetry.metrics import LoopLag, program_registry
from governor.reconciler.charts.cache import ChartCache
from governor.reconciler.main import Reconciler
from governor.reconciler.render.request import Rendered, Request
from governor.reconciler.settings import PROGRAM, Role, Settings
from toolchain.repository import REPOSITORY

MONITORING = REPOSITORY / "deploy" / "monitoring"
SUFFIXES = re.compile(r"_(bucket|sum|count)$")


class NoRenderer:
    async def render(self, request: Request) -> Rendered:
        raise NotImplementedError(request)


async def registry_of(role: Role, directory: Path) -> Registry:
    registry = program_registry(PROGRAM, "1")
    clock = SystemClock()
    LoopLag(registry, clock)
    async with Transport(registry=registry) as transport:
        settings = Settings(role=role)
        access = Access("https://127.0.0.1:1", b"")
        charts = ChartCache(directory)
        Reconciler(settings, transport, access, charts=charts, renderer=NoRenderer(), registry=registry, clock=clock)
    return registry


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Types of the metrics of all roles of the reconciler, by name."""
    roles: tuple[Role, ...] = ("watch", "work", "all")
    texts = [asyncio.run(registry_of(each, tmp_path_factory.mktemp(each))).text() for each in roles]
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    return {f"{each.name}{'_total' if each.type == 'counter' else ''}": each.type for each in families}


def dashboard() -> Any:
    return json.loads((MONITORING / "reconciler-dashboard.json").read_text())


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((MONITORING / "reconciler-alerts.yaml").read_text())
    assert (found["apiVersion"], found["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def queries() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$job", ".*")
    yield from (rule["expr"] for rule in rules())


def selectors(expression: promql_parser.Expr) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        return True

    promql_parser.walk(expression, visit)
    return found


@pytest.mark.parametrize("query", list(queries()))
def test_queries_are_valid_and_about_metrics_of_the_reconciler(query: str, metrics: dict[str, str]) -> None:
    found = selectors(promql_parser.parse(query))
    assert found
    for selector in found:
        name = str(selector.name)
        is_histogram = metrics.get(SUFFIXES.sub("", name)) == "histogram"
        assert is_histogram or name in metrics, f"{name} is no metric of the reconciler"


def test_the_dashboard_has_one_place_for_each_panel_and_queries_its_variables() -> None:
    found = dashboard()
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in found["panels"]]
    assert len(set(places)) == len(places)
    assert len({each["id"] for each in found["panels"]}) == len(places)
    variables = {each["name"] for each in found["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(found["panels"])))
    assert used == variables == {"datasource", "job"}
    assert {each["datasource"]["uid"] for each in found["panels"]} == {"${datasource}"}


def test_alerts_are_complete_and_describe_only_labels_that_they_have() -> None:
    names = [each["alert"] for each in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert promql_parser.parse_duration(rule["for"]).total_seconds() >= 60
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description"}
        described = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in by.split(",")}
        assert described <= grouped, rule["alert"]


def test_states_in_alerts_are_those_that_the_reconciler_reports(metrics: dict[str, str]) -> None:
    assert metrics["governor_reconciler_modules"] == "gauge"
    states = set(re.findall(r'state="(\w+)"', "".join(queries())))
    assert states == {"Error", "Unknown"}
