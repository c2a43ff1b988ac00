/* The program for Zephyr: the network, the settings of Kconfig, and a loop with a watchdog. */
#include <stdio.h>
#include <zephyr/device.h>
#include <zephyr/drivers/watchdog.h>
#include <zephyr/kernel.h>
#include <zephyr/net/net_config.h>
#include <zephyr/sys/reboot.h>

#include "zephyr_port.h"

enum { STEP_MS = 10, RESTART_MS = 10000, WATCHDOG_MS = 60000 };

static const char gateway_pem[] = {
#include "gateway.pem.inc"
    0};

static void say(void *context, const char *text) {
    (void)context;
    printk("%s\n", text);
}

/* Read your own sensors here: members of a JSON object, about 400 bytes. */
static size_t measure(void *context, char *json, size_t size) {
    (void)context;
    int length = snprintf(json, size, "\"uptime_s\":%u", (unsigned)(k_uptime_get() / 1000));
    return length > 0 && (size_t)length < size ? (size_t)length : 0;
}

/* Start the watchdog; returns its channel, or -1 if the board has none. */
static int begin_watchdog(const struct device *watchdog) {
    const struct wdt_timeout_cfg timeout = {.window = {.min = 0, .max = WATCHDOG_MS}, .flags = WDT_FLAG_RESET_SOC};
    if (!device_is_ready(watchdog)) return -1;
    int channel = wdt_install_timeout(watchdog, &timeout);
    return channel >= 0 && !wdt_setup(watchdog, WDT_OPT_PAUSE_HALTED_BY_DBG) ? channel : -1;
}

int main(void) {
    static const struct zephyr_settings settings = {
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
    const struct device *watchdog = DEVICE_DT_GET(DT_ALIAS(watchdog0));
    int channel = begin_watchdog(watchdog), ended;
    if (channel < 0) say(NULL, "no watchdog: only a reset brings a hanging image back");
    net_config_init_app(NULL, "waypost"); /* DHCP; without a network readings are measured all the same */
    if (zephyr_begin(&settings)) return 0;
    while (!(ended = zephyr_step())) {
        if (channel >= 0) wdt_feed(watchdog, channel);
        k_msleep(STEP_MS);
    }
    if (ended < 0) {
        k_msleep(RESTART_MS);
        sys_reboot(SYS_REBOOT_COLD);
    }
    if (channel >= 0) wdt_disable(watchdog); /* stopped by a command */
    return 0;
}
