#!/bin/sh
# make_sketch.sh FOLDER: make a sketch that the Arduino IDE opens, FOLDER/waypost_device. Files of yours stay as they are.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sketch=${1:?"usage: make_sketch.sh FOLDER"}/waypost_device
mkdir -p "$sketch"
cp "$here/waypost_device.ino" "$here"/../esp_idf/main/esp32_port.[ch] "$here/../esp_idf/partitions.csv" \
    "$here"/../portable_c/waypost_*.[ch] "$sketch"
[ -e "$sketch/config.h" ] || cp "$here/config.example.h" "$sketch/config.h"
[ -e "$sketch/firmware.h" ] || cp "$here/../esp_idf/main/firmware.h" "$sketch/firmware.h"
echo "$sketch: fill in config.h"
