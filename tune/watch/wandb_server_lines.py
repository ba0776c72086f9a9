"""Ask W&B's server how much of a run it has.

``wandb sync`` marks a run as uploaded also if its upload failed (a note in its source, core/internal/runsync, says so),
so its mark cannot be trusted. The question is the one that W&B's own client asks before it resumes a run.
"""

from __future__ import annotations

import base64
import contextlib
import json
import netrc
import os
import urllib.request

from bigbatch.cluster.host import json_values

DEFAULT_URL = "https://api.wandb.ai"
ANSWER_S = 20.0
QUERY = """query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) { bucket(name: $name, missingOk: true) { historyLineCount } }
}"""


def wandb_url() -> str:
    """The server's address: WANDB_BASE_URL, or W&B's own."""
    return os.environ.get("WANDB_BASE_URL", DEFAULT_URL).rstrip("/")


def wandb_key() -> str | None:
    """The key for that server, from WANDB_API_KEY or ~/.netrc; None if there is none."""
    if key := os.environ.get("WANDB_API_KEY"):
        return key
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if found := netrc.netrc().authenticators(wandb_url().split("//")[-1].split("/")[0]):
            return found[2]
    return None


def lines_on_server(project: str, entity: str, run_id: str) -> int | None:
    """The lines of the run's history that the server has; None if it does not answer.

    Args:
        entity: empty: that of the key.
    """
    variables = {"project": project, "entity": entity or None, "name": run_id}
    basic = base64.b64encode(f"api:{wandb_key() or ''}".encode()).decode()
    request = urllib.request.Request(
        f"{wandb_url()}/graphql",
        json.dumps({"query": QUERY, "variables": variables}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Basic {basic}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            values = json_values.json_object(answer.read())
    except (OSError, ValueError):
        return None
    bucket = json_values.mapping(json_values.mapping(json_values.mapping(values, "data"), "model"), "bucket")
    return json_values.whole_number(bucket, "historyLineCount")
