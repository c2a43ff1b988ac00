/* See zephyr_port.h. */
#include "zephyr_port.h"

#include <errno.h>
#include <psa/crypto.h>
#include <stdio.h>
#include <string.h>
#include <zephyr/dfu/mcuboot.h>
#include <zephyr/drivers/flash.h>
#include <zephyr/fs/nvs.h>
#include <zephyr/kernel.h>
#include <zephyr/net/socket.h>
#include <zephyr/net/tls_credentials.h>
#include <zephyr/random/random.h>
#include <zephyr/storage/flash_map.h>
#include <zephyr/sys/reboot.h>

#include "firmware.h"
#include "waypost_device.h"
#include "waypost_http.h"
#include "waypost_psa.h"

enum { SECTOR_BYTES = 4096, WRITE_ALIGN_MAX = 32, CREDENTIAL_TAG = 1, RECORD_ID = 60000, CONNECT_STACK_BYTES = 8192,
       CONNECT_PRIORITY = 8 };

/* Zephyr's sockets connect, and shake hands for TLS, while they wait. So a work queue does it, and the loop goes on. */
enum { CLOSED, CONNECTING, CONNECTED, FAILED, ABANDONED };

struct zephyr_connection {
    uint16_t port;
    int socket;
    atomic_t state;
    struct k_work connecting;
};

static struct zephyr_settings settings;
static struct zephyr_connection mqtt, http;
static struct nvs_fs storage;
static const struct flash_area *slot;
static struct wc_crypto crypto;
static struct wp_device device;
static struct wu_update update;
static struct wh_client client;
static int has_updates;
static struct k_work_q connect_queue;
K_THREAD_STACK_DEFINE(connect_stack, CONNECT_STACK_BYTES);

static void say(void *context, const char *text) { settings.log(context, text); }

/* --- connections ------------------------------------------------------------------------------------------------ */

/* Let a socket verify the gateway: its authority, and its name. */
static int secure(int made) {
    static const sec_tag_t tags[] = {CREDENTIAL_TAG};
    int verify = TLS_PEER_VERIFY_REQUIRED;
    if (zsock_setsockopt(made, SOL_TLS, TLS_SEC_TAG_LIST, tags, sizeof tags)) return -1;
    if (zsock_setsockopt(made, SOL_TLS, TLS_PEER_VERIFY, &verify, sizeof verify)) return -1;
    return zsock_setsockopt(made, SOL_TLS, TLS_HOSTNAME, settings.host, (socklen_t)strlen(settings.host) + 1);
}

/* Return a connected socket, or -1. It waits. */
static int connect_now(uint16_t to) {
    struct zsock_addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[8];
    snprintf(port, sizeof port, "%u", (unsigned)to);
    if (zsock_getaddrinfo(settings.host, port, &hints, &found) || !found) {
        say(NULL, "no connection: the name of the gateway is not known, or there is no network");
        return -1;
    }
    int made = zsock_socket(found->ai_family, SOCK_STREAM, settings.ca ? IPPROTO_TLS_1_2 : IPPROTO_TCP);
    int connected = made >= 0 && !(settings.ca && secure(made)) && !zsock_connect(made, found->ai_addr, found->ai_addrlen);
    zsock_freeaddrinfo(found);
    if (connected) return made;
    say(NULL, "no connection: is the gateway away, or another certificate pinned?");
    if (made >= 0) zsock_close(made);
    return -1;
}

static void connect_work(struct k_work *work) {
    struct zephyr_connection *connection = CONTAINER_OF(work, struct zephyr_connection, connecting);
    int made = connect_now(connection->port);
    connection->socket = made;
    if (atomic_cas(&connection->state, CONNECTING, made >= 0 ? CONNECTED : FAILED)) return;
    if (made >= 0) zsock_close(made); /* closed in the meantime */
    connection->socket = -1;
    atomic_set(&connection->state, CLOSED);
}

static int connection_open(void *context) {
    struct zephyr_connection *connection = context;
    if (!atomic_cas(&connection->state, CLOSED, CONNECTING)) return -1; /* the attempt before has not ended */
    return k_work_submit_to_queue(&connect_queue, &connection->connecting) < 0 ? -1 : 0;
}

static void connection_close(void *context) {
    struct zephyr_connection *connection = context;
    if (atomic_cas(&connection->state, CONNECTING, ABANDONED)) return; /* the work closes its socket */
    if (atomic_get(&connection->state) == ABANDONED) return;
    if (connection->socket >= 0) zsock_close(connection->socket);
    connection->socket = -1;
    atomic_set(&connection->state, CLOSED);
}

/* Return 1 once bytes can be sent, 0 not yet, -1 failed. */
static int is_ready(struct zephyr_connection *connection) {
    int state = (int)atomic_get(&connection->state);
    return state == CONNECTED ? 1 : state == CONNECTING ? 0 : -1;
}

static int result_of(ssize_t result) {
    if (result > 0) return (int)result;
    return result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

static int connection_send(void *context, const uint8_t *data, size_t length) {
    struct zephyr_connection *connection = context;
    int ready = is_ready(connection);
    return ready <= 0 ? ready : result_of(zsock_send(connection->socket, data, length, ZSOCK_MSG_DONTWAIT));
}

static int connection_receive(void *context, uint8_t *data, size_t size) {
    struct zephyr_connection *connection = context;
    int ready = is_ready(connection);
    return ready <= 0 ? ready : result_of(zsock_recv(connection->socket, data, size, ZSOCK_MSG_DONTWAIT));
}

/* --- storage: entries in NVS, which a power cut leaves old or new ----------------------------------------------- */

static int read_slot(void *context, uint32_t number, uint8_t *data) {
    (void)context;
    return nvs_read(&storage, (uint16_t)(number + 1), data, WP_SLOT_BYTES) == (ssize_t)WP_SLOT_BYTES ? 0 : -1;
}

static int write_slot(void *context, uint32_t number, const uint8_t *data) {
    (void)context;
    return nvs_write(&storage, (uint16_t)(number + 1), data, WP_SLOT_BYTES) < 0 ? -1 : 0;
}

static int read_record(void *context, uint32_t index, uint8_t *data) {
    (void)context;
    return nvs_read(&storage, (uint16_t)(RECORD_ID + index), data, WU_RECORD_BYTES) == (ssize_t)WU_RECORD_BYTES ? 0 : -1;
}

static int write_record(void *context, uint32_t index, const uint8_t *data) {
    (void)context;
    return nvs_write(&storage, (uint16_t)(RECORD_ID + index), data, WU_RECORD_BYTES) < 0 ? -1 : 0;
}

/* Mount NVS in the partition `storage_partition`. */
static int mount_storage(void) {
    struct flash_pages_info page;
    storage.flash_device = FIXED_PARTITION_DEVICE(storage_partition);
    storage.offset = FIXED_PARTITION_OFFSET(storage_partition);
    if (flash_get_page_info_by_offs(storage.flash_device, storage.offset, &page)) return -1;
    storage.sector_size = (uint16_t)(page.size < SECTOR_BYTES ? SECTOR_BYTES : page.size);
    storage.sector_count = (uint16_t)(FIXED_PARTITION_SIZE(storage_partition) / storage.sector_size);
    return nvs_mount(&storage);
}

/* --- the second slot, and MCUboot ------------------------------------------------------------------------------- */

/* Bytes of the second slot that an image may have: MCUboot keeps its own state behind them. */
static uint32_t image_bytes_max(void) {
    ssize_t status = boot_get_trailer_status_offset(slot->fa_size);
    return status < SECTOR_BYTES ? 0 : (uint32_t)status / SECTOR_BYTES * SECTOR_BYTES;
}

static int write_image(void *context, uint32_t at, const uint8_t *data, size_t length) {
    uint32_t align = flash_area_align(slot), trailer = image_bytes_max();
    uint8_t tail[WRITE_ALIGN_MAX];
    (void)context;
    if (align > sizeof tail) return -1;
    if (!at && flash_area_erase(slot, (off_t)trailer, slot->fa_size - trailer)) return -1; /* of the update before */
    if (flash_area_erase(slot, (off_t)at, SECTOR_BYTES)) return -1;
    size_t whole = length / align * align;
    if (whole && flash_area_write(slot, (off_t)at, data, whole)) return -1;
    if (whole == length) return 0;
    memset(tail, flash_area_erased_val(slot), sizeof tail);
    memcpy(tail, data + whole, length - whole);
    return flash_area_write(slot, (off_t)(at + whole), tail, align) ? -1 : 0;
}

static int read_image(void *context, uint32_t at, uint8_t *data, size_t length) {
    (void)context;
    return flash_area_read(slot, (off_t)at, data, length) ? -1 : 0;
}

static int try_image(void *context, uint32_t size) {
    (void)context;
    (void)size;
    return boot_request_upgrade(BOOT_UPGRADE_TEST) ? -1 : 0;
}

static int is_confirmed(void *context) {
    (void)context;
    return boot_is_img_confirmed();
}

static int confirm(void *context) {
    (void)context;
    return boot_write_img_confirmed() ? -1 : 0;
}

/* Without a confirmation MCUboot goes back at the next restart. */
static void give_up(void *context) { (void)context; }

/* --- clocks and checks ------------------------------------------------------------------------------------------ */

static uint32_t ticks_ms(void *context) {
    (void)context;
    return k_uptime_get_32();
}

static uint32_t time_s(void *context) {
    (void)context;
    return wh_time_s(&client);
}

static uint32_t random_word(void *context) {
    (void)context;
    return sys_rand32_get();
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

static int add_credential(enum tls_credential_type type, const char *pem) {
    return pem ? tls_credential_add(CREDENTIAL_TAG, type, pem, strlen(pem) + 1) : 0;
}

static void begin_connection(struct zephyr_connection *connection, uint16_t port) {
    connection->port = port;
    connection->socket = -1;
    atomic_set(&connection->state, CLOSED);
    k_work_init(&connection->connecting, connect_work);
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
    firmware = (struct wu_settings){FIRMWARE_NAME, FIRMWARE_VERSION, FIRMWARE_BOARD, FIRMWARE_SEQUENCE, image_bytes_max(),
                                    settings.ask_s, settings.trial_s, sizeof maker_key_der > 1};
    if (wh_begin(&client, &transport, &http_settings, &http_port)) return -1;
    return wu_begin(&update, &firmware, &port, settings.http_port ? &transport : NULL);
}

int zephyr_begin(const struct zephyr_settings *given) {
    settings = *given;
    begin_connection(&mqtt, settings.port);
    begin_connection(&http, settings.http_port);
    k_work_queue_init(&connect_queue);
    k_work_queue_start(&connect_queue, connect_stack, K_THREAD_STACK_SIZEOF(connect_stack), CONNECT_PRIORITY, NULL);
    if (mount_storage()) return fail("NVS cannot be mounted: is there a partition storage_partition?");
    if (add_credential(TLS_CREDENTIAL_CA_CERTIFICATE, settings.ca)
        || add_credential(TLS_CREDENTIAL_PUBLIC_CERTIFICATE, settings.certificate)
        || add_credential(TLS_CREDENTIAL_PRIVATE_KEY, settings.key))
        return fail("a certificate cannot be taken: see CONFIG_TLS_MAX_CREDENTIALS_NUMBER");
    has_updates = !flash_area_open(FIXED_PARTITION_ID(slot1_partition), &slot);
    if (has_updates && wc_begin(&crypto, maker_key_der, sizeof maker_key_der))
        return fail("maker_key.h has no public key for ES256 in DER");
    if (has_updates && begin_update()) return fail("a setting of the update is out of range");
    if (begin_device()) return fail("the name of the device, its password or the interval is out of range");
    say(NULL, FIRMWARE_NAME " " FIRMWARE_VERSION);
    return 0;
}

int zephyr_step(void) {
    enum wp_status status = wp_step(&device);
    if (status == WP_STORAGE_FAILED) return fail("NVS is full or damaged");
    if (status == WP_FINISHED) return 1;
    if (has_updates && wu_step(&update, wp_delivered(&device)) == WU_RESTART) sys_reboot(SYS_REBOOT_COLD);
    return 0;
}

void zephyr_stop(void) { wp_stop(&device); }
