"""Clients of benchmarks/serving.py, for locust: each posts texts to /v1/tag, one request after the other.

Environment: `TEXTS`, a JSON file of texts; `TEXTS_A_REQUEST`; `RATE`, requests per second of all clients together
(unlimited if unset); `USERS`, the number of clients.
"""

import json
import os
import random
from pathlib import Path

import gevent
from locust import FastHttpUser, constant_throughput, task

TEXTS = json.loads(Path(os.environ["TEXTS"]).read_text(encoding="utf-8"))
EACH = int(os.environ.get("TEXTS_A_REQUEST", "1"))
RATE, USERS = os.environ.get("RATE"), int(os.environ.get("USERS", "1"))


class Client(FastHttpUser):
    """A client that waits for each answer."""

    wait_time = constant_throughput(float(RATE) / USERS) if RATE else constant_throughput(1e9)

    def on_start(self) -> None:
        """Start after a random delay, else clients of the same rate would send their requests together."""
        if RATE:
            gevent.sleep(random.uniform(0, USERS / float(RATE)))

    @task
    def tag(self) -> None:
        """Tag some texts, drawn at random."""
        with self.client.post("/v1/tag", json={"texts": random.choices(TEXTS, k=EACH)}, catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
            elif answer.json()["members_used"] != answer.json()["members"]:
                answer.failure("fewer members")
