/* The program for ESP-IDF: the radio, the settings of menuconfig, and a loop with a watchdog. */
#include <stdio.h>
#include <string.h>

#include "esp32_port.h"
#include "esp_event.h"
#include "esp_log.h"
#include "esp_netif.h"
#include "esp_system.h"
#include "esp_task_wdt.h"
#include "esp_wifi.h"
#include "freertos/FreeRTOS.h"
#include "freertos/task.h"
#include "nvs_flash.h"
#include "sdkconfig.h"

enum { STEP_MS = 10, RESTART_MS = 10000 };

extern const char gateway_pem[] asm("_binary_gateway_pem_start");

static void say(void *context, const char *text) {
    (void)context;
    ESP_LOGI("waypost", "%s", text);
}

/* Read your own sensors here: members of a JSON object, about 400 bytes. */
static size_t measure(void *context, char *json, size_t size) {
    wifi_ap_record_t point;
    (void)context;
    int strength = esp_wifi_sta_get_ap_info(&point) == ESP_OK ? point.rssi : 0;
    int length = snprintf(json, size, "\"heap_bytes\":%u,\"rssi_dbm\":%d", (unsigned)esp_get_free_heap_size(), strength);
    return length > 0 && (size_t)length < size ? (size_t)length : 0;
}

/* Connect again for ever: the radio is only the way, and readings wait in flash. */
static void on_radio(void *context, esp_event_base_t base, int32_t event, void *data) {
    (void)context;
    (void)base;
    (void)data;
    if (event == WIFI_EVENT_STA_START || event == WIFI_EVENT_STA_DISCONNECTED) esp_wifi_connect();
}

static void begin_radio(void) {
    wifi_init_config_t initial = WIFI_INIT_CONFIG_DEFAULT();
    wifi_config_t station = {0};
    ESP_ERROR_CHECK(esp_netif_init());
    ESP_ERROR_CHECK(esp_event_loop_create_default());
    esp_netif_create_default_wifi_sta();
    ESP_ERROR_CHECK(esp_wifi_init(&initial));
    ESP_ERROR_CHECK(esp_event_handler_instance_register(WIFI_EVENT, ESP_EVENT_ANY_ID, on_radio, NULL, NULL));
    memcpy(station.sta.ssid, CONFIG_WAYPOST_WIFI_SSID, strnlen(CONFIG_WAYPOST_WIFI_SSID, sizeof station.sta.ssid));
    memcpy(station.sta.password, CONFIG_WAYPOST_WIFI_PASSWORD,
           strnlen(CONFIG_WAYPOST_WIFI_PASSWORD, sizeof station.sta.password));
    ESP_ERROR_CHECK(esp_wifi_set_mode(WIFI_MODE_STA));
    ESP_ERROR_CHECK(esp_wifi_set_config(WIFI_IF_STA, &station));
    ESP_ERROR_CHECK(esp_wifi_start());
}

void app_main(void) {
    static const struct esp32_settings settings = {
        .host = CONFIG_WAYPOST_HOST,
        .port = CONFIG_WAYPOST_PORT,
        .http_port = CONFIG_WAYPOST_HTTP_PORT,
        .device = CONFIG_WAYPOST_DEVICE,
        .password = sizeof CONFIG_WAYPOST_PASSWORD > 1 ? CONFIG_WAYPOST_PASSWORD : NULL,
        .ca = gateway_pem,
        .slots = CONFIG_WAYPOST_READINGS,
        .interval_ms = CONFIG_WAYPOST_INTERVAL_MS,
        .ask_s = 3600,
        .trial_s = 600,
        .measure = measure,
        .log = say,
    };
    ESP_ERROR_CHECK(nvs_flash_init()); /* never erased on an error: it has readings */
    begin_radio();
    ESP_ERROR_CHECK(esp_task_wdt_add(NULL));
    if (esp32_begin(&settings)) return;
    int ended;
    while (!(ended = esp32_step())) {
        esp_task_wdt_reset();
        vTaskDelay(pdMS_TO_TICKS(STEP_MS));
    }
    if (ended < 0) {
        vTaskDelay(pdMS_TO_TICKS(RESTART_MS));
        esp_restart();
    }
    esp_task_wdt_delete(NULL); /* stopped by a command */
}
