/*
 * Fast path for PUBLISH packets to known topics, for all MQTT connections in a turn of the loop: read without a call of
 * Python, collected by log, and answered together.
 *
 * A *lane* is the reading side of one connection. It reads PUBLISH packets of QoS 0 and 1 with a first byte, topic name and
 * properties that it has learned, and passes all other bytes to the state machine (`inbound.py`), unchanged and in order.
 * The messages are collected in *batches*, which are stored, delivered and answered together. A message with an
 * unknown route is a run of its own for the router. `arrivals.py` is the Python side and decides about everything else.
 *
 * A lane reads the bytes that the transport of its connection has received. Its answers are written with other output of
 * the connection at the end of the turn. It knows no socket.
 */
#include "../../../bridge/native.h"

/* --- constants and structures ------------------------------------------------------------------------------------ */

enum {
    PUBLISH_0 = 0x30,
    PUBLISH_1 = 0x32,
    PUBLISH_BYTES_MIN = 5, /* topic name of one character, QoS 0, before MQTT 5 */
    SHORT_LENGTH_MAX = 127,
    PUBACK_BYTES = 4,
    PROPERTIES_MAX = 127, /* bytes of properties with a length of one byte */
    FLAG_DURABLE = 0x10,  /* bridge.message.DURABLE */
    TOPICS_LEAST = 16,
    NAME_BYTES_MAX = 254,    /* topic name that is read by its prefix: with its length HEAD_BYTES_MAX */
    LEVELS_MAX = 128,        /* of such a name: edge.broker.limits.TOPIC_LEVELS_MAX */
    PREFIXES_MAX = 4,        /* of one lane: more than a device uses */
    TOPIC_COST = 160,        /* memory of a topic in addition to name and properties: its capsule and slot */
    ANSWERS_KEPT_MAX = 1024, /* largest buffer for answers that a lane keeps */
};

static const char LANE[] = "waypost.lane", TURN[] = "waypost.turn", COLUMN[] = "waypost.column", LOG[] = "waypost.log",
                  BATCH[] = "waypost.batch", TOPIC[] = "waypost.topic", PREFIX[] = "waypost.prefix";

/* Messages of a turn for one log. */
struct log {
    PyObject *sink; /* the log in Python */
    PyObject *runs; /* a list while the open batch has messages for it */
    size_t bytes, messages;
};

/* Targets of messages. */
struct column {
    PyObject *log;  /* a capsule; NULL: not stored */
    PyObject *live; /* live subscribers in Python, which get them first; NULL: none */
    uint64_t received; /* messages since `take_received` */
};

/* Targets of messages to all topics with a prefix. */
struct prefix {
    PyObject *columns[2]; /* of QoS 0 and 1: capsules; NULL: read by the state machine */
    uint64_t generation;  /* of the routes of the columns, which are invalid for other generations */
    uint32_t size;
    uint8_t bytes[]; /* the prefix with its final slash */
};

/* A learned topic name with properties. `head` is the encoded topic name and the encoded properties, without the packet
 * identifier between them. */
struct topic {
    PyObject *address, *properties, *column; /* capsule of a column; NULL: read by the state machine */
    PyObject *prefix;                        /* capsule of its prefix; NULL: none */
    uint64_t generation;                     /* of the route of `column`; for others the router decides */
    uint32_t hash, head_bytes;
    uint8_t first;
    uint8_t head[];
};

struct lane {
    struct turn *turn;
    PyObject *turn_capsule, *origin, *device, *inbound;
    PyObject *slow, *writes; /* NULL once the lane is closed */
    struct lane *next_answered;
    uint8_t *answers;
    size_t answer_bytes, answer_room;
    PyObject *prefixes[PREFIXES_MAX]; /* capsules: topics with these prefixes are known */
    PyObject **topics; /* hash table of capsules; its size is a power of two, at most half of it used */
    uint32_t topics_room, topics_used, topics_max;
    size_t topic_bytes;
    long length_max, receive_maximum;
    Py_ssize_t missing; /* known rest of a packet that the state machine has started to read */
    uint64_t waits_in; /* number of the last turn in which it read a message */
    uint64_t received; /* messages that it has read */
    double received_at_s;
    PyObject *capsule; /* its own capsule, without a reference */
    uint8_t version;
    bool open, answered, behind;
};

/* Consecutive messages of one lane. */
struct entry {
    PyObject *lane, *run;
    uint32_t ids;
    enum { NOW, BEHIND, KEPT } answer; /* at once, after earlier answers of the client, or after the commit */
};

/* Consecutive messages for the same live subscribers. */
struct offer {
    PyObject *live, *runs, *origins; /* an origin for each run */
    size_t qos1_messages;
};

/* Messages that are stored and answered together. */
struct batch {
    struct entry *entries;
    struct offer *offers;
    uint16_t *ids;
    size_t entries_used, entries_room, offers_used, offers_room, ids_used, ids_room, messages;
    PyObject *logs; /* capsules of the logs of its messages */
};

struct turn {
    PyObject *begin, *publish, *run; /* the first two are NULL after close */
    PyObject *batches;             /* a list of capsules, and of tuples for single runs */
    PyObject *open;                  /* the capsule of the open batch, without a reference; NULL: none */
    PyObject *received_at, *flags[3];
    uint64_t number, generation;
    size_t messages; /* read in this turn */
    double now_s;
    bool started;
};

static PyObject *OUTSTANDING;

static void *at(PyObject *capsule, const char *kind)
{
    return PyCapsule_GetPointer(capsule, kind);
}

/* Replace a reference by a new one, or NULL. The old one is released last, as that may run Python code. */
static void replace(PyObject **place, PyObject *object)
{
    PyObject *before = *place;
    *place = object;
    Py_XDECREF(before);
}

/* Make room for one more item of `size` bytes; false with an error without memory. */
static bool room(void **items, size_t used, size_t *room_for, size_t size)
{
    if (used < *room_for)
        return true;
    size_t more = *room_for ? 2 * *room_for : 8;
    void *grown = PyMem_Realloc(*items, more * size);
    if (!grown) {
        PyErr_NoMemory();
        return false;
    }
    *items = grown, *room_for = more;
    return true;
}

/* --- topics ------------------------------------------------------------------------------------------------------ */

static uint32_t hash_of(uint32_t hash, const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

static void free_topic(PyObject *capsule)
{
    struct topic *topic = at(capsule, TOPIC);
    Py_XDECREF(topic->address);
    Py_XDECREF(topic->properties);
    Py_XDECREF(topic->column);
    Py_XDECREF(topic->prefix);
    PyMem_Free(topic);
}

static void forget_topics(struct lane *lane)
{
    PyObject **topics = lane->topics;
    uint32_t topics_room = lane->topics_room;
    lane->topics = NULL, lane->topics_room = lane->topics_used = 0, lane->topic_bytes = 0;
    for (uint32_t i = 0; i < topics_room; i++)
        Py_XDECREF(topics[i]);
    PyMem_Free(topics);
}

static void forget_prefixes(struct lane *lane)
{
    for (int i = 0; i < PREFIXES_MAX; i++)
        replace(&lane->prefixes[i], NULL);
}

/* The parsed part of a packet. */
struct packet {
    const uint8_t *head, *block; /* encoded topic name; encoded properties */
    size_t head_bytes, block_bytes;
    uint32_t hash;
    uint8_t first;
};

static bool is_of(const struct topic *topic, const struct packet *packet)
{
    return topic->first == packet->first && topic->head_bytes == packet->head_bytes + packet->block_bytes &&
           !__builtin_memcmp(topic->head, packet->head, packet->head_bytes) &&
           !__builtin_memcmp(topic->head + packet->head_bytes, packet->block, packet->block_bytes);
}

/* The slot of a topic, or the empty slot for it; there always is one. */
static PyObject **slot_of(const struct lane *lane, const struct packet *packet)
{
    uint32_t mask = lane->topics_room - 1;
    for (uint32_t i = packet->hash & mask;; i = (i + 1) & mask) {
        PyObject *capsule = lane->topics[i];
        if (!capsule)
            return &lane->topics[i];
        const struct topic *topic = at(capsule, TOPIC);
        if (topic->hash == packet->hash && is_of(topic, packet))
            return &lane->topics[i];
    }
}

static bool more_topics(struct lane *lane)
{
    PyObject **grown;
    if (lane->topics_used >= lane->topics_max)
        forget_topics(lane);
    if (2 * lane->topics_used < lane->topics_room)
        return true;
    uint32_t room_now = lane->topics_room, mask = (room_now ? 2 * room_now : TOPICS_LEAST) - 1;
    if (!(grown = PyMem_Calloc(mask + 1, sizeof *grown))) {
        PyErr_NoMemory();
        return false;
    }
    for (uint32_t i = 0; i < room_now; i++) {
        if (!lane->topics[i])
            continue;
        uint32_t place = ((struct topic *)at(lane->topics[i], TOPIC))->hash & mask;
        while (grown[place])
            place = (place + 1) & mask;
        grown[place] = lane->topics[i];
    }
    PyMem_Free(lane->topics);
    lane->topics = grown, lane->topics_room = mask + 1;
    return true;
}

/* Add a topic. Return a new reference to its capsule; NULL with an error. */
static PyObject *add_topic(struct lane *lane, const struct packet *packet, PyObject *address, PyObject *properties)
{
    if (!more_topics(lane))
        return NULL;
    struct topic *topic = PyMem_Calloc(1, sizeof *topic + packet->head_bytes + packet->block_bytes);
    if (!topic)
        return PyErr_NoMemory();
    topic->hash = packet->hash, topic->first = packet->first;
    topic->head_bytes = (uint32_t)(packet->head_bytes + packet->block_bytes);
    __builtin_memcpy(topic->head, packet->head, packet->head_bytes);
    __builtin_memcpy(topic->head + packet->head_bytes, packet->block, packet->block_bytes);
    PyObject **slot = slot_of(lane, packet);
    if (!(*slot = PyCapsule_New(topic, TOPIC, free_topic))) {
        PyMem_Free(topic);
        return NULL;
    }
    topic->address = keep(address), topic->properties = keep(properties);
    lane->topics_used++, lane->topic_bytes += TOPIC_COST + topic->head_bytes;
    return keep(*slot);
}

static bool set_column(const struct turn *turn, struct topic *topic, PyObject *column)
{
    bool plain = column != Py_None;
    if (!topic || (plain && !at(column, COLUMN)))
        return false;
    topic->generation = turn->generation;
    replace(&topic->column, plain ? keep(column) : NULL);
    return true;
}

static uint32_t hash_of_packet(const struct packet *packet)
{
    return hash_of(hash_of(packet->first, packet->head, packet->head_bytes), packet->block, packet->block_bytes);
}

/* learn_topic(lane, first byte, encoded topic name, encoded properties, address, forwarded properties, column) */
static PyObject *learn_topic(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_learn_topic", arguments, count, "OibbsbO"))
        return NULL;
    struct lane *lane = at(arguments[0], LANE);
    long first = lane ? PyLong_AsLong(arguments[1]) : -1;
    char *head, *block;
    Py_ssize_t head_bytes, block_bytes;
    if (!lane || PyErr_Occurred() || PyBytes_AsStringAndSize(arguments[2], &head, &head_bytes) ||
        PyBytes_AsStringAndSize(arguments[3], &block, &block_bytes))
        return NULL;
    struct packet packet = {(uint8_t *)head, (uint8_t *)block, (size_t)head_bytes, (size_t)block_bytes, 0, (uint8_t)first};
    packet.hash = hash_of_packet(&packet);
    PyObject *topic = lane->topics_room ? keep(*slot_of(lane, &packet)) : NULL;
    if (!topic && !(topic = add_topic(lane, &packet, arguments[4], arguments[5])))
        return NULL;
    bool done = set_column(lane->turn, at(topic, TOPIC), arguments[6]);
    Py_XDECREF(topic);
    return done ? none() : NULL;
}

/* route_topic(turn, topic, column or None) -> (prefix, its text) of the topic, or None. Set the targets of a topic for the
 * current routes; None: the state machine reads it. */
static PyObject *route_topic(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_route_topic", arguments, count, "OOO"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    struct topic *topic = turn ? at(arguments[1], TOPIC) : NULL;
    if (!topic || !set_column(turn, topic, arguments[2]))
        return NULL;
    const struct prefix *prefix = topic->prefix ? at(topic->prefix, PREFIX) : NULL;
    if (!prefix)
        return none();
    const char *name = (const char *)prefix->bytes;
    return Py_BuildValue("ON", topic->prefix, PyUnicode_FromStringAndSize(name, (Py_ssize_t)prefix->size));
}

/* --- prefixes of known topics ------------------------------------------------------------------------------------ */

static void free_prefix(PyObject *capsule)
{
    struct prefix *prefix = at(capsule, PREFIX);
    Py_XDECREF(prefix->columns[0]);
    Py_XDECREF(prefix->columns[1]);
    PyMem_Free(prefix);
}

/* make_prefix(text) -> prefix */
static PyObject *make_prefix(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_make_prefix", arguments, count, "b"))
        return NULL;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(arguments[0], &bytes, &size))
        return NULL;
    struct prefix *prefix = PyMem_Calloc(1, sizeof *prefix + (size_t)size);
    if (!prefix)
        return PyErr_NoMemory();
    prefix->size = (uint32_t)size;
    __builtin_memcpy(prefix->bytes, bytes, (size_t)size);
    PyObject *capsule = PyCapsule_New(prefix, PREFIX, free_prefix);
    if (!capsule)
        PyMem_Free(prefix);
    return capsule;
}

/* route_prefix(turn, prefix, column of QoS 0 or None, of QoS 1): see `route_topic`, for all topics with the prefix. */
static PyObject *route_prefix(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_route_prefix", arguments, count, "OOOO"))
        return NULL;
    const struct turn *turn = at(arguments[0], TURN);
    struct prefix *prefix = turn ? at(arguments[1], PREFIX) : NULL;
    if (!prefix)
        return NULL;
    for (int qos = 0; qos < 2; qos++) {
        PyObject *column = arguments[2 + qos] == Py_None ? NULL : arguments[2 + qos];
        if (column && !at(column, COLUMN))
            return NULL;
        replace(&prefix->columns[qos], keep(column));
    }
    prefix->generation = turn->generation;
    return none();
}

/* permit_prefix(lane, prefix): the client has the right to send to all topics with the prefix. */
static PyObject *permit_prefix(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_permit_prefix", arguments, count, "OO"))
        return NULL;
    struct lane *lane = at(arguments[0], LANE);
    if (!lane || !at(arguments[1], PREFIX))
        return NULL;
    for (int i = 0; i < PREFIXES_MAX; i++)
        if (lane->prefixes[i] == arguments[1])
            return none();
    PyObject *last = lane->prefixes[PREFIXES_MAX - 1];
    for (int i = PREFIXES_MAX - 1; i; i--)
        lane->prefixes[i] = lane->prefixes[i - 1];
    lane->prefixes[0] = keep(arguments[1]);
    Py_XDECREF(last);
    return none();
}

/* Return true for an ordinary topic name; the state machine checks others. */
static bool is_plain(const uint8_t *name, size_t size)
{
    size_t levels = 1;
    if (!size || size > NAME_BYTES_MAX)
        return false;
    for (size_t i = 0; i < size; i++) {
        if (name[i] < ' ' || name[i] > '~' || name[i] == '+' || name[i] == '#')
            return false;
        levels += name[i] == '/';
    }
    return levels <= LEVELS_MAX;
}

/* Set the targets of a topic from its prefix, if those are current. */
static void follow_prefix(struct topic *topic, const struct turn *turn)
{
    const struct prefix *prefix = topic->prefix ? at(topic->prefix, PREFIX) : NULL;
    if (!prefix || prefix->generation != turn->generation)
        return;
    topic->generation = prefix->generation;
    replace(&topic->column, keep(prefix->columns[topic->first == PUBLISH_1]));
}

/* Add the topic of a packet without properties, if it has a permitted prefix. Return a new reference to it; else NULL. */
static PyObject *take_topic(struct lane *lane, const struct packet *packet)
{
    const uint8_t *name = packet->head + 2;
    size_t size = packet->head_bytes - 2;
    PyObject *found = NULL;
    for (int i = 0; i < PREFIXES_MAX && lane->prefixes[i] && !found; i++) {
        const struct prefix *prefix = at(lane->prefixes[i], PREFIX);
        if (prefix->size <= size && !__builtin_memcmp(prefix->bytes, name, prefix->size))
            found = lane->prefixes[i];
    }
    if (!found || packet->block_bytes > 1 || !is_plain(name, size))
        return NULL;
    keep(found);
    PyObject *address = PyUnicode_FromStringAndSize((const char *)name, (Py_ssize_t)size);
    PyObject *properties = address ? PyBytes_FromStringAndSize(NULL, 0) : NULL;
    PyObject *topic = properties ? add_topic(lane, packet, address, properties) : NULL;
    if (topic)
        replace(&((struct topic *)at(topic, TOPIC))->prefix, keep(found));
    else
        PyErr_Clear(); /* the state machine reads it */
    Py_XDECREF(found);
    Py_XDECREF(address);
    Py_XDECREF(properties);
    return topic;
}

/* --- columns and batches ----------------------------------------------------------------------------------------- */

static void free_log(PyObject *capsule)
{
    struct log *log = at(capsule, LOG);
    Py_XDECREF(log->sink);
    Py_XDECREF(log->runs);
    PyMem_Free(log);
}

/* make_log(sink) */
static PyObject *make_log(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_make_log", arguments, count, "O"))
        return NULL;
    struct log *log = PyMem_Calloc(1, sizeof *log);
    if (!log)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(log, LOG, free_log);
    if (!capsule)
        PyMem_Free(log);
    else
        log->sink = keep(arguments[0]);
    return capsule;
}

static void free_column(PyObject *capsule)
{
    struct column *column = at(capsule, COLUMN);
    Py_XDECREF(column->log);
    Py_XDECREF(column->live);
    PyMem_Free(column);
}

/* make_column(log or None, live subscribers or None) */
static PyObject *make_column(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_make_column", arguments, count, "OO"))
        return NULL;
    PyObject *log = arguments[0] == Py_None ? NULL : arguments[0];
    if (log && !at(log, LOG))
        return NULL;
    struct column *column = PyMem_Calloc(1, sizeof *column);
    if (!column)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(column, COLUMN, free_column);
    if (!capsule)
        PyMem_Free(column);
    else
        column->log = keep(log), column->live = arguments[1] == Py_None ? NULL : keep(arguments[1]);
    return capsule;
}

static void free_batch(PyObject *capsule)
{
    struct batch *batch = at(capsule, BATCH);
    for (size_t i = 0; i < batch->entries_used; i++)
        Py_XDECREF(batch->entries[i].lane), Py_XDECREF(batch->entries[i].run);
    for (size_t i = 0; i < batch->offers_used; i++) {
        struct offer *offer = &batch->offers[i];
        Py_XDECREF(offer->live), Py_XDECREF(offer->runs), Py_XDECREF(offer->origins);
    }
    PyMem_Free(batch->entries);
    PyMem_Free(batch->offers);
    PyMem_Free(batch->ids);
    Py_XDECREF(batch->logs);
    PyMem_Free(batch);
}

/* Return a new reference to the capsule of the open batch; NULL with an error. */
static PyObject *open_batch(struct turn *turn)
{
    if (turn->open)
        return keep(turn->open);
    struct batch *batch = PyMem_Calloc(1, sizeof *batch);
    if (!batch) {
        PyErr_NoMemory();
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(batch, BATCH, free_batch);
    if (!capsule) {
        PyMem_Free(batch);
        return NULL;
    }
    if ((batch->logs = PyList_New(0)) && !PyList_Append(turn->batches, capsule))
        return turn->open = capsule, capsule;
    Py_XDECREF(capsule);
    return NULL;
}

/* Remove the messages of a log: (sink, runs, bytes, messages). */
static PyObject *take_from_log(PyObject *capsule)
{
    struct log *log = capsule ? at(capsule, LOG) : NULL;
    if (!log)
        return NULL;
    PyObject *runs = log->runs;
    size_t bytes = log->bytes, messages = log->messages;
    log->runs = NULL, log->bytes = log->messages = 0;
    return Py_BuildValue("ONnn", log->sink, runs, (Py_ssize_t)bytes, (Py_ssize_t)messages);
}

/* Close the open batch: its logs become (sink, runs, bytes, messages), and are reset. */
static bool end_batch(struct turn *turn)
{
    if (!turn->open)
        return true;
    PyObject *capsule = keep(turn->open), *rows = PyList_New(0);
    struct batch *batch = at(capsule, BATCH);
    turn->open = NULL;
    for (Py_ssize_t i = 0; rows && i < PyList_Size(batch->logs); i++) {
        PyObject *log = listed(batch->logs, i);
        append_or_drop(&rows, take_from_log(log));
        Py_XDECREF(log);
    }
    bool done = rows != NULL;
    if (done)
        replace(&batch->logs, rows);
    Py_XDECREF(capsule);
    return done;
}

static bool add_to_log(struct batch *batch, PyObject *capsule, PyObject *run, size_t messages, size_t bytes)
{
    struct log *log = at(capsule, LOG);
    if (!log->runs && (!(log->runs = PyList_New(0)) || PyList_Append(batch->logs, capsule)))
        return false;
    log->bytes += bytes, log->messages += messages;
    return !PyList_Append(log->runs, run);
}

static bool add_to_offer(struct batch *batch, PyObject *live, PyObject *run, PyObject *origin, size_t qos1_messages)
{
    struct offer *last = batch->offers_used ? &batch->offers[batch->offers_used - 1] : NULL;
    if (!last || last->live != live) {
        PyObject *runs = PyList_New(0), *origins = PyList_New(0);
        if (!runs || !origins ||
            !room((void **)&batch->offers, batch->offers_used, &batch->offers_room, sizeof *last)) {
            Py_XDECREF(runs);
            Py_XDECREF(origins);
            return false;
        }
        last = &batch->offers[batch->offers_used++];
        *last = (struct offer){keep(live), runs, origins, 0};
    }
    last->qos1_messages += qos1_messages;
    return !PyList_Append(last->runs, run) && !PyList_Append(last->origins, origin);
}

static bool add_to_batch(struct batch *batch, PyObject *lane, const struct column *column, PyObject *run,
                           const uint16_t *ids, size_t ids_used, size_t messages, size_t bytes)
{
    PyObject *origin = ((struct lane *)at(lane, LANE))->origin;
    if (column->log && !add_to_log(batch, column->log, run, messages, bytes))
        return false;
    if (column->live && !add_to_offer(batch, column->live, run, origin, ids_used))
        return false;
    while (batch->ids_room < batch->ids_used + ids_used)
        if (!room((void **)&batch->ids, batch->ids_room, &batch->ids_room, sizeof *batch->ids))
            return false;
    if (!room((void **)&batch->entries, batch->entries_used, &batch->entries_room, sizeof *batch->entries))
        return false;
    if (ids_used)
        __builtin_memcpy(batch->ids + batch->ids_used, ids, ids_used * sizeof *ids);
    batch->ids_used += ids_used, batch->messages += messages;
    batch->entries[batch->entries_used++] =
        (struct entry){keep(lane), keep(run), (uint32_t)ids_used, column->log ? KEPT : NOW};
    return true;
}

static bool join(struct turn *turn, PyObject *lane, PyObject *column, PyObject *run, const uint16_t *ids, size_t ids_used,
                 size_t messages, size_t bytes)
{
    PyObject *capsule = open_batch(turn);
    bool joined = capsule && add_to_batch(at(capsule, BATCH), lane, at(column, COLUMN), run, ids, ids_used, messages,
                                            bytes);
    Py_XDECREF(capsule);
    if (joined)
        ((struct column *)at(column, COLUMN))->received += messages;
    return joined;
}

static PyObject *list_ids(const uint16_t *ids, size_t count)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++)
        append_or_drop(&list, PyLong_FromLong(ids[i]));
    return list;
}

/* Add a single run for the router: (origin, run, packet identifiers, topic). */
static bool add_single(struct turn *turn, const struct lane *lane, PyObject *topic, PyObject *run, const uint16_t *ids,
                        size_t ids_used)
{
    PyObject *tokens = list_ids(ids, ids_used);
    PyObject *row = tokens && end_batch(turn) ? Py_BuildValue("OOOO", lane->origin, run, tokens, topic) : NULL;
    bool added = append(turn->batches, row);
    Py_XDECREF(tokens);
    return added;
}

/* --- a turn ------------------------------------------------------------------------------------------------------ */

static void free_turn(PyObject *capsule)
{
    struct turn *turn = at(capsule, TURN);
    Py_XDECREF(turn->begin);
    Py_XDECREF(turn->publish);
    Py_XDECREF(turn->run);
    Py_XDECREF(turn->batches);
    Py_XDECREF(turn->received_at);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(turn->flags[i]);
    PyMem_Free(turn);
}

/* make_turn(begin, publish, Run): the first message of a turn calls `begin`, which calls `stamp_turn`. `publish` publishes all
 * collected messages. */
static PyObject *make_turn(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_make_turn", arguments, count, "OOO"))
        return NULL;
    struct turn *turn = PyMem_Calloc(1, sizeof *turn);
    PyObject *capsule = turn ? PyCapsule_New(turn, TURN, free_turn) : PyErr_NoMemory();
    if (!capsule) {
        PyMem_Free(turn);
        return NULL;
    }
    turn->begin = keep(arguments[0]), turn->publish = keep(arguments[1]), turn->run = keep(arguments[2]);
    turn->number = turn->generation = 1;
    if (!(turn->batches = PyList_New(0)))
        replace(&capsule, NULL);
    return capsule;
}

/* close_turn(turn): release the callbacks of the turn, which makes no further call of Python. */
static PyObject *close_turn(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_close_turn", arguments, count, "O"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    if (!turn)
        return NULL;
    replace(&turn->begin, NULL);
    replace(&turn->publish, NULL);
    return none();
}

/* stamp_turn(turn, seconds, time of receipt, flags of QoS 0, flags of QoS 1): set these for messages of this turn */
static PyObject *stamp_turn(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_stamp_turn", arguments, count, "OOOOO"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    double now_s = turn ? PyFloat_AsDouble(arguments[1]) : 0;
    if (!turn || PyErr_Occurred())
        return NULL;
    turn->now_s = now_s;
    replace(&turn->received_at, keep(arguments[2]));
    replace(&turn->flags[0], keep(arguments[3]));
    replace(&turn->flags[1], keep(arguments[4]));
    return none();
}

/* forget_routes(turn): invalidate the targets of all topics. */
static PyObject *forget_routes(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_forget_routes", arguments, count, "O"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    if (!turn)
        return NULL;
    turn->generation++;
    return none();
}

/* take_messages(turn) -> [batch or (origin, run, packet identifiers, topic)] in order of receipt; ends the turn. */
static PyObject *take_messages(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_take_messages", arguments, count, "O"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    PyObject *fresh = turn ? PyList_New(0) : NULL;
    if (!fresh || !end_batch(turn)) {
        Py_XDECREF(fresh);
        return NULL;
    }
    PyObject *batches = turn->batches;
    turn->batches = fresh, turn->started = false, turn->number++, turn->messages = 0;
    return batches;
}

/* --- a lane ------------------------------------------------------------------------------------------------------ */

static void drop_calls(struct lane *lane)
{
    PyObject *calls[] = {lane->slow, lane->writes, lane->inbound};
    lane->slow = lane->writes = lane->inbound = NULL;
    lane->open = false;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        Py_XDECREF(calls[i]);
    forget_topics(lane);
    forget_prefixes(lane);
}

static void free_lane(PyObject *capsule)
{
    struct lane *lane = at(capsule, LANE);
    drop_calls(lane);
    Py_XDECREF(lane->turn_capsule);
    Py_XDECREF(lane->origin);
    Py_XDECREF(lane->device);
    PyMem_Free(lane->answers);
    PyMem_Free(lane);
}

/* Parse the next packet. Return its end, or 0 unless it is a complete PUBLISH of QoS 0 or 1. */
static size_t next_packet(const struct lane *lane, const uint8_t *data, size_t pos, size_t size, struct packet *packet,
                          size_t *at_id, size_t *at_body)
{
    if (size - pos < PUBLISH_BYTES_MIN)
        return 0;
    uint8_t first = data[pos];
    if (first != PUBLISH_1 && first != PUBLISH_0)
        return 0;
    size_t length = data[pos + 1], body = pos + 2;
    if (length > SHORT_LENGTH_MAX) {
        if (!data[body] || data[body] > SHORT_LENGTH_MAX)
            return 0;
        length += ((size_t)data[body] - 1) << 7;
        body++;
    }
    size_t stop = body + length;
    if (stop > size || length > (size_t)lane->length_max || length < 2)
        return 0;
    size_t head = 2 + ((size_t)data[body] << 8 | data[body + 1]), id_bytes = first == PUBLISH_0 ? 0 : 2;
    size_t at_block = body + head + id_bytes, block = 0;
    if (at_block + (lane->version == 5) > stop)
        return 0;
    if (lane->version == 5) {
        if (data[at_block] > PROPERTIES_MAX)
            return 0;
        block = 1 + data[at_block];
        if (at_block + block > stop)
            return 0;
    }
    *packet = (struct packet){data + body, data + at_block, head, block, 0, first};
    *at_id = body + head, *at_body = at_block + block;
    return stop;
}

/* Return a new reference to the topic of a packet if it is on the fast path; else NULL. */
static PyObject *find_topic(struct lane *lane, struct packet *packet)
{
    if (!lane->topics_room)
        return NULL;
    packet->hash = hash_of_packet(packet);
    PyObject *capsule = keep(*slot_of(lane, packet));
    if (!capsule && !(capsule = take_topic(lane, packet)))
        return NULL;
    struct topic *topic = at(capsule, TOPIC);
    if (topic->generation != lane->turn->generation)
        follow_prefix(topic, lane->turn);
    if (!topic->column && topic->generation == lane->turn->generation)
        replace(&capsule, NULL);
    return capsule;
}

enum { ALIKE_MAX = 1024 }; /* messages of one run */

/* Kind of a read: after `LONG` other connections have a turn, `LATE` has to wait for its turn. */
enum kind { USUAL, LONG, LATE };
enum {
    LARGE_BYTES = 2 * 1024,  /* bridge.transport.slow_lane */
    LONG_BYTES = 128 * 1024, /* bridge.transport.driver: LARGE_READ_BYTES */
    A_TURN_MAX = 4000,       /* messages of a turn (5 ms here, 15 in all), after which larger reads are late */
};

/* Start a turn with its first message; false with an error. */
static bool start_turn(struct turn *turn)
{
    PyObject *begin = keep(turn->begin), *done = PyObject_CallNoArgs(begin);
    Py_XDECREF(begin);
    if (done) {
        Py_XDECREF(done);
        turn->started = true;
    }
    return done != NULL;
}

/* Consecutive messages of one topic. */
struct alike {
    PyObject *bodies;
    uint16_t ids[ALIKE_MAX];
    size_t ids_used, messages, bytes;
};

/*
 * Read the complete packets at `*pos` that begin like `packet`, up to `room_left`. `stop`: end of the first one. False
 * with an error.
 */
static bool take_alike(const struct lane *lane, const struct topic *topic, const uint8_t *data, size_t size, size_t *pos,
                       size_t stop, size_t at_id, size_t at_body, struct packet *packet, long *room_left,
                       struct alike *found)
{
    bool with_id = packet->first != PUBLISH_0;
    do {
        if (with_id) {
            uint16_t id = (uint16_t)(data[at_id] << 8 | data[at_id + 1]);
            if (!id || *room_left <= 0)
                break;
            found->ids[found->ids_used++] = id;
            --*room_left;
        }
        PyObject *body = PyBytes_FromStringAndSize((const char *)data + at_body, (Py_ssize_t)(stop - at_body));
        if (!append(found->bodies, body))
            return false;
        found->bytes += stop - at_body, *pos = stop, found->messages++;
        stop = next_packet(lane, data, stop, size, packet, &at_id, &at_body);
    } while (stop && found->messages < ALIKE_MAX && is_of(topic, packet));
    return true;
}

/* Add messages to the open batch, or as a single run. False with an error. */
static bool put_run(struct lane *lane, PyObject *lane_capsule, PyObject *capsule, bool with_id, const struct alike *found)
{
    struct turn *turn = lane->turn;
    const struct topic *topic = at(capsule, TOPIC);
    PyObject *type = keep(turn->run), *flags = keep(turn->flags[with_id]), *received_at = keep(turn->received_at);
    PyObject *run = PyObject_CallFunctionObjArgs(type, topic->address, lane->device, flags, topic->properties,
                                                 found->bodies, received_at, NULL);
    PyObject *column = topic->generation == turn->generation ? keep(topic->column) : NULL;
    bool joined = run != NULL;
    turn->messages += found->messages, lane->received += found->messages;
    if (joined && column)
        joined = join(turn, lane_capsule, column, run, found->ids, found->ids_used, found->messages, found->bytes);
    else if (joined)
        joined = add_single(turn, lane, capsule, run, found->ids, found->ids_used);
    PyObject *own[] = {type, flags, received_at, run, column};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        Py_XDECREF(own[i]);
    return joined;
}

/*
 * Read a run of complete packets at `*pos` that begin like the first one, up to `room_left`. Return 1 for a run, 0 if the
 * packet at `*pos` is not on the fast path, -1 on an error.
 */
static int take_run(struct lane *lane, PyObject *lane_capsule, const uint8_t *data, size_t size, size_t *pos,
                    long *room_left)
{
    struct packet packet;
    size_t at_id, at_body, stop = next_packet(lane, data, *pos, size, &packet, &at_id, &at_body);
    PyObject *capsule = stop ? find_topic(lane, &packet) : NULL;
    if (!capsule)
        return 0;
    if (!lane->turn->started) {
        replace(&capsule, NULL);
        if (!start_turn(lane->turn))
            return -1;
        if (!(capsule = find_topic(lane, &packet))) /* it may have changed routes */
            return 0;
    }
    struct alike found;
    bool with_id = packet.first != PUBLISH_0;
    found.bodies = PyList_New(0), found.ids_used = found.messages = found.bytes = 0;
    bool done = found.bodies && take_alike(lane, at(capsule, TOPIC), data, size, pos, stop, at_id, at_body, &packet,
                                           room_left, &found);
    if (done && found.messages)
        done = put_run(lane, lane_capsule, capsule, with_id, &found);
    Py_XDECREF(found.bodies);
    Py_XDECREF(capsule);
    return done ? found.messages > 0 : -1;
}

/* Read packets of `data` on the fast path. Return where it stopped, -1 on an error. */
static Py_ssize_t read_packets(struct lane *lane, PyObject *capsule, const uint8_t *data, size_t size)
{
    struct turn *turn = lane->turn;
    size_t pos = 0;
    if (!turn->begin)
        return 0;
    PyObject *inbound = keep(lane->inbound), *number = field(inbound, OUTSTANDING);
    long outstanding = number ? PyLong_AsLong(number) : -1, room_left = lane->receive_maximum - outstanding;
    Py_XDECREF(number);
    int taken = PyErr_Occurred() ? -1 : 1;
    while (taken > 0 && pos < size && turn->begin) /* a call may close the turn */
        taken = take_run(lane, capsule, data, size, &pos, &room_left);
    if (pos)
        lane->waits_in = turn->number, lane->received_at_s = turn->now_s;
    if (taken >= 0 && lane->receive_maximum - room_left != outstanding) {
        number = PyLong_FromLong(lane->receive_maximum - room_left);
        if (!number || PyObject_SetAttr(inbound, OUTSTANDING, number))
            taken = -1;
        Py_XDECREF(number);
    }
    Py_XDECREF(inbound);
    return taken < 0 ? -1 : (Py_ssize_t)pos;
}

/* Pass bytes of a read of this `kind` to the state machine, after publishing earlier messages of the lane. */
static PyObject *give_machine(struct lane *lane, PyObject *data, enum kind kind)
{
    PyObject *slow = keep(lane->slow), *done = NULL, *number;
    if (!slow)
        return none();
    if (lane->waits_in == lane->turn->number && lane->turn->publish) {
        PyObject *publish = keep(lane->turn->publish);
        done = PyObject_CallNoArgs(publish);
        Py_XDECREF(publish);
        if (!done) {
            Py_XDECREF(slow);
            return NULL;
        }
        Py_XDECREF(done);
    }
    lane->open = false, lane->missing = 0;
    done = (number = PyLong_FromLong(kind)) ? PyObject_CallFunctionObjArgs(slow, data, number, NULL) : NULL;
    Py_XDECREF(number);
    Py_XDECREF(slow);
    if (!done)
        return NULL;
    long missing = PyLong_AsLong(done);
    Py_XDECREF(done);
    if (lane->slow && !PyErr_Occurred())
        lane->open = !missing, lane->missing = missing > 0 ? missing : 0;
    return PyErr_Occurred() ? NULL : none();
}

static PyObject *give_part(struct lane *lane, const char *data, Py_ssize_t size)
{
    PyObject *part = PyBytes_FromStringAndSize(data, size), *done = part ? give_machine(lane, part, USUAL) : NULL;
    Py_XDECREF(part);
    return done;
}

/* Process a read; `whole` is the same data as a Python object. If the last read ended within a packet, the state machine
 * gets only the rest of that packet, as every read of a busy client ends so. An empty read makes a state machine that was
 * behind return its state. */
static PyObject *take_read(struct lane *lane, const char *data, Py_ssize_t size, PyObject *whole)
{
    PyObject *rest = NULL, *capsule = keep(lane->capsule); /* the state machine may end the connection */
    Py_ssize_t pos = 0;
    bool late = size > LARGE_BYTES && lane->turn->messages >= A_TURN_MAX;
    enum kind kind = late ? LATE : size >= LONG_BYTES ? LONG : USUAL;
    PyObject *done = lane->open || lane->missing || late ? none() : give_part(lane, data, 0);
    while (done && lane->missing && lane->missing < size - pos && !late) {
        Py_ssize_t missing = lane->missing;
        Py_XDECREF(done);
        done = give_part(lane, data + pos, missing);
        pos += missing;
    }
    if (done && lane->open && !late) {
        Py_ssize_t taken = read_packets(lane, capsule, (const uint8_t *)data + pos, (size_t)(size - pos));
        pos = taken < 0 ? -1 : pos + taken;
    }
    if (pos < 0 || (done && (pos < size || kind == LONG))) {
        Py_XDECREF(done);
        done = NULL;
        if (pos >= 0)
            rest = pos ? PyBytes_FromStringAndSize(data + pos, size - pos) : keep(whole);
        if (rest)
            done = give_machine(lane, rest, kind);
    }
    Py_XDECREF(rest);
    Py_XDECREF(capsule);
    return done;
}

/* receive(bytes of the peer) */
static PyObject *receive(PyObject *capsule, PyObject *const *arguments, Py_ssize_t count)
{
    struct lane *lane = at(capsule, LANE);
    char *data;
    Py_ssize_t size;
    if (!lane || !takes("receive", arguments, count, "b") || PyBytes_AsStringAndSize(arguments[0], &data, &size))
        return NULL;
    return take_read(lane, data, size, arguments[0]);
}

static PyMethodDef RECEIVE = FUNCTION("receive", receive);

/*
 * make_lane(turn, origin, device, inbound, slow, writes, version, receive maximum, length maximum, topics maximum)
 * -> (lane, receive)
 *
 * `slow` passes bytes of a read of this `kind` to the state machine. It returns how many bytes that needs to complete a
 * packet: 0 if it is ready for another one, less if the lane has to wait. `writes` is the pair that writes the answers; see
 * `accept`.
 */
static PyObject *make_lane(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_make_lane", arguments, count, "OOsOOtiiii"))
        return NULL;
    struct turn *turn = at(arguments[0], TURN);
    struct lane *lane = turn ? PyMem_Calloc(1, sizeof *lane) : NULL;
    PyObject *capsule = lane ? PyCapsule_New(lane, LANE, free_lane) : NULL;
    if (!capsule) {
        PyMem_Free(lane);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    lane->turn = turn, lane->turn_capsule = keep(arguments[0]);
    lane->origin = keep(arguments[1]), lane->device = keep(arguments[2]), lane->inbound = keep(arguments[3]);
    lane->slow = keep(arguments[4]), lane->writes = keep(arguments[5]);
    lane->version = (uint8_t)PyLong_AsLong(arguments[6]);
    lane->receive_maximum = PyLong_AsLong(arguments[7]), lane->length_max = PyLong_AsLong(arguments[8]);
    lane->topics_max = (uint32_t)PyLong_AsLong(arguments[9]), lane->capsule = capsule;
    if (PyErr_Occurred()) {
        Py_XDECREF(capsule);
        return NULL;
    }
    return Py_BuildValue("NN", capsule, PyCFunction_NewEx(&RECEIVE, capsule, NULL));
}

/* close_lane(lane): stop reading and answering. */
static PyObject *close_lane(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_close_lane", arguments, count, "O"))
        return NULL;
    struct lane *lane = at(arguments[0], LANE);
    if (!lane)
        return NULL;
    drop_calls(lane);
    return none();
}

/* forget_learned(lane): forget all topics and prefixes. */
static PyObject *forget_learned(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_forget_learned", arguments, count, "O"))
        return NULL;
    struct lane *lane = at(arguments[0], LANE);
    if (!lane)
        return NULL;
    forget_topics(lane);
    forget_prefixes(lane);
    return none();
}

/* last_received(lane) -> time of its last message */
static PyObject *last_received(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_last_received", arguments, count, "O"))
        return NULL;
    const struct lane *lane = at(arguments[0], LANE);
    return lane ? PyFloat_FromDouble(lane->received_at_s) : NULL;
}

/* take_received(column) -> messages for its targets since the last call */
static PyObject *take_received(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_take_received", arguments, count, "O"))
        return NULL;
    struct column *column = at(arguments[0], COLUMN);
    if (!column)
        return NULL;
    uint64_t received = column->received;
    column->received = 0;
    return PyLong_FromUnsignedLongLong(received);
}

/* received(lane) -> messages that it has read */
static PyObject *received(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_received", arguments, count, "O"))
        return NULL;
    const struct lane *lane = at(arguments[0], LANE);
    return lane ? PyLong_FromUnsignedLongLong(lane->received) : NULL;
}

/* held_bytes(lane) -> memory of its topics */
static PyObject *held_bytes(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_held_bytes", arguments, count, "O"))
        return NULL;
    const struct lane *lane = at(arguments[0], LANE);
    return lane ? PyLong_FromLong((long)lane->topic_bytes) : NULL;
}

/* is_waiting(lane) -> true if it has unpublished messages */
static PyObject *is_waiting(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_is_waiting", arguments, count, "O"))
        return NULL;
    const struct lane *lane = at(arguments[0], LANE);
    return lane ? PyBool_FromLong(lane->waits_in == lane->turn->number) : NULL;
}

/* --- answers ----------------------------------------------------------------------------------------------------- */

/* list_rows(batch) -> [(sink, runs, bytes, messages)], one for each log */
static PyObject *list_rows(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_list_rows", arguments, count, "O"))
        return NULL;
    const struct batch *batch = at(arguments[0], BATCH);
    return batch ? keep(batch->logs) : NULL;
}

/* list_members(batch) -> [(origin, run, packet identifiers)] in order of receipt */
static PyObject *list_members(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_list_members", arguments, count, "O"))
        return NULL;
    const struct batch *batch = at(arguments[0], BATCH);
    PyObject *found = batch ? PyList_New(0) : NULL;
    const uint16_t *ids = batch ? batch->ids : NULL;
    for (size_t i = 0; found && i < batch->entries_used; i++) {
        const struct lane *lane = at(batch->entries[i].lane, LANE);
        PyObject *tokens = list_ids(ids, batch->entries[i].ids);
        append_or_drop(&found, tokens ? Py_BuildValue("OOO", lane->origin, batch->entries[i].run, tokens) : NULL);
        ids += batch->entries[i].ids;
        Py_XDECREF(tokens);
    }
    return found;
}

/* list_offers(batch) -> [(live subscribers, runs, origins, messages of QoS 1)] in order of receipt */
static PyObject *list_offers(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_list_offers", arguments, count, "O"))
        return NULL;
    const struct batch *batch = at(arguments[0], BATCH);
    PyObject *found = batch ? PyList_New(0) : NULL;
    for (size_t i = 0; found && i < batch->offers_used; i++) {
        const struct offer *offer = &batch->offers[i];
        Py_ssize_t messages = (Py_ssize_t)offer->qos1_messages;
        append_or_drop(&found, Py_BuildValue("OOOn", offer->live, offer->runs, offer->origins, messages));
    }
    return found;
}

/* count_messages(batch) -> messages */
static PyObject *count_messages(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_count_messages", arguments, count, "O"))
        return NULL;
    const struct batch *batch = at(arguments[0], BATCH);
    return batch ? PyLong_FromLong((long)batch->messages) : NULL;
}

/* part_answers(batch, awaiting) -> (answers to give now, answers that wait). A message that is not stored is answered after earlier
 * messages of its origin: in this batch, or counted in `awaiting`. */
static PyObject *part_answers(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_part_answers", arguments, count, "Od"))
        return NULL;
    struct batch *batch = at(arguments[0], BATCH);
    Py_ssize_t now = 0, later = 0;
    for (size_t i = 0; batch && i < batch->entries_used; i++) {
        struct entry *entry = &batch->entries[i];
        struct lane *lane = at(entry->lane, LANE);
        if (!entry->ids)
            continue;
        if (entry->answer == NOW && (lane->behind || PyDict_GetItemWithError(arguments[1], lane->origin)))
            entry->answer = BEHIND;
        lane->behind = entry->answer != NOW;
        *(lane->behind ? &later : &now) += entry->ids;
    }
    for (size_t i = 0; batch && i < batch->entries_used; i++)
        ((struct lane *)at(batch->entries[i].lane, LANE))->behind = false;
    return batch && !PyErr_Occurred() ? Py_BuildValue("nn", now, later) : NULL;
}

/* list_waiting(batch) -> [(origin, packet identifiers, messages are stored)] of answers that wait */
static PyObject *list_waiting(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_list_waiting", arguments, count, "O"))
        return NULL;
    const struct batch *batch = at(arguments[0], BATCH);
    PyObject *found = batch ? PyList_New(0) : NULL;
    const uint16_t *ids = batch ? batch->ids : NULL;
    for (size_t i = 0; found && i < batch->entries_used; i++) {
        const struct entry *entry = &batch->entries[i];
        const struct lane *lane = at(entry->lane, LANE);
        if (entry->ids && entry->answer != NOW) {
            PyObject *tokens = list_ids(ids, entry->ids);
            append_or_drop(&found, tokens ? Py_BuildValue("OOi", lane->origin, tokens, entry->answer == KEPT) : NULL);
            Py_XDECREF(tokens);
        }
        ids += entry->ids;
    }
    return found;
}

/* Change the pending answers of the origin of each waiting run by `by`. An origin without any is not in `awaiting`. */
static PyObject *change_awaiting(PyObject *capsule, PyObject *awaiting, long by)
{
    const struct batch *batch = at(capsule, BATCH);
    for (size_t i = 0; batch && i < batch->entries_used; i++) {
        if (!batch->entries[i].ids || batch->entries[i].answer == NOW)
            continue;
        PyObject *origin = ((struct lane *)at(batch->entries[i].lane, LANE))->origin;
        PyObject *before = PyDict_GetItemWithError(awaiting, origin);
        long left = (before ? PyLong_AsLong(before) : 0) + by;
        PyObject *after = left > 0 ? PyLong_FromLong(left) : NULL;
        bool failed = PyErr_Occurred() != NULL;
        if (!failed)
            failed = after ? PyDict_SetItem(awaiting, origin, after) : before && PyDict_DelItem(awaiting, origin);
        Py_XDECREF(after);
        if (failed)
            return NULL;
    }
    return batch ? none() : NULL;
}

/* count_waits(batch, awaiting): count the waiting runs of each origin as pending answers */
static PyObject *count_waits(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_count_waits", arguments, count, "Od"))
        return NULL;
    return change_awaiting(arguments[0], arguments[1], 1);
}

/* count_answered(batch, awaiting): the reverse of `count_waits` */
static PyObject *count_answered(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_count_answered", arguments, count, "Od"))
        return NULL;
    return change_awaiting(arguments[0], arguments[1], -1);
}

static bool add_answers(struct lane *lane, const uint16_t *ids, uint32_t count)
{
    while (lane->answer_room < lane->answer_bytes + PUBACK_BYTES * (size_t)count)
        if (!room((void **)&lane->answers, lane->answer_room, &lane->answer_room, 1))
            return false;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *packet = lane->answers + lane->answer_bytes;
        packet[0] = 0x40, packet[1] = 2, packet[2] = (uint8_t)(ids[i] >> 8), packet[3] = (uint8_t)ids[i];
        lane->answer_bytes += PUBACK_BYTES;
    }
    return true;
}

/* Allow the client as many further messages. */
static bool answered(const struct lane *lane)
{
    PyObject *inbound = keep(lane->inbound), *number = field(inbound, OUTSTANDING);
    long left = number ? PyLong_AsLong(number) - (long)(lane->answer_bytes / PUBACK_BYTES) : 0;
    Py_XDECREF(number);
    number = PyErr_Occurred() ? NULL : PyLong_FromLong(left > 0 ? left : 0);
    bool set = number && !PyObject_SetAttr(inbound, OUTSTANDING, number);
    Py_XDECREF(number);
    Py_XDECREF(inbound);
    return set;
}

/* Add the answers of a lane to the list to write; false with an error. */
static bool list_answers(const struct lane *lane, PyObject *answers)
{
    if (!lane->slow)
        return true; /* it has been closed */
    PyObject *writes = keep(lane->writes), *row = NULL;
    bool counted = answered(lane);
    if (counted && !lane->slow) { /* the call has closed it */
        Py_XDECREF(writes);
        return true;
    }
    if (counted)
        row = Py_BuildValue("OOy#", PyTuple_GetItem(writes, 0), PyTuple_GetItem(writes, 1), (const char *)lane->answers,
                            (Py_ssize_t)lane->answer_bytes);
    bool added = append(answers, row);
    Py_XDECREF(writes);
    return added;
}

/* accept_all(batch, waiting or not) -> ([(pair that writes, PUBACKs of a lane)], origins with an answer that failed) */
static PyObject *accept_all(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
    (void)self;
    if (!takes("mqtt_accept_all", arguments, count, "OO"))
        return NULL;
    const struct batch *batch = at(arguments[0], BATCH);
    PyObject *answers = batch ? PyList_New(0) : NULL, *failed = answers ? PyList_New(0) : NULL;
    if (!failed) {
        Py_XDECREF(answers);
        return NULL;
    }
    struct lane *first = NULL, **last = &first;
    const uint16_t *ids = batch->ids;
    bool waiting = arguments[1] != Py_False;
    for (size_t i = 0; i < batch->entries_used; i++) {
        struct lane *lane = at(batch->entries[i].lane, LANE);
        uint32_t its_ids = batch->entries[i].ids;
        if ((batch->entries[i].answer != NOW) != waiting) {
            ids += its_ids;
            continue;
        }
        if (its_ids && !lane->answered) {
            lane->answered = true, lane->next_answered = NULL;
            *last = lane, last = &lane->next_answered;
        }
        if (its_ids && !add_answers(lane, ids, its_ids)) {
            PyErr_Clear();
            PyList_Append(failed, lane->origin);
        }
        ids += its_ids;
    }
    for (struct lane *lane = first; lane; lane = lane->next_answered) {
        bool listed = list_answers(lane, answers);
        PyErr_Clear(); /* its text may quote a message */
        if (!listed && PyList_Append(failed, lane->origin))
            PyErr_Clear();
        lane->answered = false, lane->answer_bytes = 0;
        if (lane->answer_room > ANSWERS_KEPT_MAX) {
            PyMem_Free(lane->answers);
            lane->answers = NULL, lane->answer_room = 0;
        }
    }
    return Py_BuildValue("NN", answers, failed);
}

static PyMethodDef functions[] = {
    FUNCTION("mqtt_make_turn", make_turn),
    FUNCTION("mqtt_close_turn", close_turn),
    FUNCTION("mqtt_stamp_turn", stamp_turn),
    FUNCTION("mqtt_forget_routes", forget_routes),
    FUNCTION("mqtt_take_messages", take_messages),
    FUNCTION("mqtt_make_log", make_log),
    FUNCTION("mqtt_make_column", make_column),
    FUNCTION("mqtt_route_topic", route_topic),
    FUNCTION("mqtt_make_prefix", make_prefix),
    FUNCTION("mqtt_route_prefix", route_prefix),
    FUNCTION("mqtt_make_lane", make_lane),
    FUNCTION("mqtt_learn_topic", learn_topic),
    FUNCTION("mqtt_permit_prefix", permit_prefix),
    FUNCTION("mqtt_forget_learned", forget_learned),
    FUNCTION("mqtt_close_lane", close_lane),
    FUNCTION("mqtt_last_received", last_received),
    FUNCTION("mqtt_received", received),
    FUNCTION("mqtt_take_received", take_received),
    FUNCTION("mqtt_held_bytes", held_bytes),
    FUNCTION("mqtt_is_waiting", is_waiting),
    FUNCTION("mqtt_list_rows", list_rows),
    FUNCTION("mqtt_list_offers", list_offers),
    FUNCTION("mqtt_list_members", list_members),
    FUNCTION("mqtt_count_messages", count_messages),
    FUNCTION("mqtt_part_answers", part_answers),
    FUNCTION("mqtt_list_waiting", list_waiting),
    FUNCTION("mqtt_count_waits", count_waits),
    FUNCTION("mqtt_count_answered", count_answered),
    FUNCTION("mqtt_accept_all", accept_all),
    {NULL, NULL, 0, NULL},
};

int add_arrivals(PyObject *module)
{
    if (!(OUTSTANDING = PyUnicode_InternFromString("outstanding")))
        return -1;
    return PyModule_AddFunctions(module, functions);
}
