# Update of the program by itself: from the gateway into the slot that does not run, with a way back.
# docs/how-to/write-a-device-that-updates.md has the states, which every example shares.
part_bytes=131072 # of one request, and the most that a reset makes it fetch again
tries_max=3       # trials of one image; then it is refused until another manifest comes

update_forever() {
    update_url=${WAYPOST_UPDATE_URL%/}
    slots=$WAYPOST_SLOTS
    image=$slots/slot$((1 - WAYPOST_SLOT))
    work=$spool/update
    look_at=0
    mkdir -p "$work"
    conf=/dev/null # no password over HTTP where messages have TLS
    case $update_url in https:*) conf=$spool/curl.conf ;; *) [ -n "$ca" ] || conf=$spool/curl.conf ;; esac
    load_state
    log "firmware: $firmware_name $firmware_version"
    judge_start
    until [ -e "$spool/delivered" ]; do sleep 0.1; done
    while kill -0 "$main" 2> /dev/null; do
        if update_step; then retry_ms=250; else wait_to_retry; fi
    done
}

# --- state, on disk ----------------------------------------------------------------------------------------------

load_state() {
    new_state
    [ ! -e "$slots/update.json" ] || state=$(cat "$slots/update.json")
    # What another version has refused, this one may take.
    [ "$(get state)" != rolled-back ] || [ "$(get own)" = "$firmware_sequence" ] || set_fields '{tries: 0}'
}

new_state() { state='{"state":"","reported":"","reason":"","version":"","sequence":0,"size":0,"sha256":"","envelope":"","done":0,"tries":0,"own":0}'; }
get() { echo "$state" | jq -r ".$1"; }
set_fields() { state=$(echo "$state" | jq -c ". + $1"); }

save() { # STATE
    set_fields "{state: \"$1\", own: $firmware_sequence}"
    echo "$state" > "$slots/update.json.new" && sync -d "$slots/update.json.new" &&
        mv "$slots/update.json.new" "$slots/update.json" && sync "$slots"
}

write_boot() { # KEPT TRIAL STARTS
    echo "$*" > "$slots/boot.new" && sync -d "$slots/boot.new" && mv "$slots/boot.new" "$slots/boot" && sync "$slots"
}

restart() { touch "$spool/restart"; exit; }

look_later() {
    every=${WAYPOST_UPDATE_S:-3600}
    look_at=$(($(monotonic) + every / 2 + $(od -An -N2 -tu2 /dev/urandom) % (every / 2 + 1)))
}

# Stay with the version that runs; the same manifest is tried again a few times, unless that cannot help.
end_try() { # REASON
    tries=$tries_max
    case $(get state)/$1 in downloading/* | */not-healthy | */restarted | */cannot-install) tries=$(($(get tries) + 1)) ;; esac
    set_fields "{tries: $tries, reported: \"\", reason: \"$1\", done: 0}"
    log "the new version is refused, or was rolled back: $1"
    look_later
    save rolled-back
}

# --- the trial ---------------------------------------------------------------------------------------------------

# Find out what became of a version that was installed before this start, and try the one that runs.
judge_start() {
    kept=0
    [ ! -e "$slots/boot" ] || read -r kept _ < "$slots/boot"
    stored=$(get state)
    installed=
    case $stored in installed | started) installed=yes ;; esac
    if [ "$kept" != "$WAYPOST_SLOT" ]; then
        try_out
    elif [ -n "$installed" ] && [ "$(get sequence)" = "$firmware_sequence" ]; then
        save healthy # a reset between the confirmation and its record
    elif [ "$stored" = started ]; then
        write_boot "$kept" - 0 # also where the boot loader could not record the end of the trial
        reason=$(get reason)
        end_try "${reason:-restarted}"
    else
        case $stored in downloading | verified | installed) [ "$(get sequence)" -gt "$firmware_sequence" ] || save "" ;; esac
    fi
}

# Keep the running version once it has delivered a reading of its own; else go back.
try_out() {
    reason=
    set_fields '{reason: ""}'
    [ -z "$installed" ] || save started
    case $maker_keys in *"PUBLIC KEY"*) ;; *) reason=no-key ;; esac # it could never be updated again
    if [ -z "$reason" ] && [ -n "$installed" ] && [ "$(get sequence)" != "$firmware_sequence" ]; then
        reason=wrong-sequence # kept, it would be offered again and again
    fi
    end=$(($(monotonic) + ${WAYPOST_TRIAL_S:-600}))
    while [ -z "$reason" ] && [ ! -e "$spool/delivered" ]; do
        [ "$(monotonic)" -lt "$end" ] || reason=not-healthy
        sleep 0.1
    done
    if [ -n "$reason" ]; then
        log "going back to the version before"
        set_fields "{reason: \"$reason\"}"
        [ -z "$installed" ] || save started
        write_boot $((1 - WAYPOST_SLOT)) - 0
        restart
    fi
    write_boot "$WAYPOST_SLOT" - 0
    log "the new version is healthy"
    [ -z "$installed" ] || save healthy
}

# --- steps -------------------------------------------------------------------------------------------------------

# Get a path of the gateway into a file; sets `code`. Returns 1 if it is to be tried again.
fetch() { # FILE PATH BYTES [OPTIONS OF CURL]
    file=$1 path=$2 most=$3
    shift 3
    rm -f "$file"
    code=$(curl --config "$conf" -s -m 60 --max-filesize "$most" -o "$file" -w '%{http_code}' "$@" "$update_url$path" 2> /dev/null) || code=000
    case $code in
    000 | 401 | 403 | 408 | 429 | 5??) log "update: the gateway answers $code"; return 1 ;;
    esac
}

# Do what is due. Returns 1 if it is to be tried again.
update_step() {
    now_state=$(get state)
    if [ "$now_state" != "$(get reported)" ] && [ -n "$now_state" ] && [ "$now_state" != started ]; then
        body=$(echo "$state" | jq -c '{state, reason, sha256}')
        fetch "$work/answer" "/artefacts/$firmware_name/$(get version)/report" 65536 --data-binary "$body" || return 1
        set_fields "{reported: \"$now_state\"}"
        save "$now_state"
    elif [ "$now_state" = downloading ]; then
        download
    elif [ "$now_state" = verified ]; then
        save installed
    elif [ "$now_state" = installed ]; then
        write_boot "$WAYPOST_SLOT" $((1 - WAYPOST_SLOT)) 0
        save started # behind the mark of the boot loader: a reset in between only repeats the mark
        log "starting the new version"
        restart
    elif [ "$(monotonic)" -ge "$look_at" ]; then
        look
    else
        sleep 1
    fi
}

# Look for a later version at the gateway, and verify its manifest.
look() {
    fetch "$work/list" /artefacts 4194304 || return 1
    version=$(jq -r --arg name "$firmware_name" --arg board "$firmware_board" --arg version "$firmware_version" --argjson sequence "$firmware_sequence" '
        [.artefacts[] | select(.name == $name and .kind == "firmware" and .sequence > $sequence) |
            select(.version | test("^[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}$")) |
            select((.boards // [$board]) | index([$board])) |
            select((.from_versions // []) | length == 0 or index([$version]))] | max_by(.sequence).version // ""' "$work/list" 2> /dev/null) ||
        { log "update: the list cannot be read"; version=; }
    [ -n "$version" ] || { look_later; return 0; }
    fetch "$work/manifest" "/artefacts/$firmware_name/$version/manifest" 16385 || return 1
    [ "$code" = 200 ] || { look_later; return 0; }
    envelope=$(sha256sum < "$work/manifest" | cut -c1-64)
    tries=0
    if [ "$envelope" = "$(get envelope)" ]; then
        tries=$(get tries)
        [ "$(get state)" != rolled-back ] || [ "$tries" -lt "$tries_max" ] || { look_later; return 0; } # it was refused
    fi
    found=$(open_manifest "$work/manifest" "$work" "$(now)")
    refused=$(echo "$found" | jq -r '.refused // ""')
    [ -n "$refused" ] || [ "$(echo "$found" | jq -r .version)" = "$version" ] || refused=forged
    if [ "$refused" = not-yet-valid ]; then
        log "a new version is not valid yet"
        look_later
        return 0
    fi
    new_state
    set_fields "{version: \"$version\", envelope: \"$envelope\", tries: $tries}"
    [ -z "$refused" ] || { end_try "$refused"; return 0; }
    set_fields "$found"
    log "a new version: downloading"
    save downloading
}

# Fetch the next part of the image; verify the whole one.
download() {
    done=$(get done)
    size=$(get size)
    if [ "$done" -ge "$size" ]; then
        # The stored image is read once more: so its disk is verified too.
        [ "$(sha256sum < "$image" | cut -c1-64)" = "$(get sha256)" ] || { end_try forged; return 0; }
        chmod 755 "$image"
        log "the new version is verified"
        save verified
        return
    fi
    stop=$((done + part_bytes))
    [ "$stop" -le "$size" ] || stop=$size
    fetch "$work/part" "/artefacts/$firmware_name/$(get version)/image" "$part_bytes" \
        -r "$done-$((stop - 1))" -H "If-Range: \"$(get sha256)\"" || return 1
    if [ "$code" != 206 ] && [ "$code" != 416 ]; then
        log "the new version is not offered any more"
        look_later
        save ""
        return
    fi
    length=0
    [ "$code" != 206 ] || length=$(stat -c %s "$work/part" 2> /dev/null || echo 0)
    [ "$length" -eq $((stop - done)) ] || { end_try truncated; return 0; }
    truncate -s "$done" "$image" && cat "$work/part" >> "$image" && sync -d "$image" || return 1
    set_fields "{done: $stop}"
    save downloading
}
