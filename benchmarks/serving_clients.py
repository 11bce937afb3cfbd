"""Clients of benchmarks/serving.py, for locust: each posts texts to /v1/tag, one request after the other.

Environment: `TEXTS`, a JSON file of texts; `TEXTS_A_REQUEST`; `RATE`, requests a second of all clients together, as
many as they can without it; `USERS`, how many they are.
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
    """One that waits for each answer."""

    wait_time = constant_throughput(float(RATE) / USERS) if RATE else constant_throughput(1e9)

    def on_start(self) -> None:
        """Begin at a time of one's own: clients of one rate that began together would ask together for ever."""
        if RATE:
            gevent.sleep(random.uniform(0, USERS / float(RATE)))

    @task
    def tag(self) -> None:
        """Tag some texts, drawn at random."""
        with self.client.post("/v1/tag", json={"texts": random.choices(TEXTS, k=EACH)}, catch_response=True) as answer:
            if answer.status_code != 200:
                answer.failure(f"status {answer.status_code}")
            elif answer.json()["trees_used"] != answer.json()["trees"]:
                answer.failure("fewer trees")
