/*
 * A device that keeps its readings until a gateway has them on disk: spool, MQTT 3.1.1 client, commands.
 *
 * No allocation, no threads, no standard I/O, no operating system: a board gives the functions of `struct wp_port`.
 * Call `wp_begin` once, then `wp_step` again and again. README.md has the steps of a port.
 */
#ifndef WAYPOST_DEVICE_H
#define WAYPOST_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#define WP_SLOT_BYTES 512u    /* one reading in the spool */
#define WP_CONTENT_MAX 496u   /* its content */
#define WP_PACKET_MAX 640u    /* largest packet that is sent: a reading with its topic; CONNECT */
#define WP_COMMAND_MAX 384u   /* largest command with its topic; a longer one is answered with status 400 */
#define WP_NAME_MAX 64u       /* bytes of the device's name */
#define WP_WINDOW 8u          /* readings in flight */
#define WP_KEEP_ALIVE_S 30u

/* What a board provides. Every function returns at once; `context` is handed through. */
struct wp_port {
    void *context;
    /* Network: a TCP or TLS connection to the gateway. TLS trusts the gateway's authority and no other. */
    int (*open)(void *context);                                          /* begin to connect: 0, or -1 */
    int (*send)(void *context, const uint8_t *data, size_t length);      /* bytes taken, 0 not now, -1 broken */
    int (*receive)(void *context, uint8_t *data, size_t size);           /* bytes, 0 none now, -1 broken or closed */
    void (*close)(void *context);
    /* Storage: slots of WP_SLOT_BYTES that can be written again (a file, FRAM, EEPROM). */
    int (*read_slot)(void *context, uint32_t slot, uint8_t *data);       /* 0, or -1 */
    int (*write_slot)(void *context, uint32_t slot, const uint8_t *data); /* 0 once it is stored, or -1 */
    /* Clocks and chance. */
    uint32_t (*ticks_ms)(void *context);                                 /* may wrap */
    uint32_t (*time_s)(void *context);                                   /* since 1970; 0 while it is unknown */
    uint32_t (*random)(void *context);
    /* Sensors: write members of a JSON object, such as "celsius":21.5; return their length, at most `size`. */
    size_t (*measure)(void *context, char *json, size_t size);
    void (*log)(void *context, const char *text);
};

struct wp_settings {
    const char *device;     /* user, client identifier and part of the topics */
    const char *password;   /* NULL: a certificate is shown by TLS, or none is needed */
    uint32_t slots;         /* of the storage */
    uint32_t interval_ms;
};

enum wp_status { WP_RUNS, WP_FINISHED, WP_STORAGE_FAILED };

/* State of a device; about 2 KiB. Its members are for waypost_device.c. */
struct wp_device {
    const struct wp_port *port;
    const struct wp_settings *settings;
    /* readings */
    uint32_t next, acknowledged, sending, dropped;
    uint32_t first; /* reading of this start */
    uint32_t early; /* bit i: reading `acknowledged` + i was acknowledged before an earlier one */
    uint32_t interval_ms, measured_ms, due_ms;
    char boot[9];
    uint8_t slot[WP_SLOT_BYTES];
    /* connection */
    uint8_t state, stopping, storage_failed, delivered;
    uint8_t subscribe_due, online_due, answer_due, command_ack_due, pinged;
    uint16_t command_id, answer_id;
    uint32_t retry_at_ms, retry_ms, opened_ms, received_ms;
    /* packets */
    uint8_t out[WP_PACKET_MAX];
    size_t out_length, out_sent;
    uint8_t in[WP_COMMAND_MAX];
    uint8_t in_first, in_stage, in_shift;
    uint32_t in_remaining, in_left, in_kept;
    /* the answer to a command */
    const char *error;
    char id[48];
    size_t id_length;
};

/* Read the spool and prepare to run. Returns 0, or -1 if the storage cannot be read or a setting is out of range. */
int wp_begin(struct wp_device *device, const struct wp_settings *settings, const struct wp_port *port);

/* Do what is due: measure, send, receive, connect again. It never waits. */
enum wp_status wp_step(struct wp_device *device);

/* Stop measuring; `wp_step` returns WP_FINISHED once every reading is acknowledged. */
void wp_stop(struct wp_device *device);

/* Number of readings that wait for their acknowledgement. */
uint32_t wp_waiting(const struct wp_device *device);

/* 1 once a reading of this start was acknowledged: the sign of health of a new firmware (waypost_update.h). */
int wp_delivered(const struct wp_device *device);

#endif
