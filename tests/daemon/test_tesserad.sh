#!/usr/bin/env bash
# tesserad as a program: its flags, its signals, its socket, and being killed.
# shellcheck source=tests/support/test.sh
. "$(dirname "$0")/../support/test.sh"
needs_shared_memory

tesserad=$B/bin/tesserad
unset XDG_RUNTIME_DIR NOTIFY_SOCKET LISTEN_PID LISTEN_FDS TESSERA_CONFIG_FILE

# start [FLAG...]: starts it at $tmp/run/sock with a small cache and waits until it answers; its process is $server.
start() {
    "$tesserad" --host_size=4M --http_listen=off --server_socket="$tmp/run/sock" --log_level=info \
        "$@" 2>>"$tmp/log" &
    server=$!
    wait_until answers "$tmp/run/sock" || fail "it does not answer" "$(cat "$tmp/log")"
}

# A ping before hello is refused, which only a living server does.
answers() {
    python3 - "$1" <<'END' 2>/dev/null
import socket, struct, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
s.connect(sys.argv[1])
s.sendall(b"TSRW" + struct.pack("<HHQIi", 1, 2, 7, 0, 0))
head = s.recv(24)
magic, version, kind, number, body, status = struct.unpack("<4sHHQIi", head)
sys.exit(not (magic == b"TSRW" and kind == 0x8002 and number == 7 and status == -12))
END
}

wait_until() {
    local i
    for ((i = 0; i < 200; i++)); do
        "$@" && return 0
        sleep 0.05
    done
    return 1
}

stop() {
    kill "-${1:-TERM}" "$server" 2>/dev/null
    wait "$server"
}

it_says_what_it_is() {
    "$tesserad" --version | grep -q '^tesserad [0-9]' || fail "no version"
    "$tesserad" --help | grep -q '^usage: tesserad' || fail "no usage" || return
    "$tesserad" --host_sise=1G 2>"$tmp/err" && fail "an unknown option passed" && return 1
    grep -q 'host-size' "$tmp/err" || fail "no nearest name: $(cat "$tmp/err")" || return
    "$tesserad" frob 2>"$tmp/err" && fail "an argument passed" && return 1
    "$tesserad" --config 2>"$tmp/err"
    [ $? -eq 2 ] || fail "--config without a file is not a usage error"
}

reading_the_configuration_is_logged_at_its_own_level() {
    echo 'log_level: info' >"$tmp/info.yaml"
    LMCACHE_CONFIG_FILE=x "$tesserad" --check --config "$tmp/info.yaml" >/dev/null 2>"$tmp/err"
    grep -q 'info: environment variable LMCACHE_CONFIG_FILE: ignored' "$tmp/err" ||
        fail "no line at level info: $(cat "$tmp/err")" || return
    LMCACHE_FROB=1 "$tesserad" --check >/dev/null 2>"$tmp/err"
    [ "$(grep -c 'LMCACHE_FROB: ignored' "$tmp/err")" = 1 ] || fail "$(cat "$tmp/err")" || return
    LMCACHE_FROB=1 "$tesserad" --check --log-level=error >/dev/null 2>"$tmp/err"
    [ ! -s "$tmp/err" ] || fail "more than errors: $(cat "$tmp/err")"
}

check_looks_at_the_configuration_and_ends() {
    echo 'host: {size: 8M}' >"$tmp/good.yaml"
    echo 'host: {size: much}' >"$tmp/bad.yaml"
    "$tesserad" --check --config "$tmp/good.yaml" | grep -q 'is valid' || fail "good" || return
    "$tesserad" --check --config="$tmp/bad.yaml" 2>"$tmp/err" && fail "bad passed" && return 1
    grep -q 'bad.yaml:1' "$tmp/err" || fail "no place: $(cat "$tmp/err")" || return
    "$tesserad" --check --enable_p2p=true 2>"$tmp/err" >"$tmp/out" || fail "enable_p2p" || return
    [ "$(grep -c 'enable_p2p .* ignored: ' "$tmp/err")" = 1 ] || fail "no warning" || return
    [ ! -e "$tmp/run" ] || fail "it made something"
}

an_ignored_key_is_named_once_for_all_tenants() {
    start --server_allow=54321,54322 --enable_p2p=true || return
    stop || fail "status $?" "$(cat "$tmp/log")" || return
    grep -q 'serves 3 tenants' "$tmp/log" || fail "$(cat "$tmp/log")" || return
    [ "$(grep -c 'enable_p2p .* ignored: ' "$tmp/log")" = 1 ] || fail "$(cat "$tmp/log")"
}

it_serves_until_it_is_told_to_stop() {
    start || return
    [ "$(stat -c %a "$tmp/run/sock")" = 600 ] || fail "mode of the socket" || return
    [ "$(stat -c %a "$tmp/run")" = 700 ] || fail "mode of the folder" || return
    stop || fail "status $?" "$(cat "$tmp/log")" || return
    [ ! -e "$tmp/run/sock" ] || fail "the socket is still there" || return
    grep -q 'tesserad: stopped' "$tmp/log" || fail "no last line"
}

a_second_one_is_refused() {
    start || return
    "$tesserad" --host_size=4M --server_socket="$tmp/run/sock" 2>"$tmp/err" &&
        fail "two at once" && return 1
    grep -q 'another server' "$tmp/err" || fail "why: $(cat "$tmp/err")" || return
    answers "$tmp/run/sock" || fail "the first one is gone" || return
    stop
}

killed_it_starts_again_in_its_place() {
    local i
    for ((i = 0; i < 3; i++)); do
        start || return
        stop KILL
        [ -S "$tmp/run/sock" ] || fail "no socket was left behind" || return
    done
    start && stop
}

hup_reads_the_configuration_again() {
    echo 'host: {size: 4M}' >"$tmp/conf.yaml"
    "$tesserad" --config "$tmp/conf.yaml" --server_socket="$tmp/run/sock" --log_level=info \
        2>"$tmp/log" &
    server=$!
    wait_until answers "$tmp/run/sock" || fail "start" || return
    printf 'host: {size: 8M}\nfrozen: true\n' >"$tmp/conf.yaml"
    kill -HUP "$server"
    wait_until grep -q 'reloaded: .*frozen true' "$tmp/log" || fail "$(cat "$tmp/log")" || return
    grep -q 'host_size stays 4M' "$tmp/log" || fail "not told that host_size stays" || return
    echo 'host: {size: much}' >"$tmp/conf.yaml"
    kill -HUP "$server"
    wait_until grep -q 'not reloaded: .*conf.yaml:1' "$tmp/log" || fail "$(cat "$tmp/log")" ||
        return
    answers "$tmp/run/sock" || fail "gone after a bad file" || return
    stop
}

# As systemd does it: the socket is descriptor 3, and readiness is told to another socket.
it_takes_over_a_socket_that_listens_already() {
    cat >"$tmp/activate.py" <<'END'
import os, socket, sys
path, notify, program, pid_file = sys.argv[1:5]
n = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
n.bind(notify)
s = socket.socket(socket.AF_UNIX)
s.bind(path)
s.listen(16)
if os.fork() == 0:
    os.dup2(s.fileno(), 3)
    os.set_inheritable(3, True)
    open(pid_file, "w").write(str(os.getpid()))
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", NOTIFY_SOCKET=notify)
    os.execv(program, [program, "--host_size=4M"])
print(n.recv(100).decode())
END
    timeout 20 python3 "$tmp/activate.py" "$tmp/sock" "$tmp/notify" "$tesserad" "$tmp/pid" \
        >"$tmp/out" || fail "never ready" || return
    grep -qx 'READY=1' "$tmp/out" || fail "$(cat "$tmp/out")" || return
    answers "$tmp/sock" || fail "no answer" || return
    local pid
    pid=$(cat "$tmp/pid")
    kill "$pid"
    wait_until no_process "$pid" || fail "it does not end" || return
    [ -S "$tmp/sock" ] || fail "it removed a socket that is not its own"
}
no_process() { ! kill -0 "$1" 2>/dev/null; }

run it_says_what_it_is
run reading_the_configuration_is_logged_at_its_own_level
run check_looks_at_the_configuration_and_ends
run an_ignored_key_is_named_once_for_all_tenants
run it_serves_until_it_is_told_to_stop
run a_second_one_is_refused
run killed_it_starts_again_in_its_place
run hup_reads_the_configuration_again
run it_takes_over_a_socket_that_listens_already
test_end
