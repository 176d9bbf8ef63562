#!/usr/bin/env bash
# The Grafana dashboard and the alert rules of docs/watching: they name metrics that there are, the rules do what
# they say, and every query returns series in a real Prometheus that scrapes a real tesserad, a real `tessera serve`
# where models can be run, and a page like vLLM's.
# shellcheck source=tests/serve/serve_kit.sh
. "$(dirname "$0")/../serve/serve_kit.sh"
needs_shared_memory
dashboard=docs/watching/grafana.json alerts=docs/watching/alerts.yaml
unset XDG_RUNTIME_DIR NOTIFY_SOCKET LISTEN_PID LISTEN_FDS

every_metric_that_they_name_is_there() {
    needs_python || return
    {
        "$tessera" stat --prometheus --all | sed -n 's/^\(tessera_[a-z0-9_]*\)[{ ].*/\1/p'
        sed -n 's/^ *{"\([a-z_]*\)", "\(counter\|gauge\)".*/tessera_serve_\1/p' src/serve/reply.c
        python3 tests/tools/vllm_metrics.py --names
    } | sort -u >"$tmp/there"
    grep -ohE '(vllm:)?tessera_[a-z0-9_]*' "$dashboard" "$alerts" | sort -u >"$tmp/named"
    [ "$(wc -l <"$tmp/named")" -gt 20 ] || fail 'hardly any metric is named' || return
    local missing
    missing=$(comm -13 "$tmp/there" "$tmp/named")
    [ -z "$missing" ] || fail "no such metrics: $missing"
}

the_dashboard_is_one_that_grafana_can_import() {
    needs_python || return
    python3 - "$dashboard" <<'END' || fail 'see above'
import json, sys
d = json.load(open(sys.argv[1]))
ids = [p["id"] for p in d["panels"]]
assert len(ids) == len(set(ids)), "two panels with one id"
at = set()
for p in d["panels"]:
    g = p["gridPos"]
    cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
    assert not at & cells and g["x"] + g["w"] <= 24, p["title"] + " lies over another one"
    at |= cells
    assert p["title"] and p["datasource"]["uid"] == "${datasource}"
    assert len({t["refId"] for t in p["targets"]}) == len(p["targets"])
END
}

the_alerts_fire_for_trouble_and_for_nothing_else() {
    command -v promtool >/dev/null || { skip 'no promtool here: tools/setup --lint'; return; }
    promtool check rules "$alerts" >"$tmp/out" 2>&1 || fail "$(cat "$tmp/out")" || return
    cp "$alerts" tests/tools/alerts_test.yaml "$tmp" || return
    promtool test rules "$tmp/alerts_test.yaml" >"$tmp/out" 2>&1 || fail "$(cat "$tmp/out")" || return
    local tested
    tested=$(grep -c 'alertname=' tests/tools/alerts_test.yaml)
    is "$(grep -c -- '- alert:' "$alerts")" "$tested"
}

the_page_has_a_configuration_that_works_and_every_alert() {
    local name
    while read -r name; do
        grep -q "^| $name |" docs/watching.md || fail "docs/watching.md: no $name" || return
    done < <(sed -n 's/.*- alert: //p' "$alerts")
    is "$(grep -c '^| Tessera[A-Z]' docs/watching.md)" "$(grep -c -- '- alert:' "$alerts")" || return
    is "$(sed -n 's/.*runs all \([0-9]*\) queries.*/\1/p' docs/watching.md)" "$(grep -c '"expr":' "$dashboard")" || return
    command -v promtool >/dev/null || { skip 'no promtool here: tools/setup --lint'; return; }
    cp "$alerts" "$tmp/tessera-alerts.yaml"
    echo token >"$tmp/serve.token"
    # shellcheck disable=SC2016  # a fence of Markdown
    sed -n '/^```yaml/,/^```$/{/^```/!p}' docs/watching.md >"$tmp/prometheus.yml"
    promtool check config "$tmp/prometheus.yml" >"$tmp/out" 2>&1 || fail "$(cat "$tmp/out")" || return
    grep -q '8 rules found' "$tmp/out" || fail "$(cat "$tmp/out")"
}

# Finds, stores and loads a prompt that is new each time.
write_traffic() {
    cat >"$tmp/traffic" <<END
#!/usr/bin/env bash
set -e
n=\$((\$(cat "$tmp/n" 2>/dev/null || echo 0) + 1))
echo \$n >"$tmp/n"
echo "{\"prompt\":[\$(seq -s, \$((n * 1000)) \$((n * 1000 + 127)))]}" >"$tmp/prompt"
head -c 4096 /dev/zero >"$tmp/kv"
for command in lookup store lookup retrieve; do
    files=("$tmp/prompt")
    [[ \$command == store || \$command == retrieve ]] && files+=("$tmp/kv")
    "$tessera" kv \$command --model=m --dtype=f16 --layers=1 --heads=1 --dim=8 --connect="$tmp/run/sock" "\${files[@]}"
done >/dev/null
END
    chmod +x "$tmp/traffic"
}

# A `tessera serve` with a chat that goes on: adds its target to Prometheus' configuration and questions to the traffic.
add_serve() {
    serve_start "$tmp/serve" || return
    printf '%s' "$token" >"$tmp/prometheus/token"
    cat >>"$tmp/prometheus/prometheus.yml" <<END
  - job_name: serve
    authorization: {credentials_file: token}
    static_configs: [{targets: ["${url#http://}"]}]
END
    cat >>"$tmp/traffic" <<END
curl -sS -m 300 -H "Authorization: Bearer $token" -d "{\"messages\":[{\"role\":\"user\",\"content\":\"why \$n\"}],\"max_tokens\":4}" "$url/v1/chat/completions" >/dev/null
END
}

every_query_returns_series_in_prometheus() {
    command -v prometheus >/dev/null || { skip 'no prometheus here: tools/setup --lint'; return; }
    needs_python || return
    : >"$tmp/log"
    "${tessera}d" --host_size=4M --disk_path="$tmp/disk" --disk_size=64M --disk_segment_size=8M \
        --server_socket="$tmp/run/sock" --http_listen=127.0.0.1:0 --log_level=info 2>>"$tmp/log" &
    server=$! scraper='' vllm='' pid=''
    trap 'kill $server $scraper $vllm $pid 2>/dev/null' EXIT # of this test's subshell
    local i port own without=''
    for ((i = 0; i < 1200; i++)); do
        grep -q 'serves .* tenant' "$tmp/log" && break
        sleep 0.05
    done
    port=$(sed -n 's/.*page and metrics at .*:\([0-9]*\)$/\1/p' "$tmp/log")
    [ -n "$port" ] || fail "tesserad does not start: $(cat "$tmp/log")" || return
    mkdir "$tmp/prometheus"
    cp "$alerts" "$tmp/prometheus"
    cat >"$tmp/prometheus/prometheus.yml" <<END
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: tessera
    static_configs: [{targets: ["127.0.0.1:$port"]}]
END
    write_traffic
    if [ -x "$B/tests/model/make_gguf" ] && command -v curl >/dev/null; then
        add_serve || fail 'tessera serve does not start' || return
    else
        without=tessera_serve_
    fi
    python3 tests/tools/vllm_metrics.py >"$tmp/vllm" &
    vllm=$!
    for ((i = 0; i < 1200; i++)); do
        [ -s "$tmp/vllm" ] && break
        sleep 0.05
    done
    cat >>"$tmp/prometheus/prometheus.yml" <<END
  - job_name: vllm
    static_configs: [{targets: ["127.0.0.1:$(cat "$tmp/vllm")"]}]
END
    own=$(python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])')
    prometheus --config.file="$tmp/prometheus/prometheus.yml" --storage.tsdb.path="$tmp/prometheus/data" \
        --web.listen-address="127.0.0.1:$own" >"$tmp/prometheus.log" 2>&1 &
    scraper=$!
    WITHOUT=$without python3 tests/tools/prometheus_queries.py "$dashboard" "$own" "$tmp/traffic" >"$tmp/out" 2>&1 ||
        fail "$(cat "$tmp/out"; tail -3 "$tmp/prometheus.log")" || return
    kill "$scraper" "$server" "$vllm" ${pid:+"$pid"}
    wait 2>/dev/null
    return 0
}

run every_metric_that_they_name_is_there
run the_dashboard_is_one_that_grafana_can_import
run the_alerts_fire_for_trouble_and_for_nothing_else
run the_page_has_a_configuration_that_works_and_every_alert
run every_query_returns_series_in_prometheus
test_end
