// The device as an Arduino sketch for an ESP32 (arduino-esp32 3.x). make_sketch.sh puts the core and the port next to it.
#include <WiFi.h>
#include <esp_task_wdt.h>

#include "config.h"
#include "esp32_port.h"

// Without this the core of Arduino confirms a new firmware before setup(), and there is no way back.
extern "C" bool verifyRollbackLater() { return true; }

static const uint32_t WATCHDOG_MS = 30000;

static void say(void *, const char *text) { Serial.println(text); }

// Read your own sensors here: members of a JSON object, about 400 bytes.
static size_t measure(void *, char *json, size_t size) {
  int length = snprintf(json, size, "\"heap_bytes\":%u,\"rssi_dbm\":%d", (unsigned)ESP.getFreeHeap(), (int)WiFi.RSSI());
  return length > 0 && (size_t)length < size ? (size_t)length : 0;
}

enum { RESTART_MS = 10000 };
static int ended = 1;

void setup() {
  Serial.begin(115200);
  esp_task_wdt_config_t watchdog = {WATCHDOG_MS, 0, true};
  esp_task_wdt_reconfigure(&watchdog);
  esp_task_wdt_add(NULL);
  WiFi.mode(WIFI_STA);
  WiFi.setAutoReconnect(true);
  WiFi.begin(WIFI_SSID, WIFI_PASSWORD);
  esp32_settings settings = {};
  settings.host = GATEWAY_HOST;
  settings.port = GATEWAY_MQTTS_PORT;
  settings.http_port = GATEWAY_HTTPS_PORT;
  settings.device = DEVICE_NAME;
  settings.password = DEVICE_PASSWORD;
  settings.ca = GATEWAY_CA;
  settings.slots = READINGS_KEPT;
  settings.interval_ms = INTERVAL_MS;
  settings.ask_s = 3600;
  settings.trial_s = 600;
  settings.measure = measure;
  settings.log = say;
  ended = esp32_begin(&settings) == 0 ? 0 : 1;
}

void loop() {
  if (!ended) ended = esp32_step();
  if (ended < 0) {  // NVS failed
    delay(RESTART_MS);
    ESP.restart();
  }
  esp_task_wdt_reset();
  delay(10);
}
