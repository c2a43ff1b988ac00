/*
 * Declarations of ESP-IDF v5.5.5 that `firmware_examples/esp_idf/main/esp32_port.c` uses, written after its headers
 * (components esp-tls, nvs_flash, esp_partition, app_update, esp_hw_support, esp_system, esp_timer, bootloader_support).
 * esp_idf_host.c plays them on this machine.
 */
#ifndef ESP_IDF_API_H
#define ESP_IDF_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef int esp_err_t;
#define ESP_OK 0
#define ESP_FAIL -1
#define ESP_ERR_NOT_FOUND 0x105
#define ESP_ERR_NVS_NOT_FOUND 0x1102

/* esp_tls.h; the configuration has more members, of which these are used */
typedef struct esp_tls esp_tls_t;
typedef enum esp_tls_conn_state { ESP_TLS_INIT = 0, ESP_TLS_CONNECTING, ESP_TLS_HANDSHAKE, ESP_TLS_FAIL, ESP_TLS_DONE } esp_tls_conn_state_t;
typedef struct esp_tls_cfg {
    const unsigned char *cacert_buf;
    unsigned int cacert_bytes;
    const unsigned char *clientcert_buf;
    unsigned int clientcert_bytes;
    const unsigned char *clientkey_buf;
    unsigned int clientkey_bytes;
    bool non_block;
    int timeout_ms;
} esp_tls_cfg_t;
#define ESP_TLS_ERR_SSL_WANT_READ -0x6900
#define ESP_TLS_ERR_SSL_WANT_WRITE -0x6880
esp_tls_t *esp_tls_init(void);
int esp_tls_conn_new_async(const char *hostname, int hostlen, int port, const esp_tls_cfg_t *cfg, esp_tls_t *tls);
ssize_t esp_tls_conn_write(esp_tls_t *tls, const void *data, size_t datalen);
ssize_t esp_tls_conn_read(esp_tls_t *tls, void *data, size_t datalen);
int esp_tls_conn_destroy(esp_tls_t *tls);
esp_err_t esp_tls_set_conn_sockfd(esp_tls_t *tls, int sockfd);
esp_err_t esp_tls_set_conn_state(esp_tls_t *tls, esp_tls_conn_state_t conn_state);

/* nvs.h */
typedef uint32_t nvs_handle_t;
typedef enum { NVS_READONLY, NVS_READWRITE } nvs_open_mode_t;
esp_err_t nvs_open(const char *namespace_name, nvs_open_mode_t open_mode, nvs_handle_t *out_handle);
esp_err_t nvs_set_blob(nvs_handle_t handle, const char *key, const void *value, size_t length);
esp_err_t nvs_get_blob(nvs_handle_t handle, const char *key, void *out_value, size_t *length);
esp_err_t nvs_commit(nvs_handle_t handle);

/* esp_partition.h */
typedef struct {
    uint32_t address, size, erase_size;
    char label[17];
} esp_partition_t;
esp_err_t esp_partition_read(const esp_partition_t *partition, size_t src_offset, void *dst, size_t size);
esp_err_t esp_partition_write(const esp_partition_t *partition, size_t dst_offset, const void *src, size_t size);
esp_err_t esp_partition_erase_range(const esp_partition_t *partition, size_t offset, size_t size);

/* esp_ota_ops.h, esp_flash_partitions.h */
typedef enum {
    ESP_OTA_IMG_NEW = 0x0U,
    ESP_OTA_IMG_PENDING_VERIFY = 0x1U,
    ESP_OTA_IMG_VALID = 0x2U,
    ESP_OTA_IMG_INVALID = 0x3U,
    ESP_OTA_IMG_ABORTED = 0x4U,
    ESP_OTA_IMG_UNDEFINED = 0xFFFFFFFFU,
} esp_ota_img_states_t;
const esp_partition_t *esp_ota_get_running_partition(void);
const esp_partition_t *esp_ota_get_next_update_partition(const esp_partition_t *start_from);
esp_err_t esp_ota_set_boot_partition(const esp_partition_t *partition);
esp_err_t esp_ota_get_state_partition(const esp_partition_t *partition, esp_ota_img_states_t *ota_state);
esp_err_t esp_ota_mark_app_valid_cancel_rollback(void);

/* esp_random.h, esp_timer.h, esp_system.h */
uint32_t esp_random(void);
int64_t esp_timer_get_time(void);
void esp_restart(void) __attribute__((__noreturn__));

#endif
