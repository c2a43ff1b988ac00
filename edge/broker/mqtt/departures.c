/*
 * What many messages are to one subscriber: PUBLISH packets of QoS 0 and 1 behind each other, and what is in flight by
 * their packet identifiers. `departures.py` says what is given; `outbound.py` does the same message by message.
 *
 * The interpreter lock is held throughout.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../../../bridge/stable_interface.h"

static PyObject *ADDRESS, *FLAGS, *PROPERTIES, *BODIES, *ONE;

/* What `object` has under this name, as long as `object` is there and is not changed; NULL with an error. */
static PyObject *field(PyObject *object, PyObject *name)
{
    PyObject *found = object ? PyObject_GetAttr(object, name) : NULL;
    Py_DecRef(found);
    return found;
}

/* --- MQTT -------------------------------------------------------------------------------------------------------- */

enum {
    PUBLISH = 0x30,
    SHORT_LENGTH_MAX = 127,
    QOS_MASK = 3,       /* of the flags of a run (bridge.message) */
    PLAIN_FLAGS = 0x31, /* QoS 0 or 1, durable, stamped by a good clock */
};

/* What is the same for all messages. */
struct subscriber {
    long qos_max;
    char *block; /* properties with their length */
    Py_ssize_t block_bytes, length_max, topic_max;
};

/* A run, and what of its packets is the same; what it points to is its own. */
struct part {
    const char *topic;
    PyObject *bodies;
    Py_ssize_t topic_bytes, messages, fixed; /* the last: bytes of the variable header */
    bool with_id;
};

/* 1; 0 where it has more to be looked at, -1 with an error. */
static int read_run(PyObject *run, const struct subscriber *to, struct part *part)
{
    PyObject *address = field(run, ADDRESS), *properties = address ? field(run, PROPERTIES) : NULL;
    PyObject *flags = properties ? field(run, FLAGS) : NULL;
    char *bytes;
    Py_ssize_t size;
    part->bodies = flags ? field(run, BODIES) : NULL;
    if (!part->bodies || PyBytes_AsStringAndSize(properties, &bytes, &size) ||
        !(part->topic = PyUnicode_AsUTF8AndSize(address, &part->topic_bytes)))
        return -1;
    long value = PyLong_AsLong(flags);
    part->messages = PyList_Size(part->bodies);
    if (PyErr_Occurred())
        return -1;
    part->with_id = (value & QOS_MASK) && to->qos_max;
    part->fixed = 2 + part->topic_bytes + 2 * part->with_id + to->block_bytes;
    return size == 0 && !(value & ~PLAIN_FLAGS) && part->topic_bytes <= to->topic_max;
}

/* Bytes of all packets; 0 where one of them has more to be looked at, -1 with an error. `ids`: so many need one. */
static Py_ssize_t measure(PyObject *runs, const struct subscriber *to, Py_ssize_t *ids)
{
    Py_ssize_t total = 0, size;
    for (Py_ssize_t i = 0; i < PyList_Size(runs); i++) {
        struct part part;
        int plain = read_run(PyList_GetItem(runs, i), to, &part);
        if (plain <= 0)
            return plain;
        for (Py_ssize_t n = 0; n < part.messages; n++) {
            char *body;
            if (PyBytes_AsStringAndSize(PyList_GetItem(part.bodies, n), &body, &size))
                return -1;
            size += part.fixed;
            if (size > to->length_max)
                return 0;
            total += size + (size > SHORT_LENGTH_MAX ? 3 : 2);
        }
        *ids += part.with_id ? part.messages : 0;
    }
    return total;
}

/* A packet up to its packet identifier; returns where it goes on. */
static uint8_t *put_head(uint8_t *to, const struct part *part, size_t length)
{
    *to++ = (uint8_t)(PUBLISH | part->with_id << 1);
    if (length > SHORT_LENGTH_MAX)
        *to++ = (uint8_t)(length & 127) | 128, *to++ = (uint8_t)(length >> 7);
    else
        *to++ = (uint8_t)length;
    *to++ = (uint8_t)(part->topic_bytes >> 8), *to++ = (uint8_t)part->topic_bytes;
    __builtin_memcpy(to, part->topic, (size_t)part->topic_bytes);
    return to + part->topic_bytes;
}

/* What takes the packet identifiers, one behind the other. */
struct flight {
    PyObject *ids, *outgoing;
    Py_ssize_t next;
};

/* The next packet identifier, from now on that of a message of `delivery`; 0 with an error. */
static uint16_t take_off(struct flight *flight, PyObject *delivery, Py_ssize_t place)
{
    PyObject *id = PyList_GetItem(flight->ids, flight->next++);
    PyObject *entry = id ? Py_BuildValue("On", delivery, place) : NULL;
    bool done = entry && !PyDict_SetItem(flight->outgoing, id, entry);
    Py_DecRef(entry);
    return done ? (uint16_t)PyLong_AsLong(id) : 0;
}

/* The packets of a run; returns where they end, NULL with an error. */
static uint8_t *put_run(uint8_t *to, const struct part *part, const struct subscriber *subscriber, PyObject *delivery,
                        struct flight *flight)
{
    for (Py_ssize_t n = 0; n < part->messages; n++) {
        char *body;
        Py_ssize_t size;
        uint16_t id = 0;
        if (PyBytes_AsStringAndSize(PyList_GetItem(part->bodies, n), &body, &size) ||
            (part->with_id && !(id = take_off(flight, delivery, n))))
            return NULL;
        to = put_head(to, part, (size_t)(part->fixed + size));
        if (part->with_id)
            *to++ = (uint8_t)(id >> 8), *to++ = (uint8_t)id;
        __builtin_memcpy(to, subscriber->block, (size_t)subscriber->block_bytes);
        to += subscriber->block_bytes;
        __builtin_memcpy(to, body, (size_t)size);
        to += size;
    }
    return to;
}

/*
 * publishes(runs, highest QoS, properties with their length, packet identifiers, what is in flight, Delivery, token,
 *           subscription identifiers, longest remaining length, longest topic name) -> bytes, or None and nothing done
 */
static PyObject *publishes(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self, (void)count;
    PyObject *runs = arguments[0];
    struct subscriber to = {.qos_max = PyLong_AsLong(arguments[1])};
    struct flight flight = {arguments[3], arguments[4], 0};
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(arguments[2], &to.block, &to.block_bytes))
        return NULL;
    to.length_max = PyLong_AsLong(arguments[8]), to.topic_max = PyLong_AsLong(arguments[9]);
    Py_ssize_t ids = 0, total = PyErr_Occurred() ? -1 : measure(runs, &to, &ids);
    if (total <= 0 || ids != PyList_Size(flight.ids))
        return total < 0 || PyErr_Occurred() ? NULL : Py_BuildValue("");
    PyObject *packets = PyBytes_FromStringAndSize(NULL, total);
    uint8_t *at = packets ? (uint8_t *)PyBytes_AsString(packets) : NULL;
    for (Py_ssize_t i = 0; at && i < PyList_Size(runs); i++) {
        PyObject *run = PyList_GetItem(runs, i), *delivery = NULL;
        struct part part;
        if (read_run(run, &to, &part) != 1)
            at = NULL;
        else if (part.with_id)
            delivery = PyObject_CallFunctionObjArgs(arguments[5], run, ONE, &_Py_FalseStruct, arguments[6], arguments[7],
                                                    NULL);
        if (at)
            at = part.with_id && !delivery ? NULL : put_run(at, &part, &to, delivery, &flight);
        Py_DecRef(delivery);
    }
    if (!at) {
        Py_DecRef(packets);
        return NULL;
    }
    return packets;
}

static PyMethodDef PUBLISHES = {"publishes", publishes, METH_FASTCALL, NULL};

/* The function. */
PyObject *waypost_departures(void)
{
    ADDRESS = PyUnicode_InternFromString("address"), FLAGS = PyUnicode_InternFromString("flags");
    PROPERTIES = PyUnicode_InternFromString("properties"), BODIES = PyUnicode_InternFromString("bodies");
    ONE = PyLong_FromLong(1);
    return PyCFunction_NewEx(&PUBLISHES, NULL, NULL);
}
