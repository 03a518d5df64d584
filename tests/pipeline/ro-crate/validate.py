"""Print what roc-validator finds in the crate of a folder, as JSON: severity, check and message of each issue.

The only page that it may ask for is that of RO-Crate's terms, which lies beside this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import requests
from rocrate_validator import models, services
from rocrate_validator.utils import http

TERMS = "https://w3id.org/ro/crate/1.1/context"


def get(self: Any, url: str, *args: Any, **options: Any) -> requests.Response:
    """Answer in the place of the internet."""
    if url != TERMS:
        raise SystemExit(f"the validator asked for {url}")
    answer = requests.Response()
    answer.url, answer.status_code = url, 200
    answer._content = (Path(__file__).parent / "context-1.1.jsonld").read_bytes()
    answer.headers["Content-Type"] = "application/ld+json"
    return answer


http.HttpRequester.get = get
settings = services.ValidationSettings(
    rocrate_uri=sys.argv[1],
    profile_identifier="workflow-run-crate-0.5",
    requirement_severity=models.Severity.RECOMMENDED,
    skip_availability_check=True,
)
issues = services.validate(settings).get_issues()
print(json.dumps([[issue.severity.name, issue.check.identifier, issue.message] for issue in issues]))
