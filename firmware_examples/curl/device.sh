#!/bin/sh
# Device that publishes over HTTP with curl. Run `./device.sh`; README.md has the rest.
# Needs curl, jq, flock and GNU coreutils. Three processes: this one sends, one measures, one takes commands.
set -eu

device=${WAYPOST_DEVICE:-pump7}
spool=${WAYPOST_SPOOL:-readings.spool}
spool_readings=${WAYPOST_SPOOL_READINGS:-1024}
ca=${WAYPOST_CA:-}
[ -n "$ca" ] && scheme=https || scheme=http
[ -n "$ca" ] && port=${WAYPOST_PORT:-8444} || port=${WAYPOST_PORT:-8080}
gateway=$scheme://${WAYPOST_HOST:-127.0.0.1}:$port
[ -n "${firmware_name:-}" ] || for file in firmware manifest update; do . "$(dirname "$0")/$file.sh"; done # an image has them
window=8 # readings of one run of curl, which stops at the first that is not acknowledged

log() { echo "$(date +%H:%M:%S) $*" >&2; }
seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); } # of milliseconds
fail() { code=$1; shift; log "$*"; exit "$code"; }

# --- the spool: a folder with a file for each unacknowledged reading -------------------------------------------

# Its order is that of the names. `next` has the number of the next reading. A reading is written as .NUMBER.new, then
# `next` is written, then it gets its name: so a number is given once, whenever the power fails.

open_spool() {
    if [ ! -e "$spool" ]; then
        mkdir -m 700 "$spool" && echo 0 > "$spool/next" && sync "$spool/next" "$spool" ||
            fail 2 "$spool: the spool cannot be made; check WAYPOST_SPOOL"
    fi
    [ -f "$spool/next" ] || fail 2 "$spool is not a spool; move it away, or set WAYPOST_SPOOL to another folder"
    exec 9> "$spool/lock"
    flock -w 5 9 || fail 2 "$spool is in use by another process"
    next=$(cat "$spool/next")
    for new in "$spool"/.*.new; do
        [ -e "$new" ] || continue
        number=${new##*/.}
        number=${number%.new}
        if [ "$number" -lt "$next" ]; then mv "$new" "$(name "$number")"; else rm "$new"; fi
    done
}

name() { printf '%s/%010d.json' "$spool" "$1"; }
store_next() { echo "$next" > "$spool/next.new" && sync -d "$spool/next.new" && mv "$spool/next.new" "$spool/next"; }

store() { # CONTENT
    printf '%s' "$1" > "$spool/.$next.new" && sync -d "$spool/.$next.new" || return 1
    stored=$next
    next=$((next + 1))
    store_next && mv "$spool/.$stored.new" "$(name "$stored")" && sync "$spool" || return 1
    waiting=0
    for oldest in "$spool"/*.json; do waiting=$((waiting + 1)); done
    for oldest in "$spool"/*.json; do # full: drop the oldest
        [ "$waiting" -gt "$spool_readings" ] || break
        rm -f "$oldest" && log "dropped $(basename "$oldest" .json): the spool is full"
        waiting=$((waiting - 1))
    done
}

empty() { [ "$(echo "$spool"/*.json)" = "$spool/*.json" ]; }

# --- the gateway -----------------------------------------------------------------------------------------------

# The password is in a file that only this user can read, not in a command line that every user can.
write_curl_settings() {
    umask 077
    {
        printf 'silent\nshow-error\nconnect-timeout = 5\nmax-time = 60\n'
        [ -n "${WAYPOST_PASSWORD:-}" ] && printf 'user = "%s:%s"\n' "$device" "$(printf '%s' "$WAYPOST_PASSWORD" | sed 's/[\\"]/\\&/g')"
        [ -n "$ca" ] && printf 'cacert = "%s"\ncapath = "/var/empty"\n' "$ca"
        [ -n "${WAYPOST_CERTIFICATE:-}" ] && printf 'cert = "%s"\n' "$WAYPOST_CERTIFICATE"
        [ -n "${WAYPOST_KEY:-}" ] && printf 'key = "%s"\n' "$WAYPOST_KEY"
        true
    } > "$spool/curl.conf"
}

ask() { curl --config "$spool/curl.conf" "$@"; }
status() { ask -o /dev/null --fail --data-binary "$1" "$gateway/t/status/$device?retain=true&qos=1"; }

# Wait before the next attempt: doubled each time up to 8 s, half of it by chance, so that a thousand devices do not
# return at once.
retry_ms=250
wait_to_retry() {
    chance=$(od -An -N2 -tu2 /dev/urandom)
    wait_ms=$((retry_ms / 2 + chance % (retry_ms / 2 + 1)))
    sleep "$(seconds "$wait_ms")"
    retry_ms=$((retry_ms * 2))
    [ "$retry_ms" -gt 8000 ] && retry_ms=8000
    true
}

# Send the oldest readings; returns 1 if one was not acknowledged. Status 202 means that it is on the gateway's disk.
send() {
    set --
    files=
    count=0
    for file in "$spool"/*.json; do
        [ "$count" -lt "$window" ] || break
        [ "$count" -eq 0 ] || set -- "$@" --next
        set -- "$@" --config "$spool/curl.conf" --fail -o /dev/null -w '%{http_code}\n' \
            -H 'Content-Type: application/json' --data-binary "@$file" "$gateway/t/plant/$device"
        files="$files $(basename "$file")"
        count=$((count + 1))
    done
    curl --fail-early "$@" > "$spool/codes" 2> "$spool/error"
    result=0
    while read -r code && [ -n "$files" ]; do
        file=${files# }
        file=${file%% *}
        files=${files# "$file"}
        [ "$code" = 202 ] || { result=1; explain "$code"; break; }
        rm -f "$spool/$file"
        [ $((1${file%.json} - 10000000000)) -lt "$first" ] || [ -e "$spool/delivered" ] || : > "$spool/delivered"
    done < "$spool/codes"
    [ -z "$files" ] || result=1
    return "$result"
}

explain() { # STATUS
    case $1 in
    000) log "no connection to $gateway: $(tail -n 1 "$spool/error")" ;;
    401) log "the gateway refuses the device: wrong user or password: \`waypost user rotate\` at the gateway makes a new one" ;;
    403) log "no right to send: \`waypost client refusals\` at the gateway names it" ;;
    *) log "a reading was refused with status $1; it is sent again" ;;
    esac
}

# --- time: that of the gateway with WAYPOST_TIME_URL, else that of this machine --------------------------------

monotonic() { read -r up _ < /proc/uptime; echo "${up%.*}"; }

ask_time() {
    [ -n "${WAYPOST_TIME_URL:-}" ] || return 0
    [ -n "${asked:-}" ] && [ $(($(monotonic) - asked)) -lt 3600 ] && return 0
    # Without the password, which a plain connection would show.
    at=$(curl -s -m 5 ${ca:+--cacert "$ca" --capath /var/empty} -I "${WAYPOST_TIME_URL%/}/healthz" | sed -n 's/^[Dd]ate: *\([^\r]*\).*/\1/p')
    at=$(date -d "$at" +%s 2> /dev/null) && [ "$at" -gt 1700000000 ] || { log "no time from $WAYPOST_TIME_URL"; return 0; }
    asked=$(monotonic)
    echo $((at - asked)) > "$spool/clock.new" && mv "$spool/clock.new" "$spool/clock" # time minus monotonic clock
}

now() { # prints nothing while the time is not known
    if [ -z "${WAYPOST_TIME_URL:-}" ]; then date +%s
    elif [ -f "$spool/clock" ]; then echo $(($(monotonic) + $(cat "$spool/clock"))); fi
}

# --- measuring -------------------------------------------------------------------------------------------------

# Print members of the reading. Read your own sensors here.
measure() { read -r load _ < /proc/loadavg; printf '"load_1m":%s' "$load"; }

measure_until_stopped() {
    while [ ! -e "$spool/stopping" ] && kill -0 "$main" 2> /dev/null; do
        at=$(now)
        store "{\"device\":\"$device\",\"boot\":\"$boot\",\"seq\":$next,${at:+\"at\":$at,}$(measure)}" || {
            log "cannot store reading $next; check the disk"
            touch "$spool/failed"
            return
        }
        waited_ms=0
        while [ ! -e "$spool/stopping" ]; do # in steps, so that a stop and a new interval have an effect at once
            step_ms=$(($(cat "$spool/interval_ms") - waited_ms))
            [ "$step_ms" -gt 0 ] || break
            [ "$step_ms" -lt 500 ] || step_ms=500
            sleep "$(seconds "$step_ms")"
            waited_ms=$((waited_ms + step_ms))
        done
    done
}

# --- commands --------------------------------------------------------------------------------------------------

# Obey, answer, then settle: after a reset in between the command comes again.
take_commands() {
    while kill -0 "$main" 2> /dev/null; do
        if ! ask -o "$spool/command" -D "$spool/headers" "$gateway/c/command/$device?wait=30" 2> /dev/null; then
            wait_to_retry
            continue
        fi
        read -r _ code _ < "$spool/headers" || code=000
        case $code in
        200) obey && retry_ms=250 ;;
        204) retry_ms=250 ;;
        *) wait_to_retry ;;
        esac
    done
}

header() { sed -n "s/^$1: *\\([^\\r]*\\).*/\\1/Ip" "$spool/headers"; }

obey() {
    # Prints the interval, whether to stop, and the answer.
    jq -c --argjson now "$(cat "$spool/interval_ms")" '
        def refused($text): {status: 400, error: $text};
        (if type == "object" and has("id") then {id} else {} end) as $id |
        (if type != "object" then refused("not a JSON object")
         elif (has("interval_ms") or has("stop")) | not then refused("unknown command")
         elif has("interval_ms") and (.interval_ms | type != "number" or . != floor or . < 10 or . > 86400000)
         then refused("interval_ms has to be 10 to 86400000")
         else {status: 200, interval_ms: (.interval_ms // $now)} end) as $answer |
        ($answer.interval_ms // $now), ($answer.status == 200 and .stop == true), ($id + $answer)' \
        "$spool/command" > "$spool/obeyed" 2> /dev/null ||
        printf '%s\nfalse\n{"status":400,"error":"not a JSON object"}\n' "$(cat "$spool/interval_ms")" > "$spool/obeyed"
    { read -r interval_ms; read -r stop; read -r answer; } < "$spool/obeyed"
    echo "$interval_ms" > "$spool/interval_ms.new" && mv "$spool/interval_ms.new" "$spool/interval_ms"
    log "command: $answer"
    to=$(header waypost-response-address)
    correlation=$(header waypost-correlation-data)
    status=$(echo "$answer" | jq .status)
    ask -o /dev/null --fail -H "Waypost-Status: $status" ${correlation:+-H "Waypost-Correlation-Data: $correlation"} \
        --data-binary "$answer" "$gateway/t/${to:-command-response/$device}" 2> /dev/null || return 1
    ask -o /dev/null --fail -X DELETE "$gateway/c/command/$device?lock=$(header waypost-lock)" 2> /dev/null || return 1
    [ "$stop" != true ] || touch "$spool/stopping"
}

# --- run -------------------------------------------------------------------------------------------------------

[ -z "$ca" ] || [ -r "$ca" ] || fail 2 "WAYPOST_CA=$ca cannot be read"
[ -z "${WAYPOST_CERTIFICATE:-}" ] || [ -n "$ca" ] || fail 2 "WAYPOST_CERTIFICATE needs TLS: set WAYPOST_CA too"
case ${WAYPOST_INTERVAL_MS:-1000}$spool_readings in *[!0-9]*) fail 2 "WAYPOST_INTERVAL_MS or WAYPOST_SPOOL_READINGS is not a number" ;; esac
[ -z "${WAYPOST_UPDATE_URL:-}" ] || [ -n "${WAYPOST_SLOT:-}" ] || fail 2 "WAYPOST_UPDATE_URL needs the boot loader: start boot_loader.sh"
open_spool
write_curl_settings
rm -f "$spool/stopping" "$spool/failed" "$spool/clock" "$spool/delivered" "$spool/restart"
first=$next # first reading of this start; `delivered` says that the gateway has one: the sign of health of a new version
echo "${WAYPOST_INTERVAL_MS:-1000}" > "$spool/interval_ms"
main=$$
boot=$(od -An -N4 -tx1 /dev/urandom | tr -d ' ')
trap 'touch "$spool/stopping"' INT TERM
measure_until_stopped &
measuring=$!
take_commands 9>&- &
commands=$!
updates=
[ -z "${WAYPOST_UPDATE_URL:-}" ] || { update_forever 9>&- & updates=$!; }
trap 'kill "$measuring" "$commands" $updates 2> /dev/null || true' EXIT

# Tell the boot loader that the program is alive: a byte a quarter of the watchdog's time.
fed_until=0
feed() {
    [ -n "${WAYPOST_SLOT:-}" ] || return 0
    read -r up _ < /proc/uptime
    [ "${up%.*}" -ge "$fed_until" ] || return 0
    printf .
    fed_until=$((${up%.*} + ${WAYPOST_WATCHDOG_S:-120} / 4))
}

connected=
while true; do
    feed
    [ ! -e "$spool/failed" ] || exit 1
    [ ! -e "$spool/restart" ] || exit 75
    ask_time
    if empty; then
        [ ! -e "$spool/stopping" ] || kill -0 "$measuring" 2> /dev/null || break
        sleep 0.05
    elif send; then
        [ -n "$connected" ] || { log connected; status online || true; }
        connected=yes
        retry_ms=250
    else
        [ -s "$spool/codes" ] || explain 000
        [ -z "$connected" ] || log disconnected
        connected=
        wait_to_retry
    fi
done
status offline || true
log "stopped: every reading below $(cat "$spool/next") is acknowledged"
