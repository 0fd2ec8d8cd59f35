"""Makes a few plain calls with a generated client, and prints the answers."""

import json
import sys

from generated import Client  # type: ignore[import-not-found]
from generated.api.submit_and_fetch import submit_job  # type: ignore[import-not-found]
from generated.api.wait_for_the_answer import embed, score, search  # type: ignore[import-not-found]
from generated.models import EmbedBody, JobBody, ScoreBody, SearchBody  # type: ignore[import-not-found]

with Client(base_url=sys.argv[1]) as client:
    embedded = embed.sync_detailed(client=client, body=EmbedBody(inputs="storm"))
    scored = score.sync(client=client, body=ScoreBody(query="storm", inputs=["rain"]))
    submitted = submit_job.sync(client=client, body=JobBody.from_dict({"op": "embed", "inputs": "storm"}))
    search.sync_detailed(client=client, body=SearchBody(queries="storm"))
    print(json.dumps([embedded.status_code, len(scored.scores), len(submitted.id)]))
