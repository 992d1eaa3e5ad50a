"""Fuzzing: requests generated from the OpenAPI description cause no internal error."""

from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import HealthCheck, given, settings

OPERATIONS = [
    "GET /v1/models",
    "GET /v1/examples/{model}",
    "POST /v1/predict",
    "POST /v1/attention",
    "GET /health",
    "GET /metrics",
]
PATIENCE = 60  # seconds; the first request compiles kernels
MODES = {"as described": "POSITIVE", "otherwise": "NEGATIVE"}


@pytest.fixture(scope="module")
def checks() -> list[Callable[..., Any]]:
    """The checks of every response; imported here, since importing schemathesis takes a second."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

    return [not_a_server_error, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def operations(real_server) -> dict[str, Any]:
    import schemathesis

    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{real_server}/openapi.json")
    return {found.ok().label: found.ok() for found in schema.get_all_operations()}


def test_every_operation_is_tried(operations):
    assert list(operations) == OPERATIONS


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", [label for label in OPERATIONS if label.startswith("POST")])
def test_no_request_breaks_the_server(operations, checks, label, mode):
    from schemathesis import GenerationMode

    seen = set()

    @settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operations[label].as_strategy(generation_mode=GenerationMode[MODES[mode]]))
    def send(case):
        seen.add(case.call_and_validate(checks=checks, timeout=PATIENCE).status_code)

    send()
    assert (200 if mode == "as described" else 422) in seen
    assert not [status for status in seen if status >= 500]


@pytest.mark.parametrize("label", [label for label in OPERATIONS if label.startswith("GET") and "{" not in label])
def test_get_routes_match_their_description(operations, checks, label):
    assert operations[label].Case().call_and_validate(checks=checks, timeout=PATIENCE).status_code == 200


@pytest.mark.parametrize("name", ["dates", "nobody", "..", "%00"])
def test_a_missing_example_file_matches_its_description(operations, checks, name):
    case = operations["GET /v1/examples/{model}"].Case(path_parameters={"model": name})
    assert case.call_and_validate(checks=checks, timeout=PATIENCE).status_code == 404


def test_no_internal_errors_are_counted(real_server):
    with urlopen(f"http://127.0.0.1:{real_server}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert 'route="/health",status="200"' in text
    assert 'status="500"' not in text
