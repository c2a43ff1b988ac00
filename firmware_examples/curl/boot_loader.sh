#!/bin/sh
# Boot loader: it starts the program in one of two slots, and goes back from one that does not confirm.
# `./boot_loader.sh FOLDER`. FOLDER has the programs `slot0` and `slot1`, and the file `boot`: "kept trial starts".
set -eu

exit_restart=75 # exit code of a program that is to be started again at once
starts_max=3    # starts of a program on trial
folder=$(realpath "$1")
watchdog_s=${WAYPOST_WATCHDOG_S:-120} # a program that writes nothing to its standard output for so long is killed

say() { echo "boot: $*" >&2; }

write_boot() { # KEPT TRIAL STARTS; on disk when it returns
    { echo "$*" > "$folder/boot.new"; } 2> /dev/null && sync -d "$folder/boot.new" &&
        mv "$folder/boot.new" "$folder/boot" && sync "$folder"
}

# Set the slot to start now, and whether it is on trial; its start is on disk.
choose_slot() {
    kept=0 trial=- starts=0 on_trial=
    [ ! -e "$folder/boot" ] || read -r kept trial starts < "$folder/boot"
    slot=$kept
    [ "$trial" != - ] || return 0
    if [ "$starts" -ge "$starts_max" ]; then
        say "no confirmation in $starts_max starts, back to slot $kept"
        write_boot "$kept" - 0 || say "no room for the record"
    elif write_boot "$kept" "$trial" $((starts + 1)); then
        slot=$trial on_trial=yes
    else
        say "no trial now: no room for the record"
    fi
}

watch() { # PROCESS; its standard output is ours
    while [ -n "$(timeout "$watchdog_s" head -c 1)" ]; do :; done
    kill -KILL "$1" 2> /dev/null || true
}

stopped= child=
trap 'stopped=yes; [ -z "$child" ] || kill -TERM "$child" 2> /dev/null || true' INT TERM
while true; do
    choose_slot
    rm -f "$folder/alive"
    mkfifo "$folder/alive"
    WAYPOST_SLOTS=$folder WAYPOST_SLOT=$slot "$folder/slot$slot" > "$folder/alive" &
    child=$!
    watch "$child" < "$folder/alive" &
    code=0
    wait "$child" || code=$?
    while kill -0 "$child" 2> /dev/null; do # a signal has ended the wait
        code=0
        wait "$child" || code=$?
    done
    if [ -n "$stopped" ] || { [ "$code" -le 128 ] && [ "$code" -ne "$exit_restart" ] && { [ "$code" -eq 0 ] || [ -z "$on_trial" ]; }; }; then
        exit "$code"
    fi
    [ "$code" -eq "$exit_restart" ] || sleep 1
done
