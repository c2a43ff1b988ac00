/* What this firmware is: the same as `waypost artefact sign` gets for it. */
#ifndef WAYPOST_FIRMWARE_H
#define WAYPOST_FIRMWARE_H

#include <stdint.h>

#ifndef FIRMWARE_VERSION
#define FIRMWARE_NAME "pump"
#define FIRMWARE_VERSION "1.0.0"
#define FIRMWARE_SEQUENCE 1     /* rises with every version */
#define FIRMWARE_BOARD "frdm_k64f"
#endif

/* Public key of the maker for ES256, in DER. Without the file no image is accepted:
 *     openssl pkey -pubin -in maker.pub.pem -outform DER | xxd -i > maker_key.h */
static const uint8_t maker_key_der[] = {
#if __has_include("maker_key.h")
#include "maker_key.h"
#else
    0
#endif
};

#endif
