// Settings of the sketch: copy it to config.h. README.md says where they come from.
#pragma once

#define WIFI_SSID "hall"
#define WIFI_PASSWORD "…"
#define GATEWAY_HOST "192.168.1.10"  // as in its certificate
#define GATEWAY_MQTTS_PORT 8883
#define GATEWAY_HTTPS_PORT 8444      // for time and updates; 0: none
#define DEVICE_NAME "pump7"
#define DEVICE_PASSWORD "…"
#define INTERVAL_MS 1000
#define READINGS_KEPT 512

// The gateway's authority: no other is trusted.
static const char GATEWAY_CA[] = R"(-----BEGIN CERTIFICATE-----
…
-----END CERTIFICATE-----
)";
