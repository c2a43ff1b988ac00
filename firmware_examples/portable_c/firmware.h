/* What this firmware is: the same as `waypost artefact sign` gets for it. */
#ifndef WAYPOST_FIRMWARE_H
#define WAYPOST_FIRMWARE_H

#ifndef FIRMWARE_VERSION
#define FIRMWARE_NAME "pump"
#define FIRMWARE_VERSION "1.0.0"
#define FIRMWARE_SEQUENCE 1     /* rises with every version */
#define FIRMWARE_BOARD "posix"
#endif

/* Public keys of the maker, in PEM; `make MAKER_KEY=maker.pub.pem` writes the file. Without it no image is accepted. */
static const char maker_key[] =
#if __has_include("maker_key.h")
#include "maker_key.h"
#endif
    "";

#endif
