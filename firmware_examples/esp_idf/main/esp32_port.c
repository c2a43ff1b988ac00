/* See esp32_port.h. */
#include "esp32_port.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "esp_ota_ops.h"
#include "esp_partition.h"
#include "esp_random.h"
#include "esp_system.h"
#include "esp_timer.h"
#include "esp_tls.h"
#include "firmware.h"
#include "nvs.h"
#include "waypost_device.h"
#include "waypost_http.h"
#include "waypost_psa.h"

enum { SECTOR_BYTES = 4096 };

/* A connection: a socket of its own, so that connecting never waits, and esp_tls above it. */
struct esp32_connection {
    uint16_t port;
    int socket, is_connected, is_ready;
    esp_tls_t *tls;
    esp_tls_cfg_t configuration;
};

static struct esp32_settings settings;
static struct esp32_connection mqtt, http;
static nvs_handle_t storage;
static const esp_partition_t *slot;
static struct wc_crypto crypto;
static struct wp_device device;
static struct wu_update update;
static struct wh_client client;
static int has_updates;

static void say(void *context, const char *text) { settings.log(context, text); }

/* --- connections ------------------------------------------------------------------------------------------------ */

static void connection_close(void *context) {
    struct esp32_connection *connection = context;
    if (connection->tls)
        esp_tls_conn_destroy(connection->tls); /* closes the socket too */
    else if (connection->socket >= 0)
        close(connection->socket);
    connection->tls = NULL;
    connection->socket = -1;
    connection->is_connected = connection->is_ready = 0;
}

static int connection_open(void *context) {
    struct esp32_connection *connection = context;
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", (unsigned)connection->port);
    if (getaddrinfo(settings.host, port, &hints, &found) || !found) {
        say(NULL, "no connection: the name of the gateway is not known, or there is no network");
        return -1;
    }
    connection->socket = socket(found->ai_family, SOCK_STREAM, 0);
    int begun = connection->socket >= 0
                && !fcntl(connection->socket, F_SETFL, fcntl(connection->socket, F_GETFL, 0) | O_NONBLOCK)
                && (!connect(connection->socket, found->ai_addr, found->ai_addrlen) || errno == EINPROGRESS);
    freeaddrinfo(found);
    if (!begun) say(NULL, "no connection");
    return begun ? 0 : -1;
}

/* Look whether the socket is connected: 1, 0 not yet, -1 refused. */
static int connect_socket(struct esp32_connection *connection) {
    fd_set writable;
    struct timeval no_wait = {0};
    int error = 0;
    socklen_t length = sizeof error;
    FD_ZERO(&writable);
    FD_SET(connection->socket, &writable);
    if (select(connection->socket + 1, NULL, &writable, NULL, &no_wait) <= 0) return 0;
    if (getsockopt(connection->socket, SOL_SOCKET, SO_ERROR, &error, &length) || error) {
        say(NULL, "no connection: the gateway is away, or the port is wrong");
        return -1;
    }
    return 1;
}

/* Let esp_tls take the connected socket; it goes on from there without waiting, as the socket does not block. */
static int begin_tls(struct esp32_connection *connection) {
    esp_tls_cfg_t *configuration = &connection->configuration;
    configuration->cacert_buf = (const unsigned char *)settings.ca;
    configuration->cacert_bytes = (unsigned)strlen(settings.ca) + 1;
    if (settings.certificate && settings.key) {
        configuration->clientcert_buf = (const unsigned char *)settings.certificate;
        configuration->clientcert_bytes = (unsigned)strlen(settings.certificate) + 1;
        configuration->clientkey_buf = (const unsigned char *)settings.key;
        configuration->clientkey_bytes = (unsigned)strlen(settings.key) + 1;
    }
    connection->tls = esp_tls_init();
    if (!connection->tls) return -1;
    if (esp_tls_set_conn_sockfd(connection->tls, connection->socket) != ESP_OK) return -1;
    return esp_tls_set_conn_state(connection->tls, ESP_TLS_CONNECTING) == ESP_OK ? 0 : -1;
}

/* Go on with connecting: 1 once bytes can be sent, 0 not yet, -1 failed. */
static int make_ready(struct esp32_connection *connection) {
    if (connection->is_ready) return 1;
    if (!connection->is_connected) {
        int connected = connect_socket(connection);
        if (connected <= 0) return connected;
        connection->is_connected = 1;
        if (settings.ca && begin_tls(connection)) return -1;
    }
    if (settings.ca) {
        int shaken = esp_tls_conn_new_async(settings.host, (int)strlen(settings.host), connection->port,
                                            &connection->configuration, connection->tls);
        if (shaken < 0) say(NULL, "no TLS connection: is the certificate of this gateway pinned, with this name?");
        if (shaken <= 0) return shaken;
    }
    connection->is_ready = 1;
    return 1;
}

/* Return the result of a call of sockets or esp_tls as the core takes it. */
static int result_of(const struct esp32_connection *connection, ssize_t result) {
    if (result > 0) return (int)result;
    if (connection->tls) return result == ESP_TLS_ERR_SSL_WANT_READ || result == ESP_TLS_ERR_SSL_WANT_WRITE ? 0 : -1;
    return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

static int connection_send(void *context, const uint8_t *data, size_t length) {
    struct esp32_connection *connection = context;
    int ready = make_ready(connection);
    if (ready <= 0) return ready;
    if (connection->tls) return result_of(connection, esp_tls_conn_write(connection->tls, data, length));
    return result_of(connection, send(connection->socket, data, length, 0));
}

static int connection_receive(void *context, uint8_t *data, size_t size) {
    struct esp32_connection *connection = context;
    int ready = make_ready(connection);
    if (ready <= 0) return ready;
    if (connection->tls) return result_of(connection, esp_tls_conn_read(connection->tls, data, size));
    return result_of(connection, recv(connection->socket, data, size, 0));
}

/* --- storage: blobs in NVS, which a power cut leaves old or new ------------------------------------------------- */

static int read_blob(const char *kind, uint32_t number, uint8_t *data, size_t size) {
    char key[12];
    size_t length = size;
    snprintf(key, sizeof key, "%s%u", kind, (unsigned)number);
    return nvs_get_blob(storage, key, data, &length) == ESP_OK && length == size ? 0 : -1;
}

static int write_blob(const char *kind, uint32_t number, const uint8_t *data, size_t size) {
    char key[12];
    snprintf(key, sizeof key, "%s%u", kind, (unsigned)number);
    return nvs_set_blob(storage, key, data, size) == ESP_OK && nvs_commit(storage) == ESP_OK ? 0 : -1;
}

static int read_slot(void *context, uint32_t number, uint8_t *data) {
    (void)context;
    return read_blob("r", number, data, WP_SLOT_BYTES);
}

static int write_slot(void *context, uint32_t number, const uint8_t *data) {
    (void)context;
    return write_blob("r", number, data, WP_SLOT_BYTES);
}

static int read_record(void *context, uint32_t index, uint8_t *data) {
    (void)context;
    return read_blob("update", index, data, WU_RECORD_BYTES);
}

static int write_record(void *context, uint32_t index, const uint8_t *data) {
    (void)context;
    return write_blob("update", index, data, WU_RECORD_BYTES);
}

/* --- the other partition, and the boot loader ------------------------------------------------------------------- */

static int write_image(void *context, uint32_t at, const uint8_t *data, size_t length) {
    (void)context;
    if (esp_partition_erase_range(slot, at, SECTOR_BYTES) != ESP_OK) return -1;
    return esp_partition_write(slot, at, data, length) == ESP_OK ? 0 : -1;
}

static int read_image(void *context, uint32_t at, uint8_t *data, size_t length) {
    (void)context;
    return esp_partition_read(slot, at, data, length) == ESP_OK ? 0 : -1;
}

static int try_image(void *context, uint32_t size) {
    (void)context;
    (void)size;
    return esp_ota_set_boot_partition(slot) == ESP_OK ? 0 : -1; /* it checks the image too */
}

static int is_confirmed(void *context) {
    esp_ota_img_states_t state;
    (void)context;
    return esp_ota_get_state_partition(esp_ota_get_running_partition(), &state) != ESP_OK
           || state != ESP_OTA_IMG_PENDING_VERIFY;
}

static int confirm(void *context) {
    (void)context;
    return esp_ota_mark_app_valid_cancel_rollback() == ESP_OK ? 0 : -1;
}

/* Without a confirmation the boot loader goes back at the next restart. */
static void give_up(void *context) { (void)context; }

/* --- clocks and checks ------------------------------------------------------------------------------------------ */

static uint32_t ticks_ms(void *context) {
    (void)context;
    return (uint32_t)(esp_timer_get_time() / 1000);
}

static uint32_t time_s(void *context) {
    (void)context;
    return wh_time_s(&client);
}

static uint32_t random_word(void *context) {
    (void)context;
    return esp_random();
}

static enum wm_fault verify(void *context, int algorithm, const uint8_t *key_id, const uint8_t *statement, size_t length,
                            const uint8_t *signature) {
    (void)context;
    return wc_verify(&crypto, algorithm, key_id, statement, length, signature);
}

static void hash_begin(void *context) {
    (void)context;
    wc_hash_begin(&crypto);
}

static void hash_add(void *context, const uint8_t *data, size_t length) {
    (void)context;
    wc_hash_add(&crypto, data, length);
}

static void hash_end(void *context, uint8_t *digest) {
    (void)context;
    wc_hash_end(&crypto, digest);
}

/* --- begin and step --------------------------------------------------------------------------------------------- */

static int fail(const char *why) {
    say(NULL, why);
    return -1;
}

static int begin_device(void) {
    static struct wp_port port;
    static struct wp_settings readings;
    port = (struct wp_port){&mqtt, connection_open, connection_send, connection_receive, connection_close, read_slot,
                            write_slot, ticks_ms, time_s, random_word, settings.measure, say};
    readings = (struct wp_settings){settings.device, settings.password, settings.slots, settings.interval_ms};
    return wp_begin(&device, &readings, &port);
}

static int begin_update(void) {
    static struct wh_port http_port;
    static struct wh_settings http_settings;
    static struct wu_port port;
    static struct wu_settings firmware;
    static struct wu_transport transport;
    http_port = (struct wh_port){&http, connection_open, connection_send, connection_receive, connection_close, ticks_ms,
                                 say};
    http_settings = (struct wh_settings){settings.host, settings.device, settings.password};
    port = (struct wu_port){NULL, write_image, read_image, read_record, write_record, try_image, is_confirmed, confirm,
                            give_up, verify, hash_begin, hash_add, hash_end, ticks_ms, time_s, random_word, say};
    firmware = (struct wu_settings){FIRMWARE_NAME, FIRMWARE_VERSION, FIRMWARE_BOARD, FIRMWARE_SEQUENCE, slot->size,
                                    settings.ask_s, settings.trial_s, sizeof maker_key_der > 1};
    if (wh_begin(&client, &transport, &http_settings, &http_port)) return -1;
    return wu_begin(&update, &firmware, &port, settings.http_port ? &transport : NULL);
}

int esp32_begin(const struct esp32_settings *given) {
    settings = *given;
    mqtt = (struct esp32_connection){.port = settings.port, .socket = -1};
    http = (struct esp32_connection){.port = settings.http_port, .socket = -1};
    if (nvs_open("waypost", NVS_READWRITE, &storage) != ESP_OK) return fail("NVS cannot be opened");
    slot = esp_ota_get_next_update_partition(NULL);
    has_updates = slot != NULL;
    if (has_updates && wc_begin(&crypto, maker_key_der, sizeof maker_key_der))
        return fail("maker_key.h has no public key for ES256 in DER");
    if (has_updates && begin_update()) return fail("a setting of the update is out of range");
    if (begin_device()) return fail("the name of the device, its password or the interval is out of range");
    say(NULL, FIRMWARE_NAME " " FIRMWARE_VERSION);
    return 0;
}

int esp32_step(void) {
    enum wp_status status = wp_step(&device);
    if (status == WP_STORAGE_FAILED) return fail("NVS is full or damaged");
    if (status == WP_FINISHED) return 1;
    if (has_updates && wu_step(&update, wp_delivered(&device)) == WU_RESTART) {
        connection_close(&mqtt);
        connection_close(&http);
        esp_restart();
    }
    return 0;
}

void esp32_stop(void) { wp_stop(&device); }
