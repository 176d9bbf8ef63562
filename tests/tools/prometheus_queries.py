"""prometheus_queries.py - asks a Prometheus every query of a dashboard until each has returned a number, with
traffic before each round.

    prometheus_queries.py DASHBOARD PORT TRAFFIC...    TRAFFIC is a command
                                                       WITHOUT=PREFIX: not those about metrics that begin so"""

import json
import math
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request

PATIENCE_S = 220  # of tests on a busy machine; all queries have answers after three scrapes

dashboard, port, *traffic = sys.argv[1:]
VALUES = {"$__rate_interval": "1m", "$__range": "5m", "$instance": ".*", "$tenant": ".*"}


def filled(query):
    for name, value in VALUES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def ask(path, **what):
    url = f"http://127.0.0.1:{port}/api/v1/{path}?" + urllib.parse.urlencode(what)
    return json.load(urllib.request.urlopen(url, timeout=10))["data"]


def has_number(query):
    return any(math.isfinite(float(r["value"][1])) for r in ask("query", query=query)["result"])


with open(dashboard) as f:
    parts = json.load(f)
queries = [filled(t["expr"]) for p in parts["panels"] for t in p["targets"]]
without = os.environ.get("WITHOUT")
if without:
    queries = [q for q in queries if without not in q]
missing = list(queries)
until = time.monotonic() + PATIENCE_S
while missing and time.monotonic() < until:
    subprocess.run(traffic, stderr=subprocess.DEVNULL)  # a busy server may miss a deadline: then the next round
    try:
        missing = [q for q in missing if not has_number(q)]
    except OSError:  # it is starting
        pass
    time.sleep(0.5)
for q in missing:
    print("no series:", q)
for variable in parts["templating"]["list"]:
    if variable["type"] == "query":  # label_values(series, label)
        series, label = filled(variable["query"])[len("label_values("):-1].rsplit(", ", 1)
        if not any(label in s for s in ask("series", **{"match[]": series})):
            print("no values:", variable["query"])
            missing.append(label)
print(len(queries), "queries")
sys.exit(bool(missing))
