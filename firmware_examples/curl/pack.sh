#!/bin/sh
# Packs the program into one file, which is an image: `./pack.sh slots/slot0`.
set -eu
here=$(dirname "$0")
{ echo '#!/bin/sh'; cat "$here/firmware.sh" "$here/manifest.sh" "$here/update.sh" "$here/device.sh"; } > "$1"
chmod 755 "$1"
