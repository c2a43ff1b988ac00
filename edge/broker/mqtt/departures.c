/*
 * Encode many messages for one subscriber: PUBLISH packets of QoS 0 and 1, and their entries in the in-flight table.
 * `outbound.py` calls it, and encodes message by message what is not plain.
 *
 * The interpreter lock is held throughout. Creating an object may run Python code, which may change any list. So the runs
 * are read once and the lists of bodies are copied, so that the measured sizes stay valid.
 */
#include "../../../bridge/native.h"

static PyObject *ADDRESS, *FLAGS, *PROPERTIES, *BODIES, *ONE;

/* --- MQTT -------------------------------------------------------------------------------------------------------- */

enum {
    PUBLISH = 0x30,
    SHORT_LENGTH_MAX = 127, /* remaining length of one byte */
    LENGTH_MAX = 16383,     /* two bytes */
    QOS_MASK = 3,       /* of the flags of a run (bridge.message) */
    PLAIN_FLAGS = 0x31, /* QoS 0 or 1, durable, stamped by a good clock */
};

/* Common parts of all messages. */
struct subscriber {
    long qos_max;
    char *block; /* encoded properties */
    Py_ssize_t block_bytes, length_max, topic_max;
};

/* A run, and the common parts of its packets. It owns its references. */
struct part {
    PyObject *run, *address, *bodies; /* the last: a tuple */
    const char *topic;
    Py_ssize_t topic_bytes, messages, fixed; /* the last: bytes of the variable header */
    bool with_id;
};

/* Read the properties of a run. Return 1 if it is plain, 0 if not, -1 with an error. */
static int read_plain(PyObject *run, long *value)
{
    PyObject *properties = field(run, PROPERTIES), *flags = properties ? field(run, FLAGS) : NULL;
    char *bytes;
    Py_ssize_t size;
    int plain = -1;
    if (flags && !PyBytes_AsStringAndSize(properties, &bytes, &size)) {
        *value = PyLong_AsLong(flags);
        plain = PyErr_Occurred() ? -1 : size == 0 && !(*value & ~PLAIN_FLAGS);
    }
    Py_XDECREF(properties);
    Py_XDECREF(flags);
    return plain;
}

/* Return 1 if it is plain, 0 if not, -1 with an error. */
static int read_run(PyObject *run, const struct subscriber *to, struct part *part)
{
    long value = 0;
    int plain = read_plain(run, &value);
    if (plain <= 0)
        return plain;
    PyObject *bodies = field(run, BODIES);
    part->run = keep(run), part->address = bodies ? field(run, ADDRESS) : NULL;
    part->bodies = part->address ? PyList_AsTuple(bodies) : NULL;
    Py_XDECREF(bodies);
    if (!part->bodies || !(part->topic = PyUnicode_AsUTF8AndSize(part->address, &part->topic_bytes)))
        return -1;
    part->messages = PyTuple_Size(part->bodies);
    part->with_id = (value & QOS_MASK) && to->qos_max;
    part->fixed = 2 + part->topic_bytes + 2 * part->with_id + to->block_bytes;
    return part->topic_bytes <= to->topic_max;
}

/* Return the bytes of the packets of a run; 0 if one is not plain, -1 with an error. */
static Py_ssize_t measure(const struct part *part, const struct subscriber *to)
{
    Py_ssize_t total = 0, size;
    for (Py_ssize_t n = 0; n < part->messages; n++) {
        char *body;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(part->bodies, n), &body, &size))
            return -1;
        size += part->fixed;
        if (size > to->length_max)
            return 0;
        total += size + (size > SHORT_LENGTH_MAX ? 3 : 2);
    }
    return total;
}

/* Write a packet up to its packet identifier; return the end. */
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

/* Iterates over the packet identifiers. */
struct flight {
    PyObject *ids, *outgoing;
    Py_ssize_t next;
};

/* Take the next packet identifier for a message of `delivery`; 0 with an error. */
static uint16_t take_off(struct flight *flight, PyObject *delivery, Py_ssize_t place)
{
    PyObject *id = listed(flight->ids, flight->next++);
    PyObject *entry = id ? Py_BuildValue("On", delivery, place) : NULL;
    long number = entry ? PyLong_AsLong(id) : -1;
    if (entry && !PyErr_Occurred() && (number < 1 || number > UINT16_MAX))
        PyErr_SetString(PyExc_ValueError, "a packet identifier is not from 1 to 65535");
    bool done = entry && !PyErr_Occurred() && !PyDict_SetItem(flight->outgoing, id, entry);
    Py_XDECREF(entry);
    Py_XDECREF(id);
    return done ? (uint16_t)number : 0;
}

/* Write the packets of a run; return the end, NULL with an error. */
static uint8_t *put_run(uint8_t *to, const struct part *part, const struct subscriber *subscriber, PyObject *delivery,
                        struct flight *flight)
{
    for (Py_ssize_t n = 0; n < part->messages; n++) {
        char *body;
        Py_ssize_t size;
        uint16_t id = 0;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(part->bodies, n), &body, &size) ||
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

/* Write all packets; NULL with an error. */
static PyObject *write_all(const struct part *parts, Py_ssize_t runs, const struct subscriber *to, Py_ssize_t total,
                           struct flight *flight, PyObject *const *arguments)
{
    PyObject *packets = PyBytes_FromStringAndSize(NULL, total);
    uint8_t *at = packets ? (uint8_t *)PyBytes_AsString(packets) : NULL;
    for (const struct part *part = parts; at && part < parts + runs; part++) {
        PyObject *delivery = NULL;
        if (part->with_id)
            delivery = PyObject_CallFunctionObjArgs(arguments[5], part->run, ONE, Py_False, arguments[6], arguments[7], NULL);
        at = part->with_id && !delivery ? NULL : put_run(at, part, to, delivery, flight);
        Py_XDECREF(delivery);
    }
    if (at)
        return packets;
    Py_XDECREF(packets);
    return NULL;
}

/*
 * mqtt_encode_publishes(runs, highest QoS, encoded properties, packet identifiers, in-flight table, Delivery, token,
 *                subscription identifiers, longest remaining length, longest topic name) -> bytes; None if not plain
 */
static PyObject *publishes(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_encode_publishes", arguments, count, "libldOOtii"))
        return NULL;
    struct subscriber to = {.qos_max = PyLong_AsLong(arguments[1])};
    struct flight flight = {arguments[3], arguments[4], 0};
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(arguments[2], &to.block, &to.block_bytes))
        return NULL;
    long length_max = PyLong_AsLong(arguments[8]);
    to.length_max = length_max < LENGTH_MAX ? length_max : LENGTH_MAX, to.topic_max = PyLong_AsLong(arguments[9]);
    Py_ssize_t runs = PyList_Size(arguments[0]), ids = 0, total = 0, size = 1;
    struct part *parts = PyErr_Occurred() ? NULL : PyMem_Calloc((size_t)runs + 1, sizeof *parts);
    if (!parts)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    for (Py_ssize_t i = 0; size > 0 && i < runs; i++) {
        PyObject *run = listed(arguments[0], i);
        int plain = run ? read_run(run, &to, parts + i) : -1;
        Py_XDECREF(run);
        size = plain > 0 ? measure(parts + i, &to) : plain;
        total += size, ids += parts[i].with_id ? parts[i].messages : 0;
    }
    PyObject *packets = NULL;
    if (size > 0 && total > 0 && ids == PyList_Size(flight.ids))
        packets = write_all(parts, runs, &to, total, &flight, arguments);
    for (Py_ssize_t i = 0; i < runs; i++) {
        Py_XDECREF(parts[i].run);
        Py_XDECREF(parts[i].address);
        Py_XDECREF(parts[i].bodies);
    }
    PyMem_Free(parts);
    return packets || PyErr_Occurred() ? packets : none();
}

static PyMethodDef functions[] = {
    FUNCTION("mqtt_encode_publishes", publishes),
    {NULL, NULL, 0, NULL},
};

int add_departures(PyObject *module)
{
    static const struct name names[] = {
        {&ADDRESS, "address"}, {&FLAGS, "flags"}, {&PROPERTIES, "properties"}, {&BODIES, "bodies"},
    };
    if (!intern(names, sizeof names / sizeof *names))
        return -1;
    if (!(ONE = PyLong_FromLong(1)))
        return -1;
    return PyModule_AddFunctions(module, functions);
}
